// The GEMM role: persistent over the tiles of its segments, warp-specialised. One thread of the first warpgroup waits for
// counters and loads tiles by TMA; every other warpgroup multiplies 64 rows of the tile and stores them from registers.
#pragma once

namespace ts {

template <class C> struct GemmLayout {
  static constexpr int consumers = C::block_m / 64;
  static constexpr u32 a_bytes = C::block_m * C::block_k * 2;
  static constexpr u32 b_bytes = C::block_n * C::block_k * 2;
  static constexpr u32 stage_bytes = a_bytes + b_bytes;
  static constexpr u32 barrier_offset = C::num_stages * stage_bytes;
};

// Position in the ring of stages.
template <int kStages> struct Ring {
  u32 stage = 0, parity = 0;
  TS_DEV void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1u;
    }
  }
};

struct TilePosition { u32 m, n; };

// Tiles are walked in groups of `raster_group` rows of tiles, column by column, so that a wave shares B in L2.
template <class C> TS_DEV TilePosition tile_position(u32 tile, u32 tiles_m, u32 tiles_n) {
  const u32 in_group = C::raster_group * tiles_n;
  const u32 first_m = tile / in_group * C::raster_group;
  const u32 group_m = tiles_m - first_m < C::raster_group ? tiles_m - first_m : C::raster_group;
  const u32 rest = tile % in_group;
  return {first_m + rest % group_m, rest / group_m};
}

// Calls `body(position)` for the tiles of a segment that are this block's: tiles are dealt round robin over the gang,
// counted on from the segments before, so that blocks stay evenly loaded.
template <class C, class Body> TS_DEV void for_tiles(const Call& call, const Step& step, const Block& me, Body body) {
  const u32 tiles_m = (step.rows + C::block_m - 1) / C::block_m;
  const u32 tiles_n = (call.args->n + C::block_n - 1) / C::block_n;
  for (u32 t = (me.index + me.gang - step.first_tile % me.gang) % me.gang; t < tiles_m * tiles_n; t += me.gang)
    body(tile_position<C>(t, tiles_m, tiles_n));
}

template <class C>
TS_DEV void load_stage(const Maps& maps, const TensorMap* map_a, u8* stage, u64* full, u32 k, u32 row, u32 shard, u32 column) {
  mb_expect(full, GemmLayout<C>::stage_bytes);
#pragma unroll
  for (int s = 0; s < C::block_k / 64; ++s)
    tma_load_3d(stage + s * C::block_m * 128, map_a, full, (int)(k + s * 64), (int)row, (int)shard);
  u8* b = stage + GemmLayout<C>::a_bytes;
  if constexpr (C::b_row_major) {
#pragma unroll
    for (int s = 0; s < C::block_n / 64; ++s)
      tma_load_2d(b + s * C::block_k * 128, &maps.b, full, (int)(column + s * 64), (int)k);
  } else {
#pragma unroll
    for (int s = 0; s < C::block_k / 64; ++s)
      tma_load_2d(b + s * C::block_n * 128, &maps.b, full, (int)(k + s * 64), (int)column);
  }
}

template <class C> TS_DEV void gemm_producer(const Call& call, const Maps& maps, const Block& me, u8* smem, u64* full, u64* empty) {
  Ring<C::num_stages> ring;
  for (u32 i = 0; i < me.num_steps; ++i) {
    const Step step = call.args->steps[me.first_step + i];
    step_begin(step.id);
    if (step.kind == kWait) {
      wait_step(call, step);
      fence_async_global();  // what the acquire has made visible is read by the asynchronous proxy next
    } else if (step.kind == kGemm) {
      const TensorMap* map_a = &maps.a[step.source + (step.value == 2u ? call.calls & 1u : 0u)];
      for_tiles<C>(call, step, me, [&](TilePosition tile) {
        for (u32 k = 0; k < call.args->k; k += C::block_k) {
          barrier_wait(call, step, &empty[ring.stage], ring.parity ^ 1u);
          load_stage<C>(maps, map_a, smem + ring.stage * GemmLayout<C>::stage_bytes, &full[ring.stage], k,
                        (u32)step.source_offset + tile.m * C::block_m, (u32)step.size, tile.n * C::block_n);
          ring.next();
        }
      });
    }
    step_end();
  }
}

template <class C> TS_DEV void multiply_stage(float (&acc)[C::block_n / 2], const u8* stage, u32 warpgroup) {
  const u8* a = stage + warpgroup * 64 * 128;
  const u8* b = stage + GemmLayout<C>::a_bytes;
#pragma unroll
  for (int kk = 0; kk < C::block_k / 16; ++kk) {
    const Descriptor da = advance(desc_k_major(a + kk / 4 * (C::block_m * 128)), kk % 4 * 32);
    if constexpr (C::b_row_major) {
      wgmma<C::block_n, true, typename C::Element>(acc, da, advance(desc_mn_major(b, C::block_k * 128), kk * 2048));
    } else {
      wgmma<C::block_n, false, typename C::Element>(acc, da, advance(desc_k_major(b + kk / 4 * (C::block_n * 128)), kk % 4 * 32));
    }
  }
}

template <class Out> struct OutBytes { static constexpr int value = 2; };
template <> struct OutBytes<Fp32> { static constexpr int value = 4; };

