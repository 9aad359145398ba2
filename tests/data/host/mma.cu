// One warp: 16 x 8 = 16 x 16 times 16 x 8, row-major in slots 0, 1 and 2 (column-major in 1).
// BUG 1: halves of A exchanged. 2: one thread leaves before. 3: rows of B exchanged. 4: a thread multiplies another type.
#include "common.h"
TS_KERNEL(mma, 32)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  const u32 t = ts::thread(), g = t / 4, c = t % 4 * 2;
  if (BUG == 2 && t == 5) return;
  const u32* a = (const u32*)args.base[0];  // pairs of elements
  const u32* b = (const u32*)args.base[1];
  ts::step_begin(1);
  u32 fa[4], fb[2];
  float d[4] = {0.f, 0.f, 0.f, 0.f};
  for (u32 i = 0; i < 4; ++i) {
    const u32 row = g + (BUG == 1 ? i / 2 : i % 2) * 8, column = c + (BUG == 1 ? i % 2 : i / 2) * 8;
    fa[i] = ts::load(a + (row * 16 + column) / 2);
  }
  for (u32 i = 0; i < 2; ++i) fb[i] = ts::load(b + (g * 16 + c + (BUG == 3 ? 1 - i : i) * 8) / 2);
  if (BUG == 4 && t == 5) {
    ts::mma_m16n8k16<ts::Fp16>(d, fa, fb);
  } else {
    ts::mma_m16n8k16<ts::Bf16>(d, fa, fb);
  }
  float* out = (float*)args.base[2];
  for (u32 i = 0; i < 4; ++i) ts::store(out + (g + i / 2 * 8) * 8 + c + i % 2, d[i]);
  ts::step_end();
}
