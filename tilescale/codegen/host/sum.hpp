// Elements: conversions, functions, and additions to memory.
#pragma once
#include <cmath>

#include "memory.hpp"

namespace ts {

float exponential(float x) { return std::exp(x); }
float error_function(float x) { return std::erf(x); }
float inverse_root(float x) { return 1.f / std::sqrt(x); }

}  // namespace ts

namespace ts::host {

enum Format : u32 { kBf16Format, kFp16Format, kFp32Format };

inline u32 format_bytes(u32 format) { return format == kFp32Format ? 4 : 2; }

inline float from_bf16(u16 value) {
  const u32 bits = static_cast<u32>(value) << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

inline float from_fp16(u16 value) {
  const u32 sign = static_cast<u32>(value & 0x8000u) << 16, mantissa = value & 0x3FFu, exponent = (value >> 10) & 31u;
  float f;
  if (exponent == 0) {
    f = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -f : f;
  }
  const u32 bits = sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | mantissa << 13;
  memcpy(&f, &bits, 4);
  return f;
}

inline float element_at(const u8* from, u32 format) {
  float f;
  u16 half;
  if (format == kFp32Format) {
    memcpy(&f, from, 4);
    return f;
  }
  memcpy(&half, from, 2);
  return format == kBf16Format ? from_bf16(half) : from_fp16(half);
}

inline void put_element(u8* to, float value, u32 format) {
  if (format == kFp32Format) {
    memcpy(to, &value, 4);
    return;
  }
  const u16 half = format == kBf16Format ? round_bf16(value) : round_fp16(value);
  memcpy(to, &half, 2);
}

// Adds elements to global memory, each rounded to its type; logged as written.
inline void add_global(StepLog* log, const Place* place, u64 address, const u8* from, u64 bytes, u32 format) {
  Memory& memory = find_memory(address, bytes, place, "adds");
  if (const void* hole = memchr(memory.shadow.data() + (address - memory.base), 0, bytes)) {
    machine->fault_memory = memory.index;
    machine->fault_offset = static_cast<u64>(static_cast<const u8*>(hole) - memory.shadow.data());
    fail(kUninitialised, place ? *place : here(), "adds to bytes that nothing has written");
  }
  std::vector<u8> sums(bytes);
  const u8* old = reinterpret_cast<const u8*>(address);
  for (u64 i = 0; i < bytes; i += format_bytes(format))
    put_element(&sums[i], element_at(old + i, format) + element_at(from + i, format), format);
  write_global(log, place, address, sums.data(), bytes);
}

// `format` -1: replace, else add.
inline void put_global(StepLog* log, const Place* place, u64 address, const u8* from, u64 bytes, int format) {
  if (format < 0) return write_global(log, place, address, from, bytes);
  add_global(log, place, address, from, bytes, static_cast<u32>(format));
}

}  // namespace ts::host
