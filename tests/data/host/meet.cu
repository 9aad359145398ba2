// Every block adds to a counter and waits until all blocks have. BUG 1: the wait has a time limit and gives up.
// BUG 2: it polls.
#include "common.h"
TS_KERNEL(meet, 32)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  if (ts::thread() != 0) return;
  u32* counter = (u32*)args.counters[0];
  ts::step_begin(9);
  ts::signal_add(counter, 1);
  if (BUG == 0) ts::pause_until(counter, args.n);
  if (BUG == 1) {
    const u64 start = ts::time_ns();
    while ((int)(ts::load_acquire(counter) - args.n) < 0 && ts::time_ns() - start < args.time_limit_ns)
      ts::pause_until(counter, args.n);
  }
  if (BUG == 2) while ((int)(ts::load_acquire(counter) - args.n) < 0) {}
  ts::step_end();
  ts::store((u32*)args.base[0] + ts::block(), 1u);
}
