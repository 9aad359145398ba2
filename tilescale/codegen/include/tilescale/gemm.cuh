// The GEMM role: persistent over the tiles of its segments, warp-specialised. One thread of the first warpgroup waits for
// counters and loads tiles by TMA; the other warpgroups multiply, each its rows of the tile, store them and signal.
// Blocks of a cluster either take tiles one above the other and share the loads of B (cluster_m), or share the contraction
// of one tile (split_k).
#pragma once

namespace ts {

template <class C> struct GemmLayout {
  static constexpr int consumers = C::block_m < 128 && !Pingpong<C>::value ? 1 : 2;
  static constexpr int sharing = Pingpong<C>::value ? 1 : consumers;  // that share a tile
  static constexpr int subtiles = C::block_m / 64 / sharing;  // of 64 rows, each consumer's
  static constexpr u32 cluster = C::cluster_m * C::split_k;
  static constexpr u32 b_columns = C::b_row_major ? (C::block_n + 63) / 64 * 64 : C::block_n;
  static constexpr u32 a_bytes = C::block_m * C::block_k * Operands<C>::bytes;
  static constexpr u32 b_bytes = b_columns * C::block_k * Operands<C>::bytes;
  static constexpr u32 stage_bytes = a_bytes + b_bytes;
  static constexpr u32 staging_offset = C::num_stages * stage_bytes;
  static constexpr u32 barrier_offset = staging_offset + (C::store_staged ? consumers * 4 * Staging<C>::warp_bytes : 0u);
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
  // Over stages that others take.
  TS_DEV void skip_stages(u32 count) {
    parity ^= (stage + count) / kStages & 1u;
    stage = (stage + count) % kStages;
  }
};

// Which part of its tile a warpgroup multiplies, and which part of the rows of the tile's owner that is.
template <class C> TS_DEV u32 part_of_tile() { return Pingpong<C>::value ? 0u : thread() / 128 - 1; }
template <class C> TS_DEV u32 part_of_rows() { return Together<C>::owners > 1 ? 0u : part_of_tile<C>(); }

struct TilePosition { u32 m, n; };
struct KRange { u32 from, to; };  // blocks of k

// Tiles are walked in groups of `raster_group` rows of tiles, column by column, so that a wave shares B in L2.
template <class C> TS_DEV TilePosition tile_position(u32 tile, u32 tiles_m, u32 tiles_n) {
  const u32 in_group = C::raster_group * tiles_n;
  const u32 first_m = tile / in_group * C::raster_group;
  const u32 group_m = tiles_m - first_m < C::raster_group ? tiles_m - first_m : C::raster_group;
  const u32 rest = tile % in_group;
  return {first_m + rest % group_m, rest / group_m};
}

// The blocks of k that this block contracts of a tile.
template <class C> TS_DEV KRange k_range(const Call& call) {
  const u32 all = (call.args->k + C::block_k - 1) / C::block_k;
  if constexpr (C::split_k == 1) return {0, all};
  const u32 part = cluster_rank();
  return {all * part / C::split_k, all * (part + 1) / C::split_k};
}

// Tiles of a segment.
template <class C> TS_DEV u32 tiles_of(const Call& call, const Step& step) {
  return tile_rows<C>(step) * ((call.args->n + C::block_n - 1) / C::block_n);
}

// How many of them this block takes.
template <class C> TS_DEV u32 tiles_of_block(const Call& call, const Step& step, const Block& me) {
  const u32 tiles = tiles_of<C>(call, step), gang = me.gang / C::cluster_m, index = me.index / C::cluster_m;
  return index < tiles ? (tiles - index + gang - 1) / gang : 0u;
}

// Calls `body(position, range, stream)` for the tiles of a segment that are this block's: tiles (of a cluster: `cluster_m` rows of
// tiles) are dealt round robin over the gang, counted on from the segments before, so that blocks stay evenly loaded; those
// that are shared along the contraction are dealt in pieces.
template <class C, class Body> TS_DEV void for_tiles(const Call& call, const Step& step, const Block& me, Body body) {
  constexpr u32 kCluster = GemmLayout<C>::cluster;
  const u32 tiles_m = tile_rows<C>(step);
  const u32 tiles_n = (call.args->n + C::block_n - 1) / C::block_n;
  const u32 gang = me.gang / kCluster;
  const u32 above = C::cluster_m > 1 ? cluster_rank() : 0u;
  if constexpr (Streams<C>::value) {
    Stream stream = stream_of<C>(call, me, tiles_m * tiles_n);
    for (StreamPiece piece; stream.take_piece(piece);) {
      TilePosition tile = tile_position<C>(piece.tile, tiles_m, tiles_n);
      tile.m = tile.m * C::cluster_m + above;
      body(tile, KRange{piece.from, piece.to}, stream);
    }
    return;
  }
  const KRange range = k_range<C>(call);
  for (u32 t = (me.index / kCluster + gang - step.first_tile % gang) % gang; t < tiles_m * tiles_n; t += gang) {
    TilePosition tile = tile_position<C>(t, tiles_m, tiles_n);
    tile.m = tile.m * C::cluster_m + above;
    body(tile, range, Stream{});
  }
}

// Where neighbours in a wave load all that is ever loaded of a column of tiles of B, it need not stay in the L2: A does, which
// every column loads. Texts of other kernels do not name `b_passes`.
template <class C, class = void> struct Keeping { static constexpr u64 a = kKeepAsUsual, b = kKeepAsUsual; };
template <class C> struct Keeping<C, typename Void<C::b_passes>::type> { static constexpr u64 a = kKeepLong, b = kKeepShort; };

// B of a stage: in a cluster of rows of tiles, each block loads its share for all of them.
template <class C> TS_DEV void load_b(const Maps& maps, u8* b, u64* full, u32 k, u32 column) {
  if constexpr (C::cluster_m > 1) {
    constexpr u16 kAll = (1u << C::cluster_m) - 1u;
    const u32 part = cluster_rank();
    if constexpr (C::b_row_major) {
      constexpr u32 kShare = C::block_k / C::cluster_m;
#pragma unroll
      for (int s = 0; s < GemmLayout<C>::b_columns / 64; ++s)
        tma_load_2d_multicast(b + (s * C::block_k + part * kShare) * 128, &maps.b, full, (int)(column + s * 64),
                              (int)(k + part * kShare), kAll);
    } else {
      constexpr u32 kShare = C::block_n / C::cluster_m;
#pragma unroll
      for (int s = 0; s < C::block_k / Operands<C>::wide; ++s)
        tma_load_2d_multicast(b + (s * C::block_n + part * kShare) * 128, &maps.b, full, (int)(k + s * Operands<C>::wide),
                              (int)(column + part * kShare), kAll);
    }
  } else if constexpr (C::b_row_major) {
#pragma unroll
    for (int s = 0; s < GemmLayout<C>::b_columns / 64; ++s)
      tma_load_2d(b + s * C::block_k * 128, &maps.b, full, (int)(column + s * 64), (int)k, Keeping<C>::b);
  } else {
#pragma unroll
    for (int s = 0; s < C::block_k / Operands<C>::wide; ++s)
      tma_load_2d(b + s * C::block_n * 128, &maps.b, full, (int)(k + s * Operands<C>::wide), (int)column, Keeping<C>::b);
  }
}

// `of`: whose rows of A they are.
template <class C, int kOwners>
TS_DEV void load_stage(const Call& call, const Maps& maps, const OwnRows (&of)[kOwners], u8* stage, u64* full, u32 k, u32 column) {
  mb_expect(full, GemmLayout<C>::stage_bytes);
#pragma unroll
  for (int o = 0; o < kOwners; ++o) {
    const Step& step = of[o].step;
    if constexpr (kOwners > 1) step_begin(step.id);
    const TensorMap* map_a = &maps.a[step.source + (versions_of_a<C>(step) == 2u ? call.calls & 1u : 0u)];
#pragma unroll
    for (int s = 0; s < C::block_k / Operands<C>::wide; ++s)
      tma_load_3d(stage + (s * C::block_m + o * (C::block_m / kOwners)) * 128, map_a, full, (int)(k + s * Operands<C>::wide),
                  (int)((u32)step.source_offset + of[o].m * C::block_m), (int)step.size, Keeping<C>::a);
  }
  if constexpr (kOwners > 1) step_shared(of[0].step.id);
  load_b<C>(maps, stage + GemmLayout<C>::a_bytes, full, k, column);
}

// Signals are the consumers'; this thread runs ahead of them.
template <class C> TS_DEV void gemm_producer(const Call& call, const Maps& maps, const Block& me, u8* smem, u64* full, u64* empty) {
  Ring<C::num_stages> ring;
  if constexpr (C::solo) grid_wait();
  for (u32 i = 0; i < me.num_steps; ++i) {
    const Step step = step_of<C>(call, me, i);
    if (step.kind == kSignal) continue;
    step_begin(step.id);
    if (step.kind == kWait) {
      wait_step(call, step);
      fence_async_global();  // what the acquire has made visible is read by the asynchronous proxy next
      if constexpr (Multicast<C>::value) fence_alias();
    } else if (step.kind == kGemm) {
      for_tiles<C>(call, step, me, [&](TilePosition tile, KRange range, const Stream& stream) {
        if constexpr (Streams<C>::value) step_begin(range.from > 0u ? step.id : step.id + kSharedStep);
        OwnRows of[Together<C>::owners];
#pragma unroll
        for (u32 o = 0; o < Together<C>::owners; ++o) of[o] = rows_of_owner<C>(call, me, i, step, tile.m, o);
        for (u32 k = range.from; k < range.to; ++k) {
          barrier_wait(call, of[0].step, &empty[ring.stage], ring.parity ^ 1u);
          load_stage<C>(call, maps, of, smem + ring.stage * GemmLayout<C>::stage_bytes, &full[ring.stage], k * C::block_k,
                        tile.n * C::block_n);
          ring.next();
        }
      });
      i += steps_together<C>(step) - 1u;
    }
    step_end();
  }
}

template <class C>
TS_DEV void multiply_stage(float (&acc)[GemmLayout<C>::subtiles][C::block_n / 2], const u8* stage, u32 warpgroup, u32 add) {
  constexpr int kSubtiles = GemmLayout<C>::subtiles;
  const u8* a = stage + warpgroup * kSubtiles * 64 * 128;
  const u8* b = stage + GemmLayout<C>::a_bytes;
#pragma unroll
  for (int kk = 0; kk < Operands<C>::slices; ++kk) {
#pragma unroll
    for (int s = 0; s < kSubtiles; ++s) {
      const Descriptor da = advance(desc_k_major(a + kk / 4 * (C::block_m * 128) + s * 64 * 128), kk % 4 * 32);
      if constexpr (C::b_row_major) {
        wgmma<C::block_n, true, typename C::Element>(acc[s], da, advance(desc_mn_major(b, C::block_k * 128), kk * 2048),
                                                     kk == 0 ? add : 1u);
      } else {
        wgmma<C::block_n, false, typename C::Element>(
            acc[s], da, advance(desc_k_major(b + kk / 4 * (C::block_n * 128)), kk % 4 * 32), kk == 0 ? add : 1u);
      }
    }
  }
}

// Moves sums on from the tensor core; the first ones of a tile replace what is there.
template <int kCount> TS_DEV void promote(float (&sums)[kCount], const float (&part)[kCount], bool add) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = add ? sums[i] + part[i] : part[i];
}

