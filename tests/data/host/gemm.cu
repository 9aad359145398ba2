// One tile: 64 x WIDTH, two stages of DEPTH (128 bytes) along K, one warpgroup loads, one multiplies. fp32 output.
// BUG 1: the stage is released before the tensor core has read it. 2: no wait for it. 3: results used before the wait.
// 4: one warp issues another product. 5: stages are never released.
#include "common.h"
TS_KERNEL(gemm, 256)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  TS_SMEM(smem);
  constexpr u32 kStage = 64 * 128 + WIDTH * 128;
  u64* full = (u64*)(smem + 2 * kStage);
  u64* empty = full + 2;
  if (ts::thread() == 0) {
    for (int i = 0; i < 2; ++i) {
      ts::mb_init(&full[i], 1);
      ts::mb_init(&empty[i], 1);
    }
    ts::mb_fence_init();
  }
  ts::sync();
  const u32 steps = args.k / DEPTH;
  if (ts::thread() < 128) {
    if (ts::thread() != 0) return;
    ts::step_begin(5);
    for (u32 k = 0; k < steps; ++k) {
      const u32 s = k % 2;
      unsigned char* stage = smem + s * kStage;
      if (BUG != 2) while (!ts::mb_try_wait(&empty[s], (k / 2 & 1) ^ 1)) {}
      ts::mb_expect(&full[s], kStage);
      ts::tma_load_3d(stage, &maps.map[0], &full[s], (int)k * DEPTH, 0, 0);
      if (TRANSPOSED) {
        for (int slab = 0; slab < WIDTH / 64; ++slab)
          ts::tma_load_2d(stage + 64 * 128 + slab * 64 * 128, &maps.map[1], &full[s], slab * 64, (int)k * DEPTH);
      } else {
        ts::tma_load_2d(stage + 64 * 128, &maps.map[1], &full[s], (int)k * DEPTH, 0);
      }
    }
    return;
  }
  const u32 t = ts::thread() % 128;
  float acc[WIDTH / 2];
  for (int i = 0; i < WIDTH / 2; ++i) acc[i] = 0.f;
  for (u32 k = 0; k < steps; ++k) {
    const u32 s = k % 2;
    const unsigned char* stage = smem + s * kStage;
    while (!ts::mb_try_wait(&full[s], k / 2 & 1)) {}
    ts::wg_fence();
    for (u32 kk = 0; kk < 4; ++kk) {
      const u32 mine = BUG == 4 && t < 32 ? 3 - kk : kk;
      const ts::Descriptor a = ts::advance(ts::desc_k_major(stage), mine * 32);
      if constexpr (TRANSPOSED) {
        ts::wgmma<WIDTH, true, ts::ELEMENT>(acc, a, ts::advance(ts::desc_mn_major(stage + 64 * 128, 64 * 128), kk * 2048), 1u);
      } else {
        ts::wgmma<WIDTH, false, ts::ELEMENT>(acc, a, ts::advance(ts::desc_k_major(stage + 64 * 128), kk * 32), 1u);
      }
    }
    ts::wg_commit();
    if (BUG == 1 && t == 0) ts::mb_arrive(&empty[s]);
    if (BUG != 3 || k + 1 < steps) ts::wg_wait<0>();
    if (BUG != 1 && BUG != 5 && t == 0) ts::mb_arrive(&empty[s]);
  }
  for (int i = 0; i < WIDTH / 2; ++i) {
    const u32 row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
    ts::store((float*)args.base[0] + row * WIDTH + column, acc[i]);
  }
  if (BUG == 3) ts::wg_wait<0>();
}
