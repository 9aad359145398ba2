// Products along a contraction that arrives in segments. A block keeps the sums of a tile in registers while it walks the
// segments, its own first; before its first tile touches a segment it waits for it. One operand is sent, or both; the other is
// local. Both are seen as shards of the contraction, so that the last block of a shard is cut off at its end.
#pragma once

namespace ts {

// Texts of other kernels have no constant `contracts`, so they stay what they were.
template <class C, class = void> struct Contracts { static constexpr bool value = false; };
template <class C> struct Contracts<C, typename Void<C::contracts>::type> { static constexpr bool value = C::contracts; };

// Whether panels arrive in slots, which are handed back, and own blocks are multiplied where they lie.
template <class C, class = void> struct Slotted { static constexpr bool value = false; };
template <class C> struct Slotted<C, typename Void<C::slotted>::type> { static constexpr bool value = C::slotted; };

// In Step::peer. Sums of a product may lie in memory before its segments, or be left there behind them.
constexpr u32 kLastSegment = 2u, kAddsSums = 4u, kLeavesSums = 8u;
constexpr u32 kOwnA = 1u, kOwnB = 2u;  // in Step::source, of slots

// Rows [from, end) of a block are a product: its segments, and the waits before them.
struct Segments { u32 from, end; };
template <class C> TS_DEV Segments segments_from(const Call& call, const Block& me, u32 from) {
  u32 end = from;
  while (end < me.num_steps) {
    const Step step = step_of<C>(call, me, end);
    ++end;
    if (step.kind == kGemm && (step.peer & kLastSegment) != 0u) break;
  }
  return {from, end};
}

template <class C> TS_DEV u32 blocks_of_k(const Step& step) { return (step.per_call + C::block_k - 1) / C::block_k; }

// Both operands of a step of the pipeline, from index `k` of the segment on. Where the contraction is the outer dimension, a
// tile comes in slabs of 64 of the other one, else in columns of 64 of the contraction.
template <class C>
TS_DEV void load_segment(const Call& call, const Maps& maps, const Step& step, u8* stage, u64* full, u32 k, TilePosition tile) {
  const u32 odd = !Slotted<C>::value && step.value == 2u ? call.calls & 1u : 0u;
  const TensorMap* sent = &maps.a[(Slotted<C>::value ? step.source & kOwnA : step.source) + odd];
  const TensorMap* map_a = C::sent == 1 ? &maps.b : sent;
  const TensorMap* map_b = C::sent == 1 ? sent : &maps.b;
  if constexpr (C::sent == 2) map_b = (odd | (step.source & kOwnB)) != 0u ? &maps.b : &maps.a[2];
  const int shard_a = (int)(C::sent == 1 ? (u32)step.size : step.counter), shard_b = (int)(C::sent == 1 ? step.counter : (u32)step.size);
  const int at = (int)((u32)step.source_offset + k), row = (int)(tile.m * C::block_m), column = (int)(tile.n * C::block_n);
  u8* b = stage + GemmLayout<C>::a_bytes;
  mb_expect(full, GemmLayout<C>::stage_bytes);
  if constexpr (C::a_turned) {
#pragma unroll
    for (int s = 0; s < C::block_m / 64; ++s) tma_load_3d(stage + s * C::block_k * 128, map_a, full, row + s * 64, at, shard_a);
  } else {
#pragma unroll
    for (int s = 0; s < C::block_k / 64; ++s) tma_load_3d(stage + s * C::block_m * 128, map_a, full, at + s * 64, row, shard_a);
  }
  if constexpr (C::b_row_major) {
#pragma unroll
    for (int s = 0; s < GemmLayout<C>::b_columns / 64; ++s)
      tma_load_3d(b + s * C::block_k * 128, map_b, full, column + s * 64, at, shard_b);
  } else {
#pragma unroll
    for (int s = 0; s < C::block_k / 64; ++s) tma_load_3d(b + s * C::block_n * 128, map_b, full, at + s * 64, column, shard_b);
  }
}

// Until all that was asked for is in shared memory: what it was read from may be written again.
template <class C>
TS_DEV void await_loads(const Call& call, const Step& step, const Ring<C::num_stages>& ring, u64* full) {
  u32 s = 0;
  do {
    barrier_wait(call, step, &full[s], s < ring.stage ? ring.parity : ring.parity ^ 1u);
  } while (++s < (u32)C::num_stages);
}

// `waits`: for every segment, before it is read, and tells of slots that are free; later tiles of the block find both done.
// `kLoads`: a block without a tile waits and tells as the others do.
template <class C, bool kLoads = true>
TS_DEV void load_tile(const Call& call, const Maps& maps, const Block& me, Segments rows, TilePosition tile, bool waits,
                      Ring<C::num_stages>& ring, u8* smem, u64* full, u64* empty) {
  bool told = false;
  for (u32 i = rows.from; i < rows.end; ++i) {
    const Step step = step_of<C>(call, me, i);
    if (step.kind != kGemm) {
      if (!waits) continue;
    }
    step_begin(step.id);
    if (step.kind == kWait) {
      wait_step(call, step);
      fence_async_global();  // what the acquire has made visible is read by the asynchronous proxy next
    } else if (step.kind == kGemm) {
      const u32 count = kLoads ? blocks_of_k<C>(step) : 0u;
      for (u32 k = 0; k < count; ++k) {
        barrier_wait(call, step, &empty[ring.stage], ring.parity ^ 1u);
        load_segment<C>(call, maps, step, smem + ring.stage * GemmLayout<C>::stage_bytes, &full[ring.stage], k * C::block_k, tile);
        ring.next();
      }
    } else if constexpr (Slotted<C>::value) {
      if (!told) await_loads<C>(call, step, ring, full);
      signal_step(call, step, !told);
    }
    told = step.kind == kSignal;
    step_end();
  }
}

template <class C>
TS_DEV void contract_producer(const Call& call, const Maps& maps, const Block& me, u8* smem, u64* full, u64* empty) {
  Ring<C::num_stages> ring;
  for (Segments rows = segments_from<C>(call, me, 0u); rows.from < rows.end; rows = segments_from<C>(call, me, rows.end)) {
    bool waits = true;
    for_tiles<C>(call, step_of<C>(call, me, rows.end - 1), me, [&](TilePosition tile, KRange range, const Stream& stream) {
      load_tile<C>(call, maps, me, rows, tile, waits, ring, smem, full, empty);
      waits = false;
    });
    if (waits) load_tile<C, false>(call, maps, me, rows, TilePosition{0u, 0u}, true, ring, smem, full, empty);
  }
}

template <class C>
TS_DEV void multiply_segment(float (&acc)[GemmLayout<C>::subtiles][C::block_n / 2], const u8* stage, u32 warpgroup, u32 add) {
  constexpr int kSubtiles = GemmLayout<C>::subtiles;
  const u8* b = stage + GemmLayout<C>::a_bytes;
#pragma unroll
  for (int kk = 0; kk < C::block_k / 16; ++kk) {
    const Descriptor db = C::b_row_major ? advance(desc_mn_major(b, C::block_k * 128), kk * 2048)
                                         : advance(desc_k_major(b + kk / 4 * (C::block_n * 128)), kk % 4 * 32);
#pragma unroll
    for (int s = 0; s < kSubtiles; ++s) {
      const u32 rows = warpgroup * kSubtiles + s;  // 64 of them
      if constexpr (C::a_turned) {
        wgmma_turned<C::block_n, C::b_row_major, typename C::Element>(
            acc[s], advance(desc_mn_major(stage + rows * (C::block_k * 128), C::block_k * 128), kk * 2048), db, kk == 0 ? add : 1u);
      } else {
        wgmma<C::block_n, C::b_row_major, typename C::Element>(
            acc[s], advance(desc_k_major(stage + kk / 4 * (C::block_m * 128) + rows * (64 * 128)), kk % 4 * 32), db,
            kk == 0 ? add : 1u);
      }
    }
  }
}

// The product of a tile over all segments. As in multiply_tile, one group of wgmma may stay in flight.
template <class C>
TS_DEV void contract_tile(const Call& call, const Block& me, Segments rows, float (&acc)[GemmLayout<C>::subtiles][C::block_n / 2],
                          Ring<C::num_stages>& ring, const u8* smem, u64* full, u64* empty) {
  const u32 warpgroup = thread() / 128 - 1;
  u64* previous = empty;
  u32 add = 0;
  for (u32 i = rows.from; i < rows.end; ++i) {
    const Step step = step_of<C>(call, me, i);
    if (step.kind != kGemm) continue;
    const u32 count = blocks_of_k<C>(step);
    for (u32 k = 0; k < count; ++k) {
      barrier_wait(call, step, &full[ring.stage], ring.parity);
      wg_fence();
      multiply_segment<C>(acc, smem + ring.stage * GemmLayout<C>::stage_bytes, warpgroup, add);
      wg_commit();
      if constexpr (C::in_flight) {
        wg_wait<1>();
        if (add != 0u) release_previous<C>(previous);
        previous = &empty[ring.stage];
      } else {
        wg_wait<0>();
        release<C>(&empty[ring.stage]);
      }
      add = 1;
      ring.next();
    }
  }
  if constexpr (C::in_flight) {
    wg_wait<0>();
    release<C>(previous);
  }
}

struct alignas(8) SumPair { float x, y; };

// The sums of 64 rows of a tile and `base`, rows of float32, of an even number: what is there is added, or they are left
// there. A thread finds what it has left itself.
template <class C>
TS_DEV void add_sums(const u8* base, u32 row, u32 rows, u32 column, u32 n, float (&acc)[C::block_n / 2]) {
  const u32 t = thread() % 128, first = row + t / 32 * 16 + t % 32 / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const u32 r = first + half * 8;
    if (r < rows) {
#pragma unroll
      for (int j = 0; j < C::block_n / 8; ++j) {
        if (j % kLoadsAhead == 0) load_fence();
        const u32 c = column + j * 8 + t % 4 * 2;
        if (c < n) {
          const SumPair held = load((const SumPair*)base + ((u64)r * n + c) / 2u);
          acc[4 * j + 2 * half] += held.x;
          acc[4 * j + 2 * half + 1] += held.y;
        }
      }
    }
  }
}

