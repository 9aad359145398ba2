// One warp: 16 rows of 64 elements of 16 bits (128 bytes) through shared memory by cp.async in two groups of 8 rows, read
// by ldmatrix and stored as they were: slot 0 to slot 1.
// BUG 1: no wait. 2: waits for the older group alone. 3: a thread does not commit. 4: a thread loads turned matrices.
// 5: a row is read that is not aligned.
#include "common.h"
TS_KERNEL(staged, 32)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  TS_SMEM(smem);
  const u32 t = ts::thread();
  const u8* from = (const u8*)args.base[0];
  u32* to = (u32*)args.base[1];
  ts::step_begin(1);
  for (u32 half = 0; half < 2; ++half) {
    for (u32 i = 0; i < 2; ++i) {
      const u32 unit = half * 64 + i * 32 + t;
      ts::copy_async(smem + unit * 16, from + unit * 16, 16u);
    }
    if (!(BUG == 3 && t == 5 && half == 1)) ts::copy_async_commit();
  }
  if (BUG == 2) {
    ts::copy_async_wait<1>();
  } else if (BUG != 1) {
    ts::copy_async_wait<0>();
  }
  ts::warp_sync();
  for (u32 k = 0; k < 4; ++k) {
    u32 r[1][4];
    const u8* const row[1] = {smem + (t / 8 % 2 * 8 + t % 8) * 128 + (k * 2 + t / 16) * 16 + (BUG == 5 && t == 5 ? 2 : 0)};
    if (BUG == 4 && t == 5) {
      ts::load_matrices_turned<1>(r, row);
    } else {
      ts::load_matrices<1>(r, row);
    }
    for (u32 i = 0; i < 4; ++i) ts::store(to + (i % 2 * 8 + t / 4) * 32 + k * 8 + i / 2 * 4 + t % 4, r[0][i]);
  }
  ts::step_end();
}
