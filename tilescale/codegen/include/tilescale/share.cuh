// Elements and units in bytes; how the blocks of a gang share bytes, and the threads of a block units.
#pragma once

namespace ts {

// Bytes of an element.
template <class T> struct BytesOf { static constexpr int value = 2; };
template <> struct BytesOf<Fp32> { static constexpr int value = 4; };
template <> struct BytesOf<E4m3> { static constexpr int value = 1; };
template <> struct BytesOf<E5m2> { static constexpr int value = 1; };

// Operands in shared memory: rows of 128 bytes along K, of which an instruction takes 32. Sums of one-byte operands keep
// about 14 bits in the tensor core of sm_90a, so they are moved on to fp32 every `promote` elements of the contraction.
template <class C> struct Operands {
  static constexpr int bytes = BytesOf<typename C::Element>::value;
  static constexpr int wide = 128 / bytes;                  // elements of a row
  static constexpr int slices = C::block_k * bytes / 32;    // instructions of a stage
  static constexpr bool promotes = bytes == 1;
  static constexpr int promote = 128;
};

template <int kBytes> struct UnitOf;
template <> struct UnitOf<1> { typedef u8 type; };
template <> struct UnitOf<2> { typedef u16 type; };
template <> struct UnitOf<4> { typedef u32 type; };
template <> struct UnitOf<8> { typedef u64 type; };
template <> struct UnitOf<16> { typedef U128 type; };

struct Share { u64 begin, end; };  // units

// Dividing numbers of 64 bits takes as long as a look at memory, so those that fit are divided as 32.
TS_DEV Share share_of(u64 units, u32 index, u32 gang) {
  const u64 most = units + gang - 1;
  const u64 each = most >> 32 ? most / gang : (u32)most / gang;
  const u64 begin = each * index < units ? each * index : units;
  return {begin, begin + each < units ? begin + each : units};
}

// In the scale model the last warp of a copying block keeps the links' time instead of copying.
template <class C> struct CopyThreads { static constexpr u32 value = C::link_clock ? C::threads - 32 : C::threads; };

template <bool> struct Void { typedef void type; };

// Copying threads that take neighbouring units: all of the block, or where the text has a constant `copy_group`, so many.
// (Kernels of one warp have no copying threads in the scale model.)
template <class C, class = void> struct Group {
  static constexpr u32 threads = CopyThreads<C>::value > 0u ? CopyThreads<C>::value : 1u;
};
template <class C> struct Group<C, typename Void<(C::copy_group > 0)>::type> {
  static constexpr u32 threads = C::copy_group;
};

// The number of this thread in its group.
template <class C> TS_DEV u32 lane() {
  if constexpr (Group<C>::threads == CopyThreads<C>::value) {
    return thread();
  } else {
    return thread() % Group<C>::threads;
  }
}

// Of a block's share, that of the group of this thread; nothing for threads that do not fill a group.
template <class C> TS_DEV Share share_of_group(Share share) {
  constexpr u32 kGroups = CopyThreads<C>::value / Group<C>::threads;
  if constexpr (kGroups == 1u) return share;
  const u32 group = thread() / Group<C>::threads;
  if (group >= kGroups) return {share.end, share.end};
  const Share part = share_of(share.end - share.begin, group, kGroups);
  return {share.begin + part.begin, share.begin + part.end};
}

}  // namespace ts
