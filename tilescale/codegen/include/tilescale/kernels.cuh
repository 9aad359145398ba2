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
#include "epilogue.cuh"
#include "sum.cuh"
#include "multimem.cuh"
#include "norm.cuh"
#include "carry.cuh"
#include "copy.cuh"
#include "packets.cuh"
#include "scales.cuh"
#include "gemm_store.cuh"
#include "gemm_split.cuh"
#include "gemm_stream.cuh"
#include "gemm_pingpong.cuh"
#include "gemm_owners.cuh"
#include "gemm.cuh"
#include "gemm_mma.cuh"
#include "contract.cuh"
#include "small_m.cuh"
#include "moe.cuh"
#include "grouped.cuh"

namespace ts {

template <class C> TS_DEV void walk(const Call& call, const Block& me, const Maps& maps, u8* smem) {
  if constexpr (Moe<C>::value && C::has_gemm) {
    if (me.role == kGemmRole) {
      grouped_role<Products<C>>(call, maps, me, smem);
    } else {
      moe_role<C>(call, me, smem);
    }
  } else if constexpr (Moe<C>::value) {
    moe_role<C>(call, me, smem);
  } else if constexpr (Grouped<C>::value) {
    grouped_role<Products<C>>(call, maps, me, smem);
  } else if constexpr (C::has_copy && C::has_gemm) {
    if (me.role == kGemmRole) {
      product_role<C>(call, maps, me, smem);
    } else {
      copy_role<C>(call, me, smem);
    }
  } else if constexpr (C::has_small_m) {
    small_role<C>(call, maps, me, smem);
  } else if constexpr (C::has_gemm) {
    product_role<C>(call, maps, me, smem);
  } else {
    copy_role<C>(call, me, smem);
  }
}

// The row of this block: from the arguments where they hold the gangs of the launch, one after the other, or else from a
// table in global memory, which costs a round trip to it.
TS_DEV Block block_of(const Arguments& args) {
  const u32 first = args.roles[0].gang;
  if (first == 0u) return args.blocks[block()];
  const bool second = block() >= first;
  Block me = second ? args.roles[1] : args.roles[0];
  me.index = second ? block() - first : block();
  return me;
}

template <class C> TS_DEV void execute(const Arguments& args, const Maps& maps, u8* smem) {
  if constexpr (Packets<C>::value) {  // one row, which comes with the arguments
    packet_role<C>(args);
  } else if constexpr (C::solo) {  // one step, no counters, buffers of one version: nothing to look up
    walk<C>(Call{&args, 0u}, Block{kGemmRole, 0u, 1u, block(), num_blocks()}, maps, smem);
  } else {
    walk<C>(Call{&args, load_relaxed(&args.state->calls)}, block_of(args), maps, smem);
  }
}

}  // namespace ts

#define TILESCALE_KERNEL(name, Config)                                                              \
  TS_KERNEL(name, Config::threads)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST ts::Maps maps) { \
    TS_SMEM(smem);                                                                                  \
    ts::execute<Config>(args, maps, smem);                                                          \
  }
