// The primitives of the device library on a CPU (the twin of include/tilescale/ptx.cuh), for kernel text compiled with
// TS_HOST. Declarations without any standard header, so that a candidate compiles in a tenth of a second; the bodies are
// in the runtime library (runtime.cpp), where every CUDA thread is a fiber.
// Every call may switch to other fibers. What is not modelled: weak memory and proxy fences.
#pragma once
#include "tilescale/abi.cuh"

#define TS_DEV inline
#define TS_KERNEL(name, threads) extern "C" void name
#define TS_GRID_CONST const
#define TS_SMEM(name) unsigned char* const name = ::ts::host::shared_memory()

namespace ts {

struct alignas(16) U128 {
  u32 x, y, z, w;
};

// Host form of a tensor map: up to three dimensions, the innermost first. 128 bytes like CUtensorMap.
// runtime/emulator.py packs the same layout.
struct alignas(64) TensorMap {
  u64 base;
  u64 dims[3];        // elements
  u64 strides[2];     // bytes between neighbours in dimensions 1 and 2
  u32 box[3];         // elements
  u32 element_bytes;
  u32 swizzle;        // 1: 128-byte swizzle
  u32 reserved0;
  u64 reserved[7];
};
static_assert(sizeof(TensorMap) == 128, "the size of CUtensorMap");

struct Bf16 {
  static constexpr u32 kFormat = 0;
};
struct Fp16 {
  static constexpr u32 kFormat = 1;
};
struct Fp32 {
  static constexpr u32 kFormat = 2;
};
struct E4m3 {
  static constexpr u32 kFormat = 3;
};
struct E5m2 {
  static constexpr u32 kFormat = 4;
};

template <class A, class B>
struct Same {
  static constexpr bool value = false;
};
template <class A>
struct Same<A, A> {
  static constexpr bool value = true;
};

// A matrix in shared memory, 128-byte swizzle.
struct Descriptor {
  u64 address;
  u32 slab_bytes;     // MN-major: distance of slabs of 64 columns
};

namespace host {
unsigned char* shared_memory();
void load(void* value, const void* p, u32 bytes);
void store(void* p, const void* value, u32 bytes);
void packet_half(u32* p, u32 data, u32 mark);
void packet_load(U128* value, const U128* p);
void bulk_wait(u32 groups);
void bulk_wait_read(u32 groups);
void copy_async_wait(u32 groups);
void load_matrices(u32* r, const u8* const* rows, u32 count, bool turned);
void wg_wait(u32 groups);
void wgmma(float* d, u32 n, bool transpose_a, bool transpose_b, u32 format, Descriptor a, Descriptor b, bool add);
void* cluster_at(const void* p, u32 rank, const char* what);
u16 round_fp16(float value);
float widen(u16 value, u32 format);
void bulk_reduce_add(void* global, const void* smem, u32 bytes, u32 format);
void tensor_store(const TensorMap* map, const void* smem, u32 dims, int x, int y, int z, int format);
void multimem_load_add(U128* value, const void* p, u32 format);
void multimem_store(void* p, const U128* value);
void multimem_red_add(void* p, const U128* value, u32 format);
void mma(float* d, const u32* a, const u32* b, u32 format, u32 rows, u32 columns);

inline u16 round_bf16(float value) {
  u32 bits;
  __builtin_memcpy(&bits, &value, 4);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
  return static_cast<u16>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
}  // namespace host

// Threads of a block.
__attribute__((const)) u32 thread();
__attribute__((const)) u32 block();
__attribute__((const)) u32 num_blocks();
void sync();
void named_barrier(u32 id, u32 threads);
void named_arrive(u32 id, u32 threads);
void warp_sync();
inline void grid_wait() {}
inline void grid_go() {}
template <int N>
inline void reg_inc() {}
template <int N>
inline void reg_dec() {}

// Global memory. Logged under the current step of the calling thread.
template <class T>
inline T load(const T* p) {
  T value;
  host::load(&value, p, sizeof(T));
  return value;
}
template <class T>
inline void store(T* p, T value) {
  host::store(p, &value, sizeof(T));
}
// Of bytes that have no multicast address.
template <class T>
inline T load_private(const T* p) {
  return load(p);
}
template <class T>
inline void store_private(T* p, T value) {
  store(p, value);
}
u32 atomic_add(u32* p, u32 value);
u32 load_acquire(const u32* p);
u32 load_relaxed(const u32* p);
void fence_system();
void signal_add(u32* p, u32 value);
void pause_until(const u32* p, u32 target);
u64 time_ns();
// A packet: each half of the data beside the mark, arriving by itself, at once or as late as the adversary likes.
inline void packet_store(U128* p, u64 data, u32 mark) {
  host::packet_half(&p->x, static_cast<u32>(data), mark);
  host::packet_half(&p->z, static_cast<u32>(data >> 32), mark);
}
inline U128 packet_load(const U128* p) {
  U128 found;
  host::packet_load(&found, p);
  return found;
}
void packet_pause(const U128* p, u32 mark);
// The emulator has no time: a link is free at once.
inline u64 link_reserve(u64*, u64) { return 0; }
inline void link_wait(u64) {}
inline void link_hold(u64*, u64) {}
inline void link_release(const u64*) {}

// Asynchronous copies and mbarriers.
void mb_init(u64* barrier, u32 arrivals);
void mb_fence_init();
void mb_expect(u64* barrier, u32 bytes);
void mb_arrive(u64* barrier);
bool mb_try_wait(u64* barrier, u32 parity);
inline void prefetch_map(const TensorMap*) {}
void tma_load_2d(void* smem, const TensorMap* map, u64* barrier, int x, int y, u64 keep = kKeepAsUsual);
void tma_load_3d(void* smem, const TensorMap* map, u64* barrier, int x, int y, int z, u64 keep = kKeepAsUsual);
void bulk_load(void* smem, const void* global, u32 bytes, u64* barrier);
void bulk_store(void* global, const void* smem, u32 bytes);
void bulk_commit();
template <int N>
inline void bulk_wait() {
  host::bulk_wait(N);
}
template <int N>
inline void bulk_wait_read() {
  host::bulk_wait_read(N);
}
inline void tma_store_2d(const TensorMap* map, const void* smem, int x, int y) { host::tensor_store(map, smem, 2, x, y, 0, -1); }
inline void tma_store_3d(const TensorMap* map, const void* smem, int x, int y, int z) {
  host::tensor_store(map, smem, 3, x, y, z, -1);
}
template <class T>
inline void tma_reduce_add_2d(const TensorMap* map, const void* smem, int x, int y) {
  host::tensor_store(map, smem, 2, x, y, 0, T::kFormat);
}
template <class T>
inline void tma_reduce_add_3d(const TensorMap* map, const void* smem, int x, int y, int z) {
  host::tensor_store(map, smem, 3, x, y, z, T::kFormat);
}
template <class T>
inline void bulk_reduce_add(void* global, const void* smem, u32 bytes) {
  host::bulk_reduce_add(global, smem, bytes, T::kFormat);
}
void copy_async(void* smem, const void* global, u32 bytes);
void copy_async_commit();
template <int N>
inline void copy_async_wait() {
  host::copy_async_wait(N);
}
void fence_async_smem();
void fence_async_global();

// Clusters.
u32 cluster_rank();
u32 cluster_size();
void cluster_sync();
void cluster_mb_arrive(u64* barrier, u32 rank);
template <class T>
inline const T* cluster_at(const T* p, u32 rank) {
  return static_cast<const T*>(host::cluster_at(p, rank, "reads"));
}
inline void load_fence() {}
template <int kCount>
inline void keep_sums(float (&)[kCount]) {}
template <class T>
inline void cluster_store(T* p, u32 rank, const T& value) {
  static_assert(sizeof(T) == 16, "16 bytes");
  *static_cast<T*>(host::cluster_at(p, rank, "writes to")) = value;
}
void tma_load_2d_multicast(void* smem, const TensorMap* map, u64* barrier, int x, int y, u16 mask);
void tma_load_3d_multicast(void* smem, const TensorMap* map, u64* barrier, int x, int y, int z, u16 mask);

// Multicast addresses: the same bytes of all ranks.
inline void fence_alias() {}
template <class T>
inline U128 multimem_load_add(const void* p) {
  U128 value;
  host::multimem_load_add(&value, p, T::kFormat);
  return value;
}
template <class T>
inline void multimem_store(void* p, U128 value) {
  host::multimem_store(p, &value);
}
template <class T>
inline void multimem_red_add(void* p, U128 value) {
  host::multimem_red_add(p, &value, T::kFormat);
}
void multimem_signal_add(u32* p, u32 value);

// ldmatrix and mma.sync: a warp of 32 threads works together.
template <int kCount>
inline void load_matrices(u32 (&r)[kCount][4], const u8* const (&rows)[kCount]) {
  host::load_matrices(r[0], rows, kCount, false);
}
template <int kCount>
inline void load_matrices_turned(u32 (&r)[kCount][4], const u8* const (&rows)[kCount]) {
  host::load_matrices(r[0], rows, kCount, true);
}
template <class T, int kRows, int kColumns>
inline void mma_tile(float (&d)[kRows][kColumns * 4], const u32 (&a)[kRows][4], const u32 (&b)[kColumns / 2][4]) {
  host::mma(d[0], a[0], b[0], T::kFormat, kRows, kColumns);
}
template <class T>
inline void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  host::mma(d, a, b, T::kFormat, 1, 1);
}

// The tensor core: a warpgroup of 128 threads works together.
inline Descriptor desc_k_major(const void* smem) {
  return {reinterpret_cast<u64>(smem), 0};
}
inline Descriptor desc_mn_major(const void* smem, u32 slab_bytes) {
  return {reinterpret_cast<u64>(smem), slab_bytes};
}
inline Descriptor advance(Descriptor d, u32 bytes) {
  return {d.address + bytes, d.slab_bytes};
}
void wg_fence();
void wg_commit();
template <int N>
inline void wg_wait() {
  host::wg_wait(N);
}
// d (64 x N, fp32 fragments) = a (64 x 16) b (16 x N), added to d where `add` is not 0; K is 32 for one-byte elements.
// These are added as the tensor core of sm_90a does, which keeps about 14 bits (see wgmma.hpp).
template <int N, bool kTransposeB, class T>
inline void wgmma(float (&d)[N / 2], Descriptor a, Descriptor b, u32 add) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "wgmma takes N in steps of 8 up to 256");
  static_assert(!kTransposeB || T::kFormat < Fp32::kFormat, "operands of one byte are K-major");
  host::wgmma(d, N, false, kTransposeB, T::kFormat, a, b, add != 0);
}
template <int N, bool kTransposeB, class T>
inline void wgmma_turned(float (&d)[N / 2], Descriptor a, Descriptor b, u32 add) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "wgmma takes N in steps of 8 up to 256");
  host::wgmma(d, N, true, kTransposeB, T::kFormat, a, b, add != 0);
}

// Functions.
float exponential(float x);
float error_function(float x);
float inverse_root(float x);
inline float quotient(float a, float b) { return a / b; }

// Round to nearest even.
template <class T>
inline u16 pack1(float value) {
  return T::kFormat == Bf16::kFormat ? host::round_bf16(value) : host::round_fp16(value);
}
template <class T>
inline float unpack1(u16 value) {
  return host::widen(value, T::kFormat);
}
template <class T>
inline u32 pack2(float low, float high) {
  return pack1<T>(low) | (static_cast<u32>(pack1<T>(high)) << 16);
}

inline u64 pair_bits(float low, float high) {
  u32 bits[2];
  __builtin_memcpy(bits, &low, 4);
  __builtin_memcpy(bits + 1, &high, 4);
  return bits[0] | static_cast<u64>(bits[1]) << 32;
}

// The log of the emulator. What boxes load belongs to the step that has begun, and to that of `step_shared` too. `log_wait`
// notes what a wait wants even where the counter is there already.
void step_begin(u32 id);
void step_end();
void step_shared(u32 id);
void log_wait(const u32* p, u32 target);

}  // namespace ts
