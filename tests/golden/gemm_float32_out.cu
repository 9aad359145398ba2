// tilescale_copy for sm_90a
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
  static constexpr int window_rows = 80;
  static constexpr bool link_clock = true;
};

TILESCALE_KERNEL(tilescale_copy, Config)

// tilescale_signal for sm_90a
#include <tilescale/kernels.cuh>

struct Config {
  static constexpr int threads = 32;
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
};

TILESCALE_KERNEL(tilescale_signal, Config)

// tilescale_gemm for sm_90a
#include <tilescale/kernels.cuh>

struct Config {
  static constexpr int threads = 384;
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
  static constexpr int block_m = 128;
  static constexpr int block_n = 256;
  static constexpr int block_k = 64;
  static constexpr int num_stages = 4;
  static constexpr int raster_group = 8;
  static constexpr int cluster_m = 1;
  static constexpr int split_k = 1;
  static constexpr bool together = true;
  static constexpr int owners = 1;
  static constexpr bool clusters = false;
  static constexpr bool splits = false;
  static constexpr bool b_row_major = false;
  static constexpr bool in_flight = true;
  static constexpr bool store_staged = true;
  static constexpr bool store_tensor = true;
  static constexpr int store_versions = 1;
  static constexpr int store_columns = 32;
  static constexpr int store_buffers = 2;
  using Element = ts::Bf16;
  using Out = ts::Fp32;
};

TILESCALE_KERNEL(tilescale_gemm, Config)
