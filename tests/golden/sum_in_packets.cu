// tilescale_packets for sm_90a
#include <tilescale/kernels.cuh>

struct Config {
  static constexpr int threads = 544;
  static constexpr bool has_copy = false;
  static constexpr bool has_gemm = false;
  static constexpr bool has_small_m = false;
  static constexpr bool has_sum = false;
  static constexpr bool solo = false;
  static constexpr bool copy_tma = false;
  static constexpr int copy_unit = 16;
  static constexpr int copy_unroll = 1;
  static constexpr int copy_tile_bytes = 0;
  static constexpr int copy_stages = 0;
  static constexpr int sum_sources = 4;
  static constexpr int sum_unit = 8;
  static constexpr int window_rows = 0;
  static constexpr bool link_clock = true;
  static constexpr bool packets = true;
  static constexpr bool two_shots = false;
  using Part = ts::Bf16;
  using Out = ts::Bf16;
};

TILESCALE_KERNEL(tilescale_packets, Config)