// The same with a scale for each of the two rows that a thread holds of 64.
template <int kCount>
TS_DEV void promote_scaled(float (&sums)[kCount], const float (&part)[kCount], const float (&scales)[2], bool add) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float scaled = part[i] * scales[i / 2 % 2];
    sums[i] = add ? sums[i] + scaled : scaled;
  }
}

// Gives a stage back to every block that loads into it: one arrival a warp and block. No product reads it any more.
template <class C> TS_DEV void release(u64* empty) {
  if constexpr (C::cluster_m > 1) {
    if (thread() % 32 < C::cluster_m) cluster_mb_arrive(empty, thread() % 32);
  } else {
    if (thread() % 32 == 0) mb_arrive(empty);
  }
}

// The same for the stage before, while products read the present one.
template <class C> TS_DEV void release_previous(u64* previous) {
  if constexpr (C::cluster_m > 1) {
    if (thread() % 32 < C::cluster_m) cluster_mb_arrive(previous, thread() % 32);
  } else {
    if (thread() % 32 == 0) mb_arrive(previous);
  }
}

// The product of one tile. One group of wgmma stays in flight while the next is issued (`in_flight`), or each is waited
// for, while the other consumer's are in flight.
template <class C>
TS_DEV void multiply_tile(const Call& call, const Step& step, float (&acc)[GemmLayout<C>::subtiles][C::block_n / 2],
                          Ring<C::num_stages>& ring, const u8* smem, u64* full, u64* empty, KRange range) {
  const u32 warpgroup = part_of_tile<C>();
  u64* previous = empty;
  for (u32 k = range.from; k < range.to; ++k) {
    barrier_wait(call, step, &full[ring.stage], ring.parity);
    wg_fence();
    multiply_stage<C>(acc, smem + ring.stage * GemmLayout<C>::stage_bytes, warpgroup, k > range.from);
    wg_commit();
    if constexpr (C::in_flight) {
      wg_wait<1>();
      if (k > range.from) release_previous<C>(previous);
      previous = &empty[ring.stage];
    } else {
      wg_wait<0>();
      release<C>(&empty[ring.stage]);
    }
    ring.next();
  }
  if constexpr (C::in_flight) {
    wg_wait<0>();
    release<C>(previous);
  }
}