template <class C>
TS_DEV void leave_sums(u8* base, u32 row, u32 rows, u32 column, u32 n, const float (&acc)[C::block_n / 2]) {
  const u32 t = thread() % 128, first = row + t / 32 * 16 + t % 32 / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const u32 r = first + half * 8;
    if (r < rows) {
#pragma unroll
      for (int j = 0; j < C::block_n / 8; ++j) {
        const u32 c = column + j * 8 + t % 4 * 2;
        if (c < n) store((SumPair*)base + ((u64)r * n + c) / 2u, SumPair{acc[4 * j + 2 * half], acc[4 * j + 2 * half + 1]});
      }
    }
  }
}

template <class C> TS_DEV void contract_consumer(const Call& call, const Maps& maps, const Block& me, u8* smem, u64* full, u64* empty) {
  constexpr int kSubtiles = GemmLayout<C>::subtiles;
  const u32 warpgroup = thread() / 128 - 1;
  Ring<C::num_stages> ring;
  Staging<C> staging{smem + GemmLayout<C>::staging_offset + (thread() / 32 - 4) * Staging<C>::warp_bytes};
  for (Segments rows = segments_from<C>(call, me, 0u); rows.from < rows.end; rows = segments_from<C>(call, me, rows.end)) {
    const Step step = step_of<C>(call, me, rows.end - 1);  // the last segment: with it the product is stored
    if (step.kind != kGemm) continue;
    const OutRows out{call.at(step.target, step.target_offset), step.rows, call.args->n, 0u, 0u};
    step_begin(step.id);
    for_tiles<C>(call, step, me, [&](TilePosition tile, KRange range, const Stream& stream) {
      float acc[kSubtiles][C::block_n / 2];
      contract_tile<C>(call, me, rows, acc, ring, smem, full, empty);
      const u32 row = tile.m * C::block_m + warpgroup * kSubtiles * 64, column = tile.n * C::block_n;
      if constexpr (Slotted<C>::value) {
        if ((step.peer & (kAddsSums | kLeavesSums)) != 0u) {
          u8* sums = call.at(step.value, 0u);
#pragma unroll
          for (int s = 0; s < kSubtiles; ++s) {
            if ((step.peer & kAddsSums) != 0u) add_sums<C>(sums, row + s * 64, out.rows, column, out.n, acc[s]);
            if ((step.peer & kLeavesSums) != 0u) leave_sums<C>(sums, row + s * 64, out.rows, column, out.n, acc[s]);
          }
        }
        if ((step.peer & kLeavesSums) != 0u) return;
      }
#pragma unroll
      for (int s = 0; s < kSubtiles; ++s) store_rows<C>(acc[s], staging, &maps.out, out, row + s * 64, column);
    });
    step_end();
  }
  bulk_wait<0>();
}

