// Rank r sums piece r (512 bytes) of slot 0, the multicast address of all inputs, and stores it to slot 1, that of all
// outputs. Slot 2: the multicast address of the counters. KIND 1: every rank adds its own input (slot 3) to slot 1 instead.
// BUG 1: no wait for the others' pieces. 2: a neighbour's piece. 3: stored to the own output only (slot 4). 4: past the end.
#include "common.h"
TS_KERNEL(multimem, 32)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  const u32 t = ts::thread(), piece = (args.rank + (BUG == 2 && args.rank == 0)) * 512 + t * 16;
  ts::step_begin(1);
  if (KIND == 1) {
    for (u32 i = 0; i < args.n; ++i)
      ts::multimem_red_add<ts::ELEMENT>((void*)(args.base[1] + i * 512 + t * 16), ts::load((const ts::U128*)(args.base[3] + i * 512 + t * 16)));
  } else {
    const ts::U128 sum = ts::multimem_load_add<ts::ELEMENT>((const void*)(args.base[0] + piece + (BUG == 4 ? args.n * 512 : 0)));
    if (BUG == 3) {
      ts::fence_alias();
      ts::store((ts::U128*)(args.base[4] + piece), sum);
    } else {
      ts::multimem_store<ts::ELEMENT>((void*)(args.base[1] + piece), sum);
    }
  }
  ts::fence_alias();
  ts::sync();
  ts::step_end();
  ts::step_begin(2);
  if (t == 0) {
    ts::fence_system();
    ts::multimem_signal_add((u32*)args.base[2], 1);
    if (BUG != 1) ts::pause_until((const u32*)args.counters[args.rank], args.n);
  }
  ts::sync();
  ts::step_end();
  ts::step_begin(3);
  for (u32 i = 0; i < args.n; ++i) {
    const u64 at = i * 512 + t * 16;
    ts::store((ts::U128*)(args.base[5] + at), ts::load((const ts::U128*)(args.base[4] + at)));
  }
  ts::step_end();
}
