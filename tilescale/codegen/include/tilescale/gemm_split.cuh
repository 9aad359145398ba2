// A contraction shared by the blocks of a cluster. The sums of a warp's rows are added up in one of them, which stores them:
// warps are dealt over the blocks in turn. The others send theirs into its shared memory, in the order of registers, so that
// nothing is transposed, neighbouring lanes write neighbouring bytes, and what a block keeps never leaves its registers.
#pragma once

namespace ts {

// Sums of a thread: `tiles` instructions wide, `columns` each.
template <int kTiles, int kColumns> struct Split {
  static constexpr u32 fours = kTiles * kColumns / 8;
  static constexpr u32 part_bytes = fours * 32 * 16;  // of a warp, from one block
};

// The block that adds up what `warp` of each block has.
template <class C> TS_DEV u32 split_owner(u32 warp) { return warp % C::split_k; }

// Where this lane's sums of `warp` lie that block `part` sent: those of all blocks but the one that adds up, in their order.
template <class C> TS_DEV Sums* split_slot(u8* smem, u32 part_bytes, u32 warp, u32 part) {
  const u32 place = part < split_owner<C>(warp) ? part : part - 1;
  return (Sums*)(smem + (warp / C::split_k * (C::split_k - 1) + place) * part_bytes) + thread() % 32;
}

// Sends this warp's sums to the block that adds them up.
template <class C, int kTiles, int kSums> TS_DEV void send_part(const float (&acc)[kTiles][kSums], u8* smem, u32 warp) {
  Sums* to = split_slot<C>(smem, Split<kTiles, kSums * 2>::part_bytes, warp, cluster_rank());
#pragma unroll
  for (int s = 0; s < kTiles; ++s) {
#pragma unroll
    for (int j = 0; j < kSums; j += 4)
      cluster_store(to + (s * kSums + j) * 8, split_owner<C>(warp), Sums{acc[s][j], acc[s][j + 1], acc[s][j + 2], acc[s][j + 3]});
  }
}

// Adds up the parts of all blocks, in their order.
template <class C, int kTiles, int kSums> TS_DEV void add_parts(float (&acc)[kTiles][kSums], u8* smem, u32 warp) {
#pragma unroll
  for (int s = 0; s < kTiles; ++s) {
#pragma unroll
    for (int j = 0; j < kSums; j += 4) {
      const Sums own = {acc[s][j], acc[s][j + 1], acc[s][j + 2], acc[s][j + 3]};
      Sums sum = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (u32 part = 0; part < C::split_k; ++part) {
        Sums held = own;
        if (part != split_owner<C>(warp))
          held = split_slot<C>(smem, Split<kTiles, kSums * 2>::part_bytes, warp, part)[(s * kSums + j) * 8];
        sum.x += held.x;
        sum.y += held.y;
        sum.z += held.z;
        sum.w += held.w;
      }
      acc[s][j] = sum.x;
      acc[s][j + 1] = sum.y;
      acc[s][j + 2] = sum.z;
      acc[s][j + 3] = sum.w;
    }
  }
}

// The sums of this warp over all blocks, at their owner: whether that is this block. `landing`: where others' parts land,
// which nobody uses otherwise any more.
template <class C, int kTiles, int kSums> TS_DEV bool sum_over_cluster(float (&acc)[kTiles][kSums], u8* landing, u32 warp) {
#pragma unroll
  for (int s = 0; s < kTiles; ++s) keep_sums(acc[s]);
  const bool mine = split_owner<C>(warp) == cluster_rank();
  if (!mine) send_part<C>(acc, landing, warp);
  warp_sync();
  cluster_sync();  // all parts have landed
  if (mine) add_parts<C>(acc, landing, warp);
  return mine;
}

}  // namespace ts