template <class C> TS_DEV void contract_role(const Call& call, const Maps& maps, const Block& me, u8* smem) {
  constexpr int kConsumers = GemmLayout<C>::consumers;
  u64* full = (u64*)(smem + GemmLayout<C>::barrier_offset);
  u64* empty = full + C::num_stages;
  if (thread() == 0) {
    prefetch_map(&maps.a[0]);
    prefetch_map(&maps.b);
    for (int i = 0; i < C::num_stages; ++i) {
      mb_init(&full[i], 1);
      mb_init(&empty[i], kConsumers * 4);
    }
    mb_fence_init();
  }
  sync();
  if (thread() < 128) {
    if constexpr (kConsumers == 2) reg_dec<40>();
    if (thread() == 0) {
      contract_producer<C>(call, maps, me, smem, full, empty);
      finish(call, call.args->last);
    }
  } else {
    if constexpr (kConsumers == 2) reg_inc<232>();
    contract_consumer<C>(call, maps, me, smem, full, empty);
  }
}

// The role that multiplies.
template <class C> TS_DEV void product_role(const Call& call, const Maps& maps, const Block& me, u8* smem) {
  if constexpr (Contracts<C>::value) {
    contract_role<C>(call, maps, me, smem);
  } else if constexpr (WarpProducts<C>::value) {
    mma_role<C>(call, me, smem);
  } else {
    gemm_role<C>(call, maps, me, smem);
  }
}

}  // namespace ts
