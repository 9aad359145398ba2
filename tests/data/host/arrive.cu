// Warp 0 writes to shared memory and arrives at barrier 1 without waiting; warp 1 waits there and reads.
// BUG 1: it arrives before it writes. 2: the counts differ. 3: nobody arrives.
#include "common.h"
TS_KERNEL(arrive, 64)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  TS_SMEM(smem);
  volatile u32* words = (volatile u32*)smem;
  const u32 t = ts::thread();
  if (t < 32) {
    if (BUG == 1) ts::named_arrive(1, 64);
    words[t] = t * 3;
    if (BUG == 0 || BUG == 2) ts::named_arrive(1, BUG == 2 ? 32 : 64);
    return;
  }
  ts::named_barrier(1, 64);
  ts::store((u32*)args.base[0] + t - 32, words[t - 32]);
}