// Scales of block `k` of the contraction for the rows that this thread holds. Loaded before the stage is waited for.
template <class C>
TS_DEV void load_scales(const Scaling<C>& scaling, TilePosition tile, u32 warpgroup, u32 k,
                        float (&scales)[GemmLayout<C>::subtiles][2]) {
  const u32 t = thread() % 128;
  const float column = scaling.column_block(tile.n * C::block_n, k);
#pragma unroll
  for (int s = 0; s < GemmLayout<C>::subtiles; ++s) {
    const u32 top = tile.m * C::block_m + (warpgroup * GemmLayout<C>::subtiles + s) * 64 + t / 32 * 16 + t % 32 / 4;
    scales[s][0] = scaling.row_block(top, k) * column;
    scales[s][1] = scaling.row_block(top + 8, k) * column;
  }
}

// The same where sums are moved on from the tensor core to fp32: each stage is waited for, and added.
template <class C>
TS_DEV void multiply_tile_promoted(const Call& call, const Step& step, float (&acc)[GemmLayout<C>::subtiles][C::block_n / 2],
                                   Ring<C::num_stages>& ring, const u8* smem, u64* full, u64* empty, KRange range,
                                   const Scaling<C>& scaling, TilePosition tile) {
  static_assert(C::block_k == Operands<C>::promote, "a stage is what is moved on at once");
  const u32 warpgroup = part_of_tile<C>();
  float part[GemmLayout<C>::subtiles][C::block_n / 2];
  for (u32 k = range.from; k < range.to; ++k) {
    [[maybe_unused]] float scales[GemmLayout<C>::subtiles][2];
    if constexpr (ScalesOf<C>::type::blocks) load_scales<C>(scaling, tile, part_of_rows<C>(), k, scales);
    barrier_wait(call, step, &full[ring.stage], ring.parity);
    wg_fence();
    multiply_stage<C>(part, smem + ring.stage * GemmLayout<C>::stage_bytes, warpgroup, 0u);
    wg_commit();
    wg_wait<0>();
    release<C>(&empty[ring.stage]);
#pragma unroll
    for (int s = 0; s < GemmLayout<C>::subtiles; ++s) {
      if constexpr (ScalesOf<C>::type::blocks) {
        promote_scaled(acc[s], part[s], scales[s], k > range.from);
      } else {
        promote(acc[s], part[s], k > range.from);
      }
    }
    ring.next();
  }
}

