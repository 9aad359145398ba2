// Products of few rows (at most 64): B is read once, at the memory's rate. B fills the rows of the tensor core's
// instruction and the rows of A its columns, so sums come out transposed. One thread loads B and A by TMA; a warpgroup
// multiplies 64 columns of B. Blocks of a cluster share a contraction; its parts are summed in their order.
#pragma once

namespace ts {

template <class C> struct SmallLayout {
  static constexpr int consumers = C::block_n / 64;
  static constexpr u32 b_bytes = C::block_n * C::block_k * Operands<C>::bytes;
  static constexpr u32 a_bytes = C::block_m * C::block_k * Operands<C>::bytes;
  static constexpr u32 stage_bytes = b_bytes + (a_bytes + 1023) / 1024 * 1024;
  static constexpr u32 barrier_offset = C::num_stages * stage_bytes;
  static constexpr u32 partial_offset = barrier_offset + (2 * C::num_stages * 8 + 15) / 16 * 16;
  static constexpr u32 pitch = C::block_n + 4;  // of the sums of one row; the pad keeps a warp on different banks
};

// Calls `body(first column)` for the tiles that are this block's.
template <class C, class Body> TS_DEV void for_columns(const Call& call, const Block& me, Body body) {
  const u32 tiles = (call.args->n + C::block_n - 1) / C::block_n;
  for (u32 t = me.index / C::split_k; t < tiles; t += me.gang / C::split_k) body(t * C::block_n);
}

template <class C> TS_DEV void small_producer(const Call& call, const Maps& maps, const Block& me, u8* smem, u64* full, u64* empty) {
  constexpr u32 kStageBytes = SmallLayout<C>::b_bytes + SmallLayout<C>::a_bytes;
  Ring<C::num_stages> ring;
  const KRange range = k_range<C>(call);
  if constexpr (C::solo) grid_wait();
  for (u32 i = 0; i < me.num_steps; ++i) {
    const Step step = step_of<C>(call, me, i);
    if (step.kind != kGemm) continue;
    step_begin(step.id);
    for_columns<C>(call, me, [&](u32 column) {
      for (u32 k = range.from; k < range.to; ++k) {
        u8* stage = smem + ring.stage * SmallLayout<C>::stage_bytes;
        u64* arrived = &full[ring.stage];
        barrier_wait(call, step, &empty[ring.stage], ring.parity ^ 1u);
        mb_expect(arrived, kStageBytes);
#pragma unroll
        for (int s = 0; s < C::block_k / Operands<C>::wide; ++s)
          tma_load_2d(stage + s * C::block_n * 128, &maps.b, arrived, (int)(k * C::block_k + s * Operands<C>::wide), (int)column,
                      kKeepShort);
#pragma unroll
        for (int s = 0; s < C::block_k / Operands<C>::wide; ++s)
          tma_load_3d(stage + SmallLayout<C>::b_bytes + s * C::block_m * 128, &maps.a[0], arrived,
                      (int)(k * C::block_k + s * Operands<C>::wide), (int)step.source_offset, (int)step.size, kKeepLong);
        ring.next();
      }
    });
    step_end();
  }
}

// Instructions [from, from + kCount) of a stage.
template <class C, int kCount>
TS_DEV void small_multiply(float (&acc)[C::block_m / 2], const u8* stage, u32 warpgroup, int from, u32 add) {
  const u8* a = stage + SmallLayout<C>::b_bytes;
#pragma unroll
  for (int kk = from; kk < from + kCount; ++kk) {
    const Descriptor db = advance(desc_k_major(stage + kk / 4 * (C::block_n * 128) + warpgroup * 64 * 128), kk % 4 * 32);
    const Descriptor da = advance(desc_k_major(a + kk / 4 * (C::block_m * 128)), kk % 4 * 32);
    wgmma<C::block_m, false, typename C::Element>(acc, db, da, kk == from ? add : 1u);
  }
}

// Sums of this warpgroup's 64 columns moved on with the scales of block `k` of the contraction.
template <class C>
TS_DEV void small_promote(float (&acc)[C::block_m / 2], const float (&part)[C::block_m / 2], const Scaling<C>& scaling, u32 column,
                          u32 k, bool add) {
  const float of_column = scaling.column_block(column, k);
#pragma unroll
  for (int j = 0; j < C::block_m / 8; ++j) {
    const u32 row = 8 * j + thread() % 4 * 2;
    const float scales[2] = {scaling.row_block(row, k) * of_column, scaling.row_block(row + 1, k) * of_column};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float scaled = part[4 * j + e] * scales[e % 2];
      acc[4 * j + e] = add ? acc[4 * j + e] + scaled : scaled;
    }
  }
}

// The products of a stage, waited for.
template <class C>
TS_DEV void small_stage(float (&acc)[C::block_m / 2], const u8* stage, u32 warpgroup, u32 k, bool add, const Scaling<C>& scaling,
                        u32 column) {
  if constexpr (Operands<C>::promotes) {
    constexpr int kAtOnce = Operands<C>::promote / 32;
#pragma unroll
    for (int from = 0; from < Operands<C>::slices; from += kAtOnce) {
      float part[C::block_m / 2];
      wg_fence();
      small_multiply<C, kAtOnce>(part, stage, warpgroup, from, 0u);
      wg_commit();
      wg_wait<0>();
      if constexpr (ScalesOf<C>::type::blocks) {
        const u32 at = (k * Operands<C>::slices + from) / kAtOnce;
        if (at * kScaleBlock < scaling.call->args->k) small_promote<C>(acc, part, scaling, column, at, add || from > 0);
      } else {
        promote(acc, part, add || from > 0);
      }
    }
  } else {
    wg_fence();
    small_multiply<C, Operands<C>::slices>(acc, stage, warpgroup, 0, add);
    wg_commit();
    wg_wait<0>();
  }
}

