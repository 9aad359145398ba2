// Elements and units in bytes; how the blocks of a gang share bytes, and the threads of a block units.
#pragma once

namespace ts {

// Bytes of an element.
template <class T> struct BytesOf { static constexpr int value = 2; };
template <> struct BytesOf<Fp32> { static constexpr int value = 4; };

template <int kBytes> struct UnitOf;
template <> struct UnitOf<1> { typedef u8 type; };
template <> struct UnitOf<2> { typedef u16 type; };
template <> struct UnitOf<4> { typedef u32 type; };
template <> struct UnitOf<8> { typedef u64 type; };
template <> struct UnitOf<16> { typedef U128 type; };

struct Share { u64 begin, end; };  // units

TS_DEV Share share_of(u64 units, u32 index, u32 gang) {
  const u64 each = (units + gang - 1) / gang;
  const u64 begin = each * index < units ? each * index : units;
  return {begin, begin + each < units ? begin + each : units};
}

// In the scale model the last warp of a copying block keeps the links' time instead of copying.
template <class C> struct CopyThreads { static constexpr u32 value = C::link_clock ? C::threads - 32 : C::threads; };

}  // namespace ts