// The scale model, for products that are stored at a peer: the stores of a tile take the links behind those of the tile
// before, and the stores of the next tile, or a signal to that peer, wait for them. The first thread of a warpgroup keeps the
// time for all.
template <class C> struct StoreLink {
  u64 until = 0;
  u32 peer = 0;

  TS_DEV void next(const Call& call, const Step& step, TilePosition tile, u32 warpgroup) {
    drain();
    if (step.peer == call.args->rank || thread() % 128u != 0u) return;
    constexpr u32 kRows = GemmLayout<C>::subtiles * 64;
    const u32 row = tile.m * C::block_m + warpgroup * kRows, column = tile.n * C::block_n;
    const u32 rows = row < step.rows ? (step.rows - row < kRows ? step.rows - row : kRows) : 0u;
    const u32 columns = call.args->n - column < (u32)C::block_n ? call.args->n - column : (u32)C::block_n;
    Step charge = step;
    charge.counter = call.args->rank;
    charge.value = peer = step.peer;
    until = reserve_links(call, charge, (u64)rows * columns * BytesOf<typename C::Out>::value);
  }

  TS_DEV void drain() {
    link_wait(until);
    until = 0;
  }

  // Before a signal: what other peers are still sent is not announced by it.
  TS_DEV void drain_to(u32 rank) {
    if (rank == peer) drain();
  }
};

