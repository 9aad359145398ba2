// Calls that are no kernels of ours: a library GEMM. And conversions.
#pragma once
#include "cluster.hpp"

namespace ts::host {

float widen(u16 value, u32 format) { return format == kBf16Format ? from_bf16(value) : from_fp16(value); }

// fp32 to fp16, nearest even.
u16 round_fp16(float value) {
  u32 bits;
  memcpy(&bits, &value, 4);
  const u32 sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7FFF;
  if (magnitude >= 0x477FF000u) return static_cast<u16>(sign | 0x7C00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {                                          // subnormal: units of 2^-24
    float positive;
    memcpy(&positive, &magnitude, 4);
    return static_cast<u16>(sign | static_cast<u32>(__builtin_nearbyintf(positive * 0x1p24f)));
  }
  const u32 rebased = magnitude - (112u << 23);
  return static_cast<u16>(sign | ((rebased + 0xFFFu + ((rebased >> 13) & 1u)) >> 13));
}

inline std::vector<float> read_matrix(u64 address, u64 count, u32 format, const Place& place, StepLog* log) {
  std::vector<u8> raw(count * format_bytes(format));
  read_global(log, &place, address, raw.data(), raw.size());
  std::vector<float> values(count);
  if (format == kFp32Format) {
    memcpy(values.data(), raw.data(), raw.size());
  } else {
    for (u64 i = 0; i < count; ++i) decode(reinterpret_cast<const u16*>(raw.data() + i * format_bytes(format)), &values[i], 1, format, 1);
  }
  return values;
}

TS_VECTOR void add_scaled(float* to, const float* from, float factor, u32 count) {
  for (u32 i = 0; i < count; ++i) to[i] += factor * from[i];
}

// A matrix of columns of `rows` elements, as rows.
inline void turn(std::vector<float>& values, u64 rows, u64 columns) {
  std::vector<float> turned(values.size());
  for (u64 j = 0; j < columns; ++j)
    for (u64 i = 0; i < rows; ++i) turned[i * columns + j] = values[j * rows + i];
  values.swap(turned);
}

// out (m x n) = a (m x k) b, at one moment. b is k x n in row-major order, or n x k with `b_transposed`; a likewise.
void run_library(const LibraryGemm& g, const Place& place, StepLog* log) {
  std::vector<float> a = read_matrix(g.a, static_cast<u64>(g.m) * g.k, g.in_format, place, log);
  std::vector<float> b = read_matrix(g.b, static_cast<u64>(g.k) * g.n, g.in_format, place, log);
  if (g.a_transposed) turn(a, g.m, g.k);
  if (g.b_transposed) turn(b, g.k, g.n);
  std::vector<float> sums(static_cast<u64>(g.m) * g.n, 0.f);
  for (u64 i = 0; i < g.m; ++i)
    for (u64 k = 0; k < g.k; ++k) add_scaled(&sums[i * g.n], &b[k * g.n], a[i * g.k + k], g.n);
  if (g.out_format == kFp32Format) return write_global(log, &place, g.out, sums.data(), sums.size() * 4);
  std::vector<u16> rounded(sums.size());
  for (u64 i = 0; i < sums.size(); ++i)
    rounded[i] = g.out_format == kBf16Format ? round_bf16(sums[i]) : round_fp16(sums[i]);
  write_global(log, &place, g.out, rounded.data(), rounded.size() * 2);
}

}  // namespace ts::host
