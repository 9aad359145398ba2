// Threads copy n bytes from slot 0 to slot 1 under step 7. BUG 1: one access too many.
#include "common.h"
TS_KERNEL(copy, 64)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  const ts::U128* from = (const ts::U128*)args.base[0];
  ts::U128* to = (ts::U128*)args.base[1];
  ts::step_begin(7);
  const u32 count = args.n / 16 + (BUG == 1);
  for (u32 i = ts::block() * 64 + ts::thread(); i < count; i += ts::num_blocks() * 64) ts::store(to + i, ts::load(from + i));
  ts::step_end();
}
