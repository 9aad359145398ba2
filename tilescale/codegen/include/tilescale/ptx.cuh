// Device primitives: one PTX instruction (or one idiom) each. The emulator has a twin of every name in
// codegen/host/primitives.hpp, so kernels use these and nothing else.
#pragma once
#include "abi.cuh"

#define TS_DEV __device__ __forceinline__
#define TS_GRID_CONST const __grid_constant__
#define TS_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads, 1) name
#define TS_SMEM(name) extern __shared__ __align__(1024) unsigned char name[]

namespace ts {

struct alignas(64) TensorMap { u64 opaque[16]; };
struct alignas(16) U128 { u32 x, y, z, w; };
struct Bf16 {};
struct Fp16 {};
struct E4m3 {};
struct E5m2 {};
struct Fp32 {};

// ---- threads and barriers ------------------------------------------------------------------------------------------
TS_DEV u32 thread() { return threadIdx.x; }
TS_DEV u32 block() { return blockIdx.x; }
TS_DEV u32 num_blocks() { return gridDim.x; }
TS_DEV void sync() { __syncthreads(); }
TS_DEV void named_barrier(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// Counts as `threads` arrive, without waiting for the others.
TS_DEV void named_arrive(u32 id, u32 threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// The threads of a warp, with what they wrote to shared memory.
TS_DEV void warp_sync() { __syncwarp(); }
template <int N> TS_DEV void reg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> TS_DEV void reg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

// Kernels of one stream that may overlap: waits for the end of those before; lets the next one start its blocks.
TS_DEV void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
TS_DEV void grid_go() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// The emulator logs memory accesses under the step between these, those of shared loads under another too, and what a wait
// is for.
TS_DEV void step_begin(u32) {}
TS_DEV void step_end() {}
TS_DEV void step_shared(u32) {}
TS_DEV void log_wait(const u32*, u32) {}

// ---- global memory -------------------------------------------------------------------------------------------------
template <class T> TS_DEV T load(const T* p) { return *p; }
template <class T> TS_DEV void store(T* p, T v) { *p = v; }
// Of bytes that have no multicast address.
template <class T> TS_DEV T load_private(const T* p) { return *p; }
template <class T> TS_DEV void store_private(T* p, T v) { *p = v; }
// Loads behind it are not moved before it by the compiler; the machine may.
TS_DEV void load_fence() { asm volatile("" ::: "memory"); }
TS_DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---- counters across ranks -----------------------------------------------------------------------------------------
TS_DEV u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
TS_DEV u32 load_relaxed(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
// One system fence serves all the relaxed signals behind it; a release each would cost a system barrier each.
TS_DEV void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
TS_DEV void signal_add(u32* p, u32 v) { asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
TS_DEV u32 atomic_add(u32* p, u32 v) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
// A packet: each half of the data beside the mark. An access of 8 bytes is one: whoever finds the mark has its half.
TS_DEV void packet_store(U128* p, u64 data, u32 mark) {
  const u64 low = (data & 0xFFFFFFFFull) | ((u64)mark << 32), high = (data >> 32) | ((u64)mark << 32);
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(low), "l"(high) : "memory");
}
TS_DEV U128 packet_load(const U128* p) {
  u64 low, high;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(p) : "memory");
  return U128{(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
}
// Between two looks at a packet: a pause would be longer than the trip that is waited for.
TS_DEV void packet_pause(const U128*, u32) {}
TS_DEV u64 time_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
TS_DEV void pause_until(const u32*, u32) { __nanosleep(32); }

// ---- the link clock of the scale model -----------------------------------------------------------------------------
// Takes a link for `ns` from when it is free, and returns until when. The clock may be a peer's.
TS_DEV u64 link_reserve(u64* clock, u64 ns) {
  u64 old;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(old) : "l"(clock) : "memory");
  for (;;) {
    const u64 now = time_ns();
    const u64 end = (old > now ? old : now) + ns;
    u64 seen;
    asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], %2, %3;" : "=l"(seen) : "l"(clock), "l"(old), "l"(end) : "memory");
    if (seen == old) return end;
    old = seen;
  }
}
TS_DEV void link_wait(u64 end) {
  while ((long long)(end - time_ns()) > 0) __nanosleep(64);
}
// Keep an end for the kernel that waits for it.
TS_DEV void link_hold(u64* lane, u64 end) { *lane = end; }
TS_DEV void link_release(const u64* lane) { link_wait(*lane); }

// ---- mbarriers -----------------------------------------------------------------------------------------------------
TS_DEV void mb_init(u64* b, u32 n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n) : "memory"); }
TS_DEV void mb_fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
TS_DEV void mb_expect(u64* b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
TS_DEV void mb_arrive(u64* b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory"); }
TS_DEV bool mb_try_wait(u64* b, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
  return done != 0;
}

// ---- asynchronous copies -------------------------------------------------------------------------------------------
// Brings a map near, so that the first copy that uses it need not wait for it.
TS_DEV void prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
// `keep`: what the L2 does with the bytes, a policy as `createpolicy` makes them, known when the kernel is compiled.
TS_DEV void tma_load_2d(void* smem, const TensorMap* map, u64* b, int x, int y, u64 keep = kKeepAsUsual) {
  if (keep == kKeepAsUsual) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
        ::"r"(shared_address(smem)), "l"(map), "r"(shared_address(b)), "r"(x), "r"(y) : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4}], [%2], %5;"
        ::"r"(shared_address(smem)), "l"(map), "r"(shared_address(b)), "r"(x), "r"(y), "l"(keep) : "memory");
  }
}
TS_DEV void tma_load_3d(void* smem, const TensorMap* map, u64* b, int x, int y, int z, u64 keep = kKeepAsUsual) {
  if (keep == kKeepAsUsual) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(shared_address(smem)), "l"(map), "r"(shared_address(b)), "r"(x), "r"(y), "r"(z) : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;"
        ::"r"(shared_address(smem)), "l"(map), "r"(shared_address(b)), "r"(x), "r"(y), "r"(z), "l"(keep) : "memory");
  }
}
TS_DEV void bulk_load(void* smem, const void* global, u32 bytes, u64* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared_address(smem)), "l"(global), "r"(bytes), "r"(shared_address(b)) : "memory");
}
TS_DEV void bulk_store(void* global, const void* smem, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(smem)), "r"(bytes) : "memory");
}
TS_DEV void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All but the N youngest groups have written their destination.
template <int N> TS_DEV void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }
// All but the N youngest groups have read shared memory; nothing is said of their writes.
template <int N> TS_DEV void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
TS_DEV void tma_store_2d(const TensorMap* map, const void* smem, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
               ::"l"(map), "r"(shared_address(smem)), "r"(x), "r"(y) : "memory");
}
TS_DEV void tma_store_3d(const TensorMap* map, const void* smem, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
               ::"l"(map), "r"(shared_address(smem)), "r"(x), "r"(y), "r"(z) : "memory");
}
// Reductions: elements of type T (the map's) are added to those in global memory; groups and waits are those of stores.
template <class T> TS_DEV void tma_reduce_add_2d(const TensorMap* map, const void* smem, int x, int y) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];"
               ::"l"(map), "r"(shared_address(smem)), "r"(x), "r"(y) : "memory");
}
template <class T> TS_DEV void tma_reduce_add_3d(const TensorMap* map, const void* smem, int x, int y, int z) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
               ::"l"(map), "r"(shared_address(smem)), "r"(x), "r"(y), "r"(z) : "memory");
}
template <class T> TS_DEV void bulk_reduce_add(void* global, const void* smem, u32 bytes);
template <> TS_DEV void bulk_reduce_add<Fp32>(void* global, const void* smem, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
               ::"l"(global), "r"(shared_address(smem)), "r"(bytes) : "memory");
}
template <> TS_DEV void bulk_reduce_add<Bf16>(void* global, const void* smem, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;"
               ::"l"(global), "r"(shared_address(smem)), "r"(bytes) : "memory");
}
template <> TS_DEV void bulk_reduce_add<Fp16>(void* global, const void* smem, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%0], [%1], %2;"
               ::"l"(global), "r"(shared_address(smem)), "r"(bytes) : "memory");
}
// 16 bytes by each thread that calls it, on any architecture from sm_80: `bytes` of them (0 or 16) come from memory, the rest
// are zeros. A thread waits for its own copies; others see them behind a barrier.
TS_DEV void copy_async(void* smem, const void* global, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(smem)), "l"(global), "r"(bytes) : "memory");
}
TS_DEV void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the N youngest groups of this thread have landed.
template <int N> TS_DEV void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
TS_DEV void fence_async_smem() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
TS_DEV void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- clusters ------------------------------------------------------------------------------------------------------
TS_DEV u32 cluster_rank() {
  u32 v;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(v));
  return v;
}
TS_DEV u32 cluster_size() {
  u32 v;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(v));
  return v;
}
// All threads of all blocks of the cluster; what they wrote to shared memory is visible behind it.
TS_DEV void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// What stands where `p` stands, in the shared memory of block `rank` of the cluster.
template <class T> TS_DEV const T* cluster_at(const T* p, u32 rank) {
  u64 found;
  asm("mapa.u64 %0, %1, %2;" : "=l"(found) : "l"(p), "r"(rank));
  return (const T*)found;
}
// Products that were waited for are complete in these registers, and what follows is not moved ahead of it.
template <int kCount> TS_DEV void keep_sums(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
// Stores 16 bytes where `p` stands, in the shared memory of block `rank` of the cluster; seen behind a barrier of it.
template <class T> TS_DEV void cluster_store(T* p, u32 rank, const T& value) {
  static_assert(sizeof(T) == 16, "16 bytes");
  const u32* words = (const u32*)&value;
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.v4.b32 [remote], {%2, %3, %4, %5};\n}"
      ::"r"(shared_address(p)), "r"(rank), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}
