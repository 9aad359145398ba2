// The tensor core. A group of wgmma is issued by the 128 threads of a warpgroup together and executed as one: the operands
// are read when it runs, at the latest in the wait.
#pragma once
#include "async.hpp"

#if defined(__x86_64__) && defined(__GLIBC__)
#define TS_VECTOR __attribute__((target_clones("avx2", "default")))
#else
#define TS_VECTOR
#endif

namespace ts::host {

typedef float Lanes __attribute__((vector_size(32), aligned(4), may_alias));

inline void decode(const u16* from, float* to, u32 count, u32 format, u32 stride) {
  if (format > kFp32Format) {
    const u8* bytes = reinterpret_cast<const u8*>(from);
    for (u32 i = 0; i < count; ++i) to[i * stride] = from_byte(bytes[i], format);
    return;
  }
  for (u32 i = 0; i < count; ++i) to[i * stride] = format == Bf16::kFormat ? from_bf16(from[i]) : from_fp16(from[i]);
}

// Elements of K that an instruction takes: 32 bytes.
inline u32 contracted(u32 format) { return 32 / format_bytes(format); }

inline const u16* unswizzle(u64 address) { return reinterpret_cast<const u16*>(address ^ (((address >> 7) & 7) << 4)); }

// Rows of 128 bytes along K: element (row, k) of a slice of 32 bytes. `to[row * row_stride + k * k_stride]`.
inline void decode_k_major(u64 base, u32 rows, u32 format, float* to, u32 row_stride, u32 k_stride) {
  for (u32 r = 0; r < rows; ++r)
    for (u32 half = 0; half < 2; ++half)
      decode(unswizzle(base + r * 128ull + half * 16), to + r * row_stride + half * (contracted(format) / 2) * k_stride,
             contracted(format) / 2, format, k_stride);
}

// Slabs of 64 columns, each k a row of 128 bytes. `to[k * 256 + column]`.
inline void decode_mn_major(u64 base, u32 slab_bytes, u32 n, u32 format, float* to) {
  for (u32 k = 0; k < 16; ++k)
    for (u32 c = 0; c < n; c += 8)
      decode(unswizzle(base + c / 64 * static_cast<u64>(slab_bytes) + k * 128ull + c % 64 * 2), to + k * 256 + c, 8, format, 1);
}

// One slab of 64 rows, each k a row of 128 bytes: `to[row * 16 + k]`.
inline void decode_turned(u64 base, u32 format, float* to) {
  for (u32 k = 0; k < 16; ++k)
    for (u32 r = 0; r < 64; r += 8) decode(unswizzle(base + k * 128ull + r * 2), to + r * 16 + k, 8, format, 16);
}

// c (64 x n, rows of 256) += a (64 x 16) b (16 x n, rows of 256), in fp32, k ascending.
TS_VECTOR void multiply(const float* a, const float* b, float* c, u32 n) {
  u32 column = 0;
  for (; column + 32 <= n; column += 32) {
    for (u32 row = 0; row < 64; row += 2) {
      float* c0 = c + row * 256 + column;
      float* c1 = c0 + 256;
      Lanes x0 = *(Lanes*)c0, x1 = *(Lanes*)(c0 + 8), x2 = *(Lanes*)(c0 + 16), x3 = *(Lanes*)(c0 + 24);
      Lanes y0 = *(Lanes*)c1, y1 = *(Lanes*)(c1 + 8), y2 = *(Lanes*)(c1 + 16), y3 = *(Lanes*)(c1 + 24);
      for (u32 k = 0; k < 16; ++k) {
        const float p = a[row * 16 + k], q = a[row * 16 + 16 + k];
        const float* s = b + k * 256 + column;
        const Lanes b0 = *(const Lanes*)s, b1 = *(const Lanes*)(s + 8), b2 = *(const Lanes*)(s + 16), b3 = *(const Lanes*)(s + 24);
        x0 += p * b0, x1 += p * b1, x2 += p * b2, x3 += p * b3;
        y0 += q * b0, y1 += q * b1, y2 += q * b2, y3 += q * b3;
      }
      *(Lanes*)c0 = x0, *(Lanes*)(c0 + 8) = x1, *(Lanes*)(c0 + 16) = x2, *(Lanes*)(c0 + 24) = x3;
      *(Lanes*)c1 = y0, *(Lanes*)(c1 + 8) = y1, *(Lanes*)(c1 + 16) = y2, *(Lanes*)(c1 + 24) = y3;
    }
  }
  for (; column < n; column += 8) {
    for (u32 row = 0; row < 64; ++row) {
      Lanes x = *(Lanes*)(c + row * 256 + column);
      for (u32 k = 0; k < 16; ++k) x += a[row * 16 + k] * *(const Lanes*)(b + k * 256 + column);
      *(Lanes*)(c + row * 256 + column) = x;
    }
  }
}

// The same for one-byte operands, as the tensor core of sm_90a adds (published measurements of the instruction say so): the
// products of an instruction and the sum so far are aligned to the largest of them, what lies below 13 bits of its fraction
// is dropped, and the new sum keeps as many.
TS_VECTOR void multiply_bytes(const float* a, const float* b, float* c, u32 n) {
  typedef int Ints __attribute__((vector_size(32), may_alias));
  constexpr int kExponent = 0x7F800000, kFraction = 13 << 23, kKept = ~0x3FF;
  for (u32 row = 0; row < 64; ++row) {
    for (u32 column = 0; column < n; column += 8) {
      Lanes sum = *(Lanes*)(c + row * 256 + column), products[32];
      Ints largest = (Ints)sum & kExponent;
      for (u32 k = 0; k < 32; ++k) {
        products[k] = a[row * 32 + k] * *(const Lanes*)(b + k * 256 + column);
        const Ints exponent = (Ints)products[k] & kExponent;
        largest = largest > exponent ? largest : exponent;
      }
      largest = largest > (30 << 23) ? largest : Ints{} + (30 << 23);
      const Lanes up = (Lanes)((254 << 23) - largest + kFraction), down = (Lanes)(largest - kFraction);
      Ints total = __builtin_convertvector(sum * up, Ints);
      for (u32 k = 0; k < 32; ++k) total += __builtin_convertvector(products[k] * up, Ints);
      *(Lanes*)(c + row * 256 + column) = (Lanes)((Ints)(__builtin_convertvector(total, Lanes) * down) & kKept);
    }
  }
}

// Thread t holds rows t / 32 * 16 + t % 32 / 4 (+ 8), columns 8 j + t % 4 * 2 (+ 1) in d[4 j + 2 (row + 8) + (column + 1)].
template <bool kGather>
inline void fragments(const Wgmma& item, float* c) {
  for (u32 t = 0; t < 128; ++t) {
    float* d = item.d[t];
    float* top = c + (t / 32 * 16 + t % 32 / 4) * 256 + t % 4 * 2;
    float* low = top + 8 * 256;
    for (u32 j = 0; j < item.n / 8; ++j) {
      if (kGather) {
        top[8 * j] = d[4 * j], top[8 * j + 1] = d[4 * j + 1], low[8 * j] = d[4 * j + 2], low[8 * j + 1] = d[4 * j + 3];
      } else {
        d[4 * j] = top[8 * j], d[4 * j + 1] = top[8 * j + 1], d[4 * j + 2] = low[8 * j], d[4 * j + 3] = low[8 * j + 1];
      }
    }
  }
}

inline void run_group(WgmmaGroup& group) {
  alignas(32) static float a[64 * 32], b[32 * 256], c[64 * 256];
  for (size_t i = 0; i < group.items.size(); ++i) {
    const Wgmma& item = group.items[i];
    auto same = [&](const Wgmma& other) { return other.n == item.n && !memcmp(other.d, item.d, sizeof item.d); };
    if (!item.add) {
      memset(c, 0, sizeof c);
    } else if (i == 0 || !same(group.items[i - 1])) {
      fragments<true>(item, c);
    }
    const u32 depth = contracted(item.format);
    if (item.transpose_a) {
      decode_turned(item.a, item.format, a);
    } else {
      decode_k_major(item.a, 64, item.format, a, depth, 1);
    }
    if (item.transpose_b) {
      decode_mn_major(item.b, item.slab_bytes, item.n, item.format, b);
    } else {
      decode_k_major(item.b, item.n, item.format, b, 1, 256);
    }
    if (depth == 32) {
      multiply_bytes(a, b, c, item.n);
    } else {
      multiply(a, b, c, item.n);
    }
    if (i + 1 == group.items.size() || !same(group.items[i + 1])) fragments<false>(item, c);
  }
}

void run_group(Warpgroup* warpgroup) {
  run_group(warpgroup->groups.front());
  warpgroup->groups.pop_front();
  ++warpgroup->done;
  wake_all(warpgroup->waiters);
}

inline WgmmaGroup& open_group(Fiber* fiber, Warpgroup** warpgroup) {
  *warpgroup = &fiber->block->warpgroups[fiber->thread / 128];
  auto& groups = (*warpgroup)->groups;
  const u64 index = fiber->wg_committed - (*warpgroup)->done;
  while (groups.size() <= index) groups.emplace_back();
  return groups[index];
}

inline void check_operand(const Descriptor& d, u64 bytes, const char* name) {
  check_aligned(d.address, 16, "the address of a wgmma operand");
  check_shared(machine->me->block, here(), d.address, bytes, name);
}

void wgmma(float* d, u32 n, bool transpose_a, bool transpose_b, u32 format, Descriptor a, Descriptor b, bool add) {
  Fiber* fiber = machine->me;
  Warpgroup* warpgroup;
  WgmmaGroup& group = open_group(fiber, &warpgroup);
  const u32 index = fiber->wg_issued++, lane = fiber->thread % 128;
  if (index == group.items.size()) {
    if (fiber->block->node->threads < fiber->thread / 128 * 128 + 128)
      fail(kCollective, here(), "wgmma needs a whole warpgroup of 128 threads");
    check_operand(a, transpose_a ? 2048 : 63 * 128 + 32, "wgmma reads operand A of");
    check_operand(b, transpose_b ? (n - 1) / 64 * static_cast<u64>(b.slab_bytes) + 2048 : (n - 1) * 128 + 32,
                  "wgmma reads operand B of");
    group.items.push_back({a.address, b.address, b.slab_bytes, n, format, 0, transpose_a, transpose_b, add, {}});
  }
  Wgmma& item = group.items[index];
  if (item.a != a.address || item.b != b.address || item.n != n || item.transpose_a != transpose_a || item.transpose_b != transpose_b || item.format != format ||
      item.add != add)
    fail(kCollective, here(), "the threads of the warpgroup issue different wgmma operations (number %u of the group)", index);
  item.d[lane] = d;
  ++item.seen;
}

void wg_wait(u32 youngest) {
  Fiber* fiber = machine->me;
  Warpgroup& warpgroup = fiber->block->warpgroups[fiber->thread / 128];
  const u64 groups = fiber->wg_committed > youngest ? fiber->wg_committed - youngest : 0;
  while (warpgroup.done < groups) {
    warpgroup.waiters.push_back(fiber);
    block_fiber(kTensorCore, groups, groups);
  }
}

}  // namespace ts::host

namespace ts {

void wg_fence() {}

void wg_commit() {
  using namespace host;
  Fiber* fiber = machine->me;
  Warpgroup* warpgroup;
  WgmmaGroup& group = open_group(fiber, &warpgroup);
  if (group.items.size() != fiber->wg_issued && group.committed)
    fail(kCollective, here(), "the threads of the warpgroup commit groups of different sizes");
  ++fiber->wg_committed;
  fiber->wg_issued = 0;
  if (++group.committed < 128) return;
  for (const Wgmma& item : group.items)
    if (item.seen != 128) fail(kCollective, here(), "only %u of 128 threads issued a wgmma of the group", item.seen);
  Op* op = new_op(kMultiply);
  op->warpgroup = warpgroup;
  start_op(op, kMultiplies);
}

}  // namespace ts