// Where the product of a step is stored, and what it is finished by.
template <class C> struct Finish {
  OutRows out;
  Results results;
  Scaling<C> scaling;

  TS_DEV Finish(const Call& call, const Step& step)
      : out{call.at(step.target, step.target_offset), step.rows, stored_columns<C>(call.args->n), step.per_call,
            step.counter + (C::store_versions > 1 ? call.calls & 1u : 0u)},  // each version is a shard of the map
        results{&call, step.target_offset / BytesOf<typename C::Out>::value, call.args->n},
        scaling(call, step) {}
};

template <class C> TS_DEV void gemm_consumer(const Call& call, const Maps& maps, const Block& me, u8* smem, u64* full, u64* empty) {
  constexpr int kSubtiles = GemmLayout<C>::subtiles;
  constexpr u32 kMultiply = GemmLayout<C>::consumers * 128;  // threads
  const u32 warpgroup = part_of_tile<C>();
  Ring<C::num_stages> ring;
  typedef typename StoredAs<C>::type Stored;
  Staging<Stored> staging{smem + GemmLayout<C>::staging_offset + (thread() / 32 - 4) * Staging<C>::warp_bytes};
  [[maybe_unused]] StoreLink<C> link;
  if constexpr (C::solo && ReadsBeside<C>::value) grid_wait();
  bool signalled = false;
  for (u32 i = 0; i < me.num_steps; ++i) {
    const Step step = step_of<C>(call, me, i);
    if (step.kind == kWait) continue;
    step_begin(step.id);
    if (step.kind == kSignal) {
      if constexpr (C::link_clock) {
        if constexpr (Together<C>::value) {
          link.drain();  // warpgroups may have stored at different peers, and meet once
        } else {
          link.drain_to(step.source);
        }
      }
      if (!signalled) {
        bulk_wait<0>();  // written, not only read: peers may look at it next
        named_barrier(kConsumersMeet, kMultiply);
      }
      if (thread() % kMultiply == 0) signal_step(call, step, !signalled);
    } else {
      [[maybe_unused]] bool joined = false;
      [[maybe_unused]] const u32 turn = thread() / 128 - 1;
      [[maybe_unused]] u32 left = tiles_of_block<C>(call, step, me);
      [[maybe_unused]] bool mine = turn == 1u;  // of the tile before the first
      if constexpr (Pingpong<C>::value) {
        if (turn == 1u && left > 0u) pass_turn(turn);  // the first tile is the first warpgroup's
      }
      if constexpr (Streams<C>::value) {
        if (!stream_of<C>(call, me, tiles_of<C>(call, step)).leaves()) tell_left<C>(call, step, kMultiply);
      }
      for_tiles<C>(call, step, me, [&](TilePosition tile, KRange range, const Stream& stream) {
        if constexpr (Streams<C>::value) step_begin(range.from > 0u ? step.id : step.id + kSharedStep);
        const OwnRows own = rows_of_owner<C>(call, me, i, step, tile.m, warpgroup);
        const Step& of = own.step;
        tile.m = own.m;
        const Finish<C> finish(call, of);
        if constexpr (Pingpong<C>::value) {
          mine = !mine;
          --left;
          if (!mine) {
            ring.skip_stages(range.to - range.from);
            return;
          }
          take_turn(turn);
        }
        float acc[kSubtiles][C::block_n / 2];
        if constexpr (Operands<C>::promotes) {
          multiply_tile_promoted<C>(call, of, acc, ring, smem, full, empty, range, finish.scaling, tile);
          if constexpr (ScalesOf<C>::type::ends) {
#pragma unroll
            for (int s = 0; s < kSubtiles; ++s)
              scale_rows<C>(finish.scaling, tile.m * C::block_m + (part_of_rows<C>() * kSubtiles + s) * 64, tile.n * C::block_n, acc[s]);
          }
        } else {
          multiply_tile<C>(call, of, acc, ring, smem, full, empty, range);
        }
        if constexpr (Pingpong<C>::value) {
          if (left > 0u) pass_turn(turn);
        }
        if constexpr (Streams<C>::value) {
#pragma unroll
          for (int s = 0; s < kSubtiles; ++s) keep_sums(acc[s]);
          if (range.from > 0u) {
            leave_part<C>(call, step, stream.unit, acc);
            tell_left<C>(call, step, kMultiply);
            return;
          }
          if (range.to < stream.steps) {
            wait_left<C>(call, step, kMultiply);
            joined = true;
            step_begin(step.id + kSharedStep);
            join_parts<C>(call, step, stream, acc);
          }
#pragma unroll
          for (int s = 0; s < kSubtiles; ++s) keep_sums(acc[s]);
        }
        if constexpr (C::link_clock) link.next(call, of, tile, part_of_rows<C>());
        if constexpr (C::splits) {
          warp_sync();
          cluster_sync();  // no block reads its stages any more: this was its only tile
          if (!sum_over_cluster<C>(acc, smem, thread() / 32 - 4)) return;
        }
#pragma unroll
        for (int s = 0; s < kSubtiles; ++s) {
          const u32 row = tile.m * C::block_m + (part_of_rows<C>() * kSubtiles + s) * 64;
          if constexpr (EpilogueOf<C>::any) finish_tile<C>(finish.results, row, of.rows, tile.n * C::block_n, acc[s]);
          if constexpr (EpilogueOf<C>::halves) {
            float halved[C::block_n / 4];
            halve_tile<C>(acc[s], halved);
            store_rows<Stored>(halved, staging, &maps.out, finish.out, row, tile.n * Stored::block_n);
          } else {
            store_rows<Stored>(acc[s], staging, &maps.out, finish.out, row, tile.n * C::block_n);
          }
        }
      });
      i += steps_together<C>(step) - 1u;
      if constexpr (Streams<C>::value) {
        if (!joined) wait_left<C>(call, step, GemmLayout<C>::consumers * 128);  // so that the plan says what each block does
      }
    }
    signalled = step.kind == kSignal;
    step_end();
  }
  bulk_wait<0>();
}