// Two neighbouring outputs of a row; `n` odd forces single stores, since rows then lose their alignment.
template <class Out> TS_DEV void store_pair(u8* out, u64 row, u32 column, u32 n, float low, float high) {
  u8* p = out + (row * n + column) * OutBytes<Out>::value;
  if (column >= n) return;
  if constexpr (Same<Out, Fp32>::value) {
    store((float*)p, low);
    if (column + 1 < n) store((float*)p + 1, high);
  } else {
    if (n % 2u == 0u) {
      store((u32*)p, pack2<Out>(low, high));
    } else {
      store((u16*)p, pack1<Out>(low));
      if (column + 1 < n) store((u16*)p + 1, pack1<Out>(high));
    }
  }
}

// The accumulator of m64nN: thread t holds rows t / 32 * 16 + t % 32 / 4 (+ 8) and columns 8 j + t % 4 * 2 (+ 1).
template <class C> TS_DEV void store_tile(const float (&acc)[C::block_n / 2], u8* out, u32 row, u32 rows, u32 column, u32 n) {
  const u32 t = thread() % 128, first = row + t / 32 * 16 + t % 32 / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const u32 r = first + half * 8;
    if (r < rows) {
#pragma unroll
      for (int j = 0; j < C::block_n / 8; ++j)
        store_pair<typename C::Out>(out, r, column + j * 8 + t % 4 * 2, n, acc[4 * j + 2 * half], acc[4 * j + 2 * half + 1]);
    }
  }
}

// The scale model, for products that are stored at a peer: the stores of a tile take the links behind those of the tile
// before, and the next tile, or a signal, waits for them. The first thread of a warpgroup keeps the time for all.
template <class C> struct StoreLink {
  u64 until = 0;

  TS_DEV void next(const Call& call, const Step& step, TilePosition tile, u32 warpgroup) {
    drain();
    if (step.counter == step.per_call || thread() % 128u != 0u) return;
    const u32 row = tile.m * C::block_m + warpgroup * 64, column = tile.n * C::block_n;
    const u32 rows = row < step.rows ? (step.rows - row < 64u ? step.rows - row : 64u) : 0u;
    const u32 columns = call.args->n - column < (u32)C::block_n ? call.args->n - column : (u32)C::block_n;
    Step charge = step;
    charge.value = step.per_call;
    until = reserve_links(call, charge, (u64)rows * columns * OutBytes<typename C::Out>::value);
  }

  TS_DEV void drain() {
    link_wait(until);
    until = 0;
  }
};

template <class C> TS_DEV void gemm_consumer(const Call& call, const Block& me, u8* smem, u64* full, u64* empty) {
  const u32 warpgroup = thread() / 128 - 1;
  Ring<C::num_stages> ring;
  [[maybe_unused]] StoreLink<C> link;
  bool signalled = false;
  for (u32 i = 0; i < me.num_steps; ++i) {
    const Step step = call.args->steps[me.first_step + i];
    if (step.kind == kSignal) {
      // Once a block, behind the stores of all its warpgroups.
      step_begin(step.id);
      if constexpr (C::link_clock) link.drain();
      if (!signalled) named_barrier(1, GemmLayout<C>::consumers * 128);
      if (thread() == 128) signal_step(call, step, !signalled);
      step_end();
    }
    signalled = step.kind == kSignal;
    if (step.kind != kGemm) continue;
    step_begin(step.id);
    u8* out = call.at(step.target, step.target_offset);
    for_tiles<C>(call, step, me, [&](TilePosition tile) {
      float acc[C::block_n / 2];
#pragma unroll
      for (int j = 0; j < C::block_n / 2; ++j) acc[j] = 0.f;
      for (u32 k = 0; k < call.args->k; k += C::block_k) {
        barrier_wait(call, step, &full[ring.stage], ring.parity);
        wg_fence();
        multiply_stage<C>(acc, smem + ring.stage * GemmLayout<C>::stage_bytes, warpgroup);
        wg_commit();
        wg_wait<0>();
        if (thread() % 128 == 0) mb_arrive(&empty[ring.stage]);
        ring.next();
      }
      if constexpr (C::link_clock) link.next(call, step, tile, warpgroup);
      store_tile<C>(acc, out, tile.m * C::block_m + warpgroup * 64, step.rows, tile.n * C::block_n, call.args->n);
    });
    step_end();
  }
}

// Registers move from the loading to the multiplying warpgroups: 384 threads start at 168 each, 256 at 255.
template <class C> TS_DEV void gemm_role(const Call& call, const Maps& maps, const Block& me, u8* smem) {
  constexpr int kConsumers = GemmLayout<C>::consumers;
  u64* full = (u64*)(smem + GemmLayout<C>::barrier_offset);
  u64* empty = full + C::num_stages;
  if (thread() == 0) {
    for (int i = 0; i < C::num_stages; ++i) {
      mb_init(&full[i], 1);
      mb_init(&empty[i], kConsumers);
    }
    mb_fence_init();
  }
  sync();
  if (thread() < 128) {
    if constexpr (kConsumers == 2) reg_dec<40>();
    if (thread() == 0) {
      gemm_producer<C>(call, maps, me, smem, full, empty);
      finish(call, call.args->last);
    }
  } else {
    if constexpr (kConsumers == 2) reg_inc<232>();
    gemm_consumer<C>(call, me, smem, full, empty);
    named_barrier(1 + thread() / 128, 128);  // all stores of the warpgroup are issued before it counts as finished
    if (thread() % 128 == 0) finish(call, call.args->last);
  }
}

}  // namespace ts