// Sums of this warpgroup's 64 columns, to where those of a row of the output lie together.
template <class C> TS_DEV void small_put(const float (&acc)[C::block_m / 2], float* sums, u32 warpgroup) {
  const u32 t = thread() % 128, column = warpgroup * 64 + t / 32 * 16 + t % 32 / 4, row = t % 4 * 2;
#pragma unroll
  for (int j = 0; j < C::block_m / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[(8 * j + row + e % 2) * SmallLayout<C>::pitch + column + e / 2 * 8] = acc[4 * j + e];
  }
}

// Four neighbouring sums over all blocks of the cluster, in their order.
template <int kParts> TS_DEV Sums sum_parts(const float* own) {
  Sums parts[kParts];
#pragma unroll
  for (u32 part = 0; part < kParts; ++part) parts[part] = *cluster_at((const Sums*)own, part);
  Sums sum = parts[0];
#pragma unroll
  for (u32 part = 1; part < kParts; ++part) {
    sum.x += parts[part].x;
    sum.y += parts[part].y;
    sum.z += parts[part].z;
    sum.w += parts[part].w;
  }
  return sum;
}

// This block's share of the tile: summed over the parts, and stored.
template <class C> TS_DEV void small_store(const Call& call, const Step& step, const float* sums, u32 column) {
  constexpr u32 kFours = StoredAs<C>::type::block_n / 4, kThreads = SmallLayout<C>::consumers * 128;
  u8* out = call.at(step.target, step.target_offset);
  const Results results{&call, step.target_offset / BytesOf<typename C::Out>::value, call.args->n};
  [[maybe_unused]] const Scaling<C> scaling(call, step);
  const u32 part = C::splits ? cluster_rank() : 0u;
  for (u32 i = part * kThreads + thread() - 128; i < step.rows * kFours; i += C::split_k * kThreads) {
    const u32 row = i / kFours, c = i % kFours * 4;
    store_finished<C>(results, out, row, column, c, [&](u32 at) {
      const float* own = sums + row * SmallLayout<C>::pitch + at;
      Sums sum = *(const Sums*)own;
      if constexpr (C::splits) sum = sum_parts<C::split_k>(own);
      if constexpr (ScalesOf<C>::type::ends) {
        float values[4] = {sum.x, sum.y, sum.z, sum.w};
        scale_four<C>(scaling, row, column + at, values);
        sum = Sums{values[0], values[1], values[2], values[3]};
      }
      return sum;
    });
  }
}

template <class C> TS_DEV void small_consumer(const Call& call, const Block& me, u8* smem, u64* full, u64* empty) {
  constexpr u32 kThreads = SmallLayout<C>::consumers * 128;
  const u32 warpgroup = thread() / 128 - 1;
  float* sums = (float*)(smem + SmallLayout<C>::partial_offset);
  Ring<C::num_stages> ring;
  const KRange range = k_range<C>(call);
  if constexpr (C::solo && ReadsBeside<C>::value) grid_wait();
  for (u32 i = 0; i < me.num_steps; ++i) {
    const Step step = step_of<C>(call, me, i);
    if (step.kind != kGemm) continue;
    step_begin(step.id);
    const Scaling<C> scaling(call, step);
    for_columns<C>(call, me, [&](u32 column) {
      float acc[C::block_m / 2];
      for (u32 k = range.from; k < range.to; ++k) {
        barrier_wait(call, step, &full[ring.stage], ring.parity);
        small_stage<C>(acc, smem + ring.stage * SmallLayout<C>::stage_bytes, warpgroup, k, k > range.from, scaling, column);
        release<C>(&empty[ring.stage]);
        ring.next();
      }
      small_put<C>(acc, sums, warpgroup);
      if constexpr (C::splits) {
        warp_sync();
        cluster_sync();  // the only tile of these blocks
      } else {
        named_barrier(kConsumersMeet, kThreads);
      }
      small_store<C>(call, step, sums, column);
      if constexpr (!C::splits) named_barrier(kConsumersMeet, kThreads);
    });
    step_end();
  }
}

template <class C> TS_DEV void small_role(const Call& call, const Maps& maps, const Block& me, u8* smem) {
  u64* full = (u64*)(smem + SmallLayout<C>::barrier_offset);
  u64* empty = full + C::num_stages;
  if constexpr (C::solo) grid_go();
  if (thread() == 0) {
    prefetch_map(&maps.a[0]);
    prefetch_map(&maps.b);
    for (int i = 0; i < C::num_stages; ++i) {
      mb_init(&full[i], 1);
      mb_init(&empty[i], SmallLayout<C>::consumers * 4);
    }
    mb_fence_init();
  }
  sync();
  if (thread() < 128) {
    if (thread() == 0) small_producer<C>(call, maps, me, smem, full, empty);
    if constexpr (C::splits) {
      warp_sync();
      cluster_sync();  // sums are complete
    }
  } else {
    small_consumer<C>(call, me, smem, full, empty);
  }
  if constexpr (C::splits) {  // others may still read these sums
    sync();
    cluster_sync();
  }
}

}  // namespace ts