// Blocks that wait for each other count calls, which they know once the kernel before has ended.
template <class C> TS_DEV Call begun(const Call& call) {
  if constexpr (Streams<C>::value) {
    grid_wait();
    return Call{call.args, load_relaxed(&call.args->state->calls)};
  }
  return call;
}

// Registers move from the loading to the multiplying warpgroups: 384 threads start at 168 each, 256 at 255.
template <class C> TS_DEV void gemm_role(const Call& given, const Maps& maps, const Block& me, u8* smem) {
  constexpr int kConsumers = GemmLayout<C>::consumers;
  u64* full = (u64*)(smem + GemmLayout<C>::barrier_offset);
  u64* empty = full + C::num_stages;
  if constexpr (C::solo) grid_go();
  if (thread() == 0) {
    prefetch_map(&maps.a[0]);
    prefetch_map(&maps.b);
    for (int i = 0; i < C::num_stages; ++i) {
      mb_init(&full[i], 1);
      mb_init(&empty[i], GemmLayout<C>::sharing * 4 * C::cluster_m);
    }
    mb_fence_init();
  }
  const Call call = begun<C>(given);
  sync();  // behind it a block may end, and the last one to end counts the call: all have read it
  if constexpr (C::cluster_m > 1) cluster_sync();
  if (thread() < 128) {
    if constexpr (kConsumers == 2) reg_dec<40>();
    if (thread() == 0) {
      gemm_producer<C>(call, maps, me, smem, full, empty);
      finish(call, call.args->last);
    }
    if constexpr (C::splits) {
      warp_sync();
      cluster_sync();
      cluster_sync();  // as the consumers
    }
  } else {
    if constexpr (kConsumers == 2) reg_inc<232>();
    gemm_consumer<C>(call, maps, me, smem, full, empty);
  }
  if constexpr (C::cluster_m > 1) {  // others of the cluster may still arrive at these barriers
    sync();
    cluster_sync();
  }
}

}  // namespace ts