// Arrives at the barrier that stands where `b` stands, in the shared memory of block `rank` of the cluster.
TS_DEV void cluster_mb_arrive(u64* b, u32 rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}"
      ::"r"(shared_address(b)), "r"(rank) : "memory");
}
// One load from global memory lands in every block of `mask`, at the same place, and is counted by each one's barrier.
TS_DEV void tma_load_2d_multicast(void* smem, const TensorMap* map, u64* b, int x, int y, u16 mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%4, %5}], [%2], %3;"
      ::"r"(shared_address(smem)), "l"(map), "r"(shared_address(b)), "h"(mask), "r"(x), "r"(y) : "memory");
}
TS_DEV void tma_load_3d_multicast(void* smem, const TensorMap* map, u64* b, int x, int y, int z, u16 mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%4, %5, %6}], [%2], %3;"
      ::"r"(shared_address(smem)), "l"(map), "r"(shared_address(b)), "h"(mask), "r"(x), "r"(y), "r"(z) : "memory");
}

// ---- multicast addresses: the same bytes of all ranks ---------------------------------------------------------------
// 16 bytes of T; sums accumulate in fp32, in an order that is not specified.
TS_DEV void fence_alias() { asm volatile("fence.proxy.alias;" ::: "memory"); }
template <class T> struct Multimem;
#define TS_MULTIMEM(T, LOAD, TYPE)                                                                                       \
  template <> struct Multimem<T> {                                                                                       \
    static TS_DEV U128 load_add(const void* p) {                                                                         \
      U128 v;                                                                                                            \
      asm volatile("multimem.ld_reduce.relaxed.sys.global.add" LOAD ".v4." TYPE " {%0, %1, %2, %3}, [%4];"               \
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");                                    \
      return v;                                                                                                          \
    }                                                                                                                    \
    static TS_DEV void store(void* p, U128 v) {                                                                          \
      asm volatile("multimem.st.relaxed.sys.global.v4." TYPE " [%0], {%1, %2, %3, %4};"                                  \
                   ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");                                         \
    }                                                                                                                    \
    static TS_DEV void red_add(void* p, U128 v) {                                                                        \
      asm volatile("multimem.red.relaxed.sys.global.add.v4." TYPE " [%0], {%1, %2, %3, %4};"                             \
                   ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");                                         \
    }                                                                                                                    \
  };
TS_MULTIMEM(Bf16, ".acc::f32", "bf16x2")
TS_MULTIMEM(Fp16, ".acc::f32", "f16x2")
TS_MULTIMEM(Fp32, "", "f32")
#undef TS_MULTIMEM
template <class T> TS_DEV U128 multimem_load_add(const void* p) { return Multimem<T>::load_add(p); }
template <class T> TS_DEV void multimem_store(void* p, U128 v) { Multimem<T>::store(p, v); }
template <class T> TS_DEV void multimem_red_add(void* p, U128 v) { Multimem<T>::red_add(p, v); }
// Adds to the counter of every rank at once.
TS_DEV void multimem_signal_add(u32* p, u32 v) {
  asm volatile("multimem.red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// ---- functions -----------------------------------------------------------------------------------------------------
// Errors of the exponential grow with its argument, whose product with log2(e) is rounded: (2 + |x|) 2^-23, relative.
TS_DEV float exponential(float x) { return __expf(x); }
TS_DEV float error_function(float x) { return erff(x); }
TS_DEV float inverse_root(float x) { return rsqrtf(x); }
TS_DEV float quotient(float a, float b) { return __fdividef(a, b); }  // 0 where b is infinite

// ---- conversions ---------------------------------------------------------------------------------------------------
template <class T> TS_DEV u32 pack2(float low, float high);
template <> TS_DEV u32 pack2<Bf16>(float low, float high) {
  u32 v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
template <> TS_DEV u32 pack2<Fp16>(float low, float high) {
  u32 v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
template <class T> TS_DEV float unpack1(u16 v);
template <> TS_DEV float unpack1<Bf16>(u16 v) { return __uint_as_float((u32)v << 16); }
template <> TS_DEV float unpack1<Fp16>(u16 v) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v));
  return f;
}
TS_DEV u64 pair_bits(float low, float high) { return (u64)__float_as_uint(low) | (u64)__float_as_uint(high) << 32; }
template <class T> TS_DEV u16 pack1(float v) { return (u16)pack2<T>(v, 0.f); }

}  // namespace ts
