// Rank 0 puts slot 0 to slot 1 of rank 1 by a bulk copy and signals; rank 1 waits and copies slot 1 to slot 2.
// BUG 1: .read before the signal. 2: no wait before it. 3: a count too high. 4: signal before the copy.
// 5: too few bytes expected. 6: too many. 7: an arrival too many. 8: exit without waiting for the read of shared memory.
#include "common.h"
TS_KERNEL(put, 32)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  TS_SMEM(smem);
  u64* full = (u64*)(smem + 4096);
  u32* counter = (u32*)args.counters[1] + 3;
  if (args.rank == 0) {
    if (ts::thread() == 0) {
      ts::mb_init(full, 1);
      ts::mb_fence_init();
      ts::step_begin(1);
      if (BUG == 4) ts::signal_add(counter, 1);
      ts::mb_expect(full, BUG == 5 ? 1024 : BUG == 6 ? 4096 : 2048);
      if (BUG == 7) ts::mb_arrive(full);
      ts::bulk_load(smem, (const void*)args.base[0], 2048, full);
      while (!ts::mb_try_wait(full, 0)) {}
      ts::bulk_store((void*)args.base[1], smem, 2048);
      ts::bulk_commit();
      if (BUG == 1) ts::bulk_wait_read<0>();
      if (BUG != 1 && BUG != 2 && BUG != 8) ts::bulk_wait<0>();
      ts::step_end();
      ts::step_begin(2);
      ts::fence_system();
      if (BUG != 4) ts::signal_add(counter, 1);
      ts::step_end();
    }
  } else {
    ts::step_begin(3);
    if (ts::thread() == 0) ts::pause_until(counter, args.n + (BUG == 3));
    ts::sync();
    ts::step_end();
    ts::step_begin(4);
    for (u32 i = ts::thread(); i < 128; i += 32)
      ts::store((ts::U128*)args.base[2] + i, ts::load((const ts::U128*)args.base[1] + i));
    ts::step_end();
  }
}
