// Kernel families. A generated kernel is one Config (constants), and one line that names its entry point:
//
//   struct Config { static constexpr int threads = 384; ... };
//   TILESCALE_KERNEL(name, Config)
//
// Which steps a block walks comes from tables, so most knobs need no other binary.
#pragma once
#ifdef TS_HOST
#include "primitives.hpp"
#else
#include "ptx.cuh"
#include "mma.cuh"
#endif
#include "comm.cuh"
#include "share.cuh"
#include "strided.cuh"
#include "sum.cuh"
#include "multimem.cuh"
#include "copy.cuh"
#include "gemm_store.cuh"
#include "gemm.cuh"
#include "small_m.cuh"

namespace ts {

template <class C> TS_DEV void walk(const Call& call, const Block& me, const Maps& maps, u8* smem) {
  if constexpr (C::has_copy && C::has_gemm) {
    if (me.role == kGemmRole) {
      gemm_role<C>(call, maps, me, smem);
    } else {
      copy_role<C>(call, me, smem);
    }
  } else if constexpr (C::has_small_m) {
    small_role<C>(call, maps, me, smem);
  } else if constexpr (C::has_gemm) {
    gemm_role<C>(call, maps, me, smem);
  } else {
    copy_role<C>(call, me, smem);
  }
}

template <class C> TS_DEV void execute(const Arguments& args, const Maps& maps, u8* smem) {
  if constexpr (C::solo) {  // one step, no counters, buffers of one version: nothing to look up
    walk<C>(Call{&args, 0u}, Block{kGemmRole, 0u, 1u, block(), num_blocks()}, maps, smem);
  } else {
    walk<C>(Call{&args, load_relaxed(&args.state->calls)}, args.blocks[block()], maps, smem);
  }
}

}  // namespace ts

#define TILESCALE_KERNEL(name, Config)                                                              \
  TS_KERNEL(name, Config::threads)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST ts::Maps maps) { \
    TS_SMEM(smem);                                                                                  \
    ts::execute<Config>(args, maps, smem);                                                          \
  }
