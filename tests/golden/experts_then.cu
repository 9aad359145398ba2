// tilescale_moe for sm_90a
#include <tilescale/kernels.cuh>

struct Config {
  static constexpr int threads = 512;
  static constexpr bool has_copy = true;
  static constexpr bool has_gemm = false;
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
  static constexpr int window_rows = 0;
  static constexpr bool link_clock = true;
  static constexpr bool has_moe = true;
  static constexpr bool moe_combines = false;
  static constexpr int moe_experts = 8;
  static constexpr int moe_top_k = 2;
  static constexpr int moe_world = 4;
  static constexpr bool has_groups = true;
  static constexpr int moe_groups = 1;
  static constexpr int moe_pad = 128;
  using Part = ts::Bf16;
  using Out = ts::Bf16;
};

TILESCALE_KERNEL(tilescale_moe, Config)

// tilescale_grouped for sm_90a
#include <tilescale/kernels.cuh>

struct Config {
  static constexpr int threads = 256;
  static constexpr bool has_copy = false;
  static constexpr bool has_gemm = true;
  static constexpr bool has_small_m = false;
  static constexpr bool has_sum = false;
  static constexpr bool solo = false;
  static constexpr bool copy_tma = false;
  static constexpr int copy_unit = 16;
  static constexpr int copy_unroll = 1;
  static constexpr int copy_tile_bytes = 0;
  static constexpr int copy_stages = 0;
  static constexpr int sum_sources = 0;
  static constexpr int sum_unit = 16;
  static constexpr int window_rows = 0;
  static constexpr bool link_clock = false;
  static constexpr int block_m = 64;
  static constexpr int block_n = 128;
  static constexpr int block_k = 64;
  static constexpr int num_stages = 3;
  static constexpr int raster_group = 8;
  static constexpr int cluster_m = 1;
  static constexpr int split_k = 1;
  static constexpr bool clusters = false;
  static constexpr bool splits = false;
  static constexpr bool b_row_major = true;
  static constexpr bool in_flight = true;
  static constexpr bool store_staged = true;
  static constexpr bool store_tensor = false;
  static constexpr int store_versions = 1;
  static constexpr int store_columns = 64;
  static constexpr int store_buffers = 1;
  static constexpr bool has_groups = true;
  static constexpr int moe_experts = 8;
  static constexpr int moe_top_k = 2;
  static constexpr int moe_world = 4;
  static constexpr int moe_groups = 1;
  static constexpr int moe_pad = 128;
  using Element = ts::Bf16;
  using Out = ts::Bf16;
  using Part = ts::Bf16;
  using Epilogue = ts::Then<ts::Bias<0, ts::Bf16>, ts::Swiglu>;
};

TILESCALE_KERNEL(tilescale_grouped, Config)

// tilescale_grouped_fused for sm_90a
#include <tilescale/kernels.cuh>

struct Config {
  static constexpr int threads = 256;
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
  static constexpr int window_rows = 0;
  static constexpr bool link_clock = true;
  static constexpr int block_m = 64;
  static constexpr int block_n = 128;
  static constexpr int block_k = 64;
  static constexpr int num_stages = 3;
  static constexpr int raster_group = 8;
  static constexpr int cluster_m = 1;
  static constexpr int split_k = 1;
  static constexpr bool clusters = false;
  static constexpr bool splits = false;
  static constexpr bool b_row_major = true;
  static constexpr bool in_flight = true;
  static constexpr bool store_staged = true;
  static constexpr bool store_tensor = false;
  static constexpr int store_versions = 1;
  static constexpr int store_columns = 64;
  static constexpr int store_buffers = 1;
  static constexpr bool has_moe = true;
  static constexpr bool moe_combines = false;
  static constexpr int moe_experts = 8;
  static constexpr int moe_top_k = 2;
  static constexpr int moe_world = 4;
  static constexpr bool has_groups = true;
  static constexpr int moe_groups = 2;
  static constexpr int moe_pad = 128;
  using Element = ts::Bf16;
  using Out = ts::Bf16;
  using Part = ts::Bf16;
  using Epilogue = ts::Then<ts::Bias<0, ts::Bf16>, ts::Swiglu>;
};

TILESCALE_KERNEL(tilescale_grouped_fused, Config)
