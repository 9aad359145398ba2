// Every thread leaves its number in shared memory and reads its neighbour's. BUG 1: no barrier between.
// 2: a named barrier with a wrong count. 3: a count that is no multiple of a warp. 4: nobody else comes.
// 5: two counts at once.
#include "common.h"
TS_KERNEL(barriers, 128)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  TS_SMEM(smem);
  u32* seen = (u32*)smem;
  const u32 t = ts::thread(), half = t / 64;
  seen[t] = t;
  if (BUG == 0) ts::named_barrier(1 + half, 64);
  if (BUG == 2) ts::named_barrier(1 + half, 32);
  if (BUG == 3) ts::named_barrier(1 + half, 60);
  if (BUG == 4 && t < 32) ts::named_barrier(1, 64);
  if (BUG == 5) ts::named_barrier(1, t < 64 ? 64 : 128);
  const u32 neighbour = seen[half * 64 + (t + 1) % 64];
  if (t % 64 == 63) return;  // the barrier of the block below no longer counts it
  ts::sync();
  ts::store((u32*)args.base[0] + t, neighbour);
}
