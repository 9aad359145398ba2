// Every rank adds its 64 x 64 tile (row t holds t + column) into slot 1 + TENSOR of rank 0: by a tensor map, or linearly.
// BUG 1: a plain store instead of a reduction. 2: `.read` before the signal. 3: added twice. 4: one row further.
#include "common.h"
template <class T> TS_DEV void put_element(u8* p, float v) { *(u16*)p = ts::pack1<T>(v); }
template <> TS_DEV void put_element<ts::Fp32>(u8* p, float v) { *(float*)p = v; }
TS_KERNEL(reduce, 64)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  TS_SMEM(smem);
  const u32 row = ts::thread();
  for (u32 i = 0; i < 128 / BYTES; ++i) {
    u32 at = row * 128 + i * BYTES;
    if (TENSOR) at ^= (at >> 7 & 7) << 4;  // the map swizzles
    put_element<ts::ELEMENT>(smem + at, (float)(row + i));
  }
  ts::fence_async_smem();
  ts::sync();
  if (ts::thread() != 0) return;
  ts::step_begin(1);
  for (int times = 0; times < (BUG == 3 ? 2 : 1); ++times) {
    if (TENSOR) {
      if (BUG == 1) ts::tma_store_2d(&maps.map[0], smem, 0, 0);
      if (BUG != 1) ts::tma_reduce_add_2d<ts::ELEMENT>(&maps.map[0], smem, 0, BUG == 4);
    } else {
      if (BUG == 1) ts::bulk_store((void*)args.base[0], smem, 8192);
      if (BUG != 1) ts::bulk_reduce_add<ts::ELEMENT>((void*)(args.base[0] + (BUG == 4 ? 128 : 0)), smem, 8192 - (BUG == 4 ? 128 : 0));
    }
    ts::bulk_commit();
  }
  if (BUG == 2) ts::bulk_wait_read<0>();
  if (BUG != 2) ts::bulk_wait<0>();
  ts::step_end();
  ts::step_begin(2);
  ts::fence_system();
  ts::signal_add((u32*)args.counters[0], 1);
  ts::step_end();
  if (args.rank != 0) return;
  ts::step_begin(3);
  ts::pause_until((const u32*)args.counters[0], args.n);
  for (u32 i = 0; i < 512; ++i) ts::store((ts::U128*)args.base[1] + i, ts::load((const ts::U128*)args.base[0] + i));
  ts::step_end();
}
