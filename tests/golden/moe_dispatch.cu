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
  using Part = ts::Bf16;
  using Out = ts::Bf16;
};

TILESCALE_KERNEL(tilescale_moe, Config)
