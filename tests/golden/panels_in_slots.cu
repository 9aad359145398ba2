// tilescale_fused for sm_90a
#include <tilescale/kernels.cuh>

struct Config {
  static constexpr int threads = 384;
  static constexpr bool has_copy = true;
  static constexpr bool has_gemm = true;
  static constexpr bool has_small_m = false;
  static constexpr bool has_sum = false;
  static constexpr bool solo = false;
  static constexpr bool copy_tma = false;
  static constexpr int copy_unit = 16;
  static constexpr int copy_unroll = 4;
  static constexpr int copy_tile_bytes = 0;
  static constexpr int copy_stages = 0;
  static constexpr int sum_sources = 0;
  static constexpr int sum_unit = 16;
  static constexpr int window_rows = 80;
  static constexpr bool link_clock = true;
  static constexpr int block_m = 128;
  static constexpr int block_n = 256;
  static constexpr int block_k = 64;
  static constexpr int num_stages = 4;
  static constexpr int raster_group = 8;
  static constexpr int cluster_m = 1;
  static constexpr int split_k = 1;
  static constexpr bool contracts = true;
  static constexpr int sent = 2;
  static constexpr bool a_turned = false;
  static constexpr bool slotted = true;
  static constexpr bool clusters = false;
  static constexpr bool splits = false;
  static constexpr bool b_row_major = true;
  static constexpr bool in_flight = true;
  static constexpr bool store_staged = true;
  static constexpr bool store_tensor = true;
  static constexpr int store_versions = 1;
  static constexpr int store_columns = 64;
  static constexpr int store_buffers = 2;
  using Element = ts::Bf16;
  using Out = ts::Bf16;
};

TILESCALE_KERNEL(tilescale_fused, Config)
