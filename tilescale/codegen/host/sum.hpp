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

enum Format : u32 { kBf16Format, kFp16Format, kFp32Format, kE4m3Format, kE5m2Format };

inline u32 format_bytes(u32 format) { return format == kFp32Format ? 4 : format > kFp32Format ? 1 : 2; }

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

// fp8: e5m2 is the upper half of fp16; e4m3 has no infinity, and all ones are not a number.
inline float from_e4m3(u8 value) {
  const u32 magnitude = value & 0x7Fu;
  float f;
  if (magnitude < 8) {
    f = static_cast<float>(magnitude) * 0x1p-9f;
  } else {
    const u32 bits = magnitude == 0x7Fu ? 0x7FC00000u : ((magnitude >> 3) + 120) << 23 | (magnitude & 7u) << 20;
    memcpy(&f, &bits, 4);
  }
  return value & 0x80u ? -f : f;
}

inline float from_byte(u8 value, u32 format) {
  return format == kE4m3Format ? from_e4m3(value) : from_fp16(static_cast<u16>(value << 8));
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
