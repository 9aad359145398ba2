// tilescale_sum for sm_90a
#include <tilescale/kernels.cuh>

struct Config {
  static constexpr int threads = 512;
  static constexpr bool has_copy = true;
  static constexpr bool has_gemm = false;
  static constexpr bool has_small_m = false;
  static constexpr bool has_sum = true;
  static constexpr bool solo = false;
  static constexpr bool copy_tma = false;
  static constexpr int copy_unit = 16;
  static constexpr int copy_unroll = 4;
  static constexpr int copy_tile_bytes = 0;
  static constexpr int copy_stages = 0;
  static constexpr int sum_sources = 4;
  static constexpr int sum_unit = 16;
  static constexpr int window_rows = 80;
  static constexpr bool link_clock = true;
  using Part = ts::Bf16;
  using Out = ts::Bf16;
  using Epilogue = ts::Then<ts::AddRmsnorm<0, 1, ts::Bf16>>;
};

TILESCALE_KERNEL(tilescale_sum, Config)
