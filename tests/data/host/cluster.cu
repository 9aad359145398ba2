// A cluster of two blocks: block 0 loads two tiles, one after the other, into the same stage of both by multicast; each
// block stores what it got to its part of slot 0. A stage is empty when both blocks have said so to block 0.
// BUG 1: the second load does not wait for the other block. 2: goes to block 0 only. 3: blocks exit without meeting.
// 4: bytes expected for one block only. 5: arrives at the own barrier instead of block 0's.
#include "common.h"
TS_KERNEL(cluster, 64)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  TS_SMEM(smem);
  u64* full = (u64*)(smem + 8192);
  u64* empty = full + 1;
  const u32 rank = ts::cluster_rank();
  if (ts::thread() == 0) {
    ts::mb_init(full, 1);
    ts::mb_init(empty, BUG == 1 ? 1 : ts::cluster_size());
    ts::mb_fence_init();
  }
  ts::cluster_sync();
  ts::step_begin(1);
  for (u32 tile = 0; tile < 2; ++tile) {
    if (ts::thread() == 0) {
      if (rank == 0 || BUG != 4) ts::mb_expect(full, 8192);
      if (rank == 0) {
        if (tile > 0) while (!ts::mb_try_wait(empty, (tile - 1) & 1)) {}
        ts::tma_load_2d_multicast(smem, &maps.map[0], full, 0, (int)tile * 64, BUG == 2 ? 1 : 3);
      }
    }
    while (!ts::mb_try_wait(full, tile & 1)) {}
    for (u32 i = 0; i < 8; ++i) {
      u32 at = ts::thread() * 128 + i * 16;
      at ^= (at >> 7 & 7) << 4;
      ts::store((ts::U128*)args.base[0] + (rank * 2 + tile) * 512 + ts::thread() * 8 + i, *(const ts::U128*)(smem + at));
    }
    ts::sync();
    if (ts::thread() == 0 && !(BUG == 1 && rank == 1)) ts::cluster_mb_arrive(empty, BUG == 5 ? rank : 0);
  }
  ts::step_end();
  if (BUG != 3) ts::cluster_sync();
}
