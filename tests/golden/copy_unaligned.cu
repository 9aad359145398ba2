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
