// One thread writes four tiles through one shared tile. BUG 1: the tile is written again before it has been read.
#include "common.h"
TS_KERNEL(staging, 32)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST Maps maps) {
  TS_SMEM(smem);
  if (ts::thread() != 0) return;
  u32* tile = (u32*)smem;
  for (u32 t = 0; t < 4; ++t) {
    if (BUG != 1) ts::bulk_wait_read<0>();
    for (u32 i = 0; i < 64; ++i) tile[i] = t * 64 + i;
    ts::fence_async_smem();
    ts::bulk_store((u32*)args.base[0] + t * 64, smem, 256);
    ts::bulk_commit();
  }
  ts::bulk_wait<0>();
}
