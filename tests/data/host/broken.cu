// BUG 1: a null pointer. 2: past the end of shared memory. 3: an endless loop. 4: an illegal instruction.
// 5: an unaligned load. 6: an mbarrier that was never initialised. 7: a bulk copy of an odd size.
#include "common.h"
TS_KERNEL(broken, 32)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  TS_SMEM(smem);
  ts::step_begin(2);
  if (BUG == 1) *(volatile u32*)(args.base[1]) = 1;
  if (BUG == 2) *(volatile u32*)(smem + 4096) = 1;
  if (BUG == 3) for (volatile u32 i = 0;; i = i + 1) {}
  if (BUG == 4) __builtin_trap();
  if (BUG == 5) ts::load((const u32*)(args.base[0] + 2));
  if (BUG == 6) ts::mb_arrive((u64*)(smem + 8));
  if (BUG == 7) ts::bulk_store((void*)args.base[0], smem, 24);
}
