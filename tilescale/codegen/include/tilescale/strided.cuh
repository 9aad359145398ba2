// Copies of rows that stand at pitches: a box of one array becomes a box of another, possibly turned.
//
// The bytes of such a copy are counted in the order of its loops, row by row, and shared by blocks and threads in that
// order, as those of a contiguous copy are. An odometer says where a thread is on both sides: it is set by division once,
// and then steps by carrying.
#pragma once

namespace ts {

// Texts of kernels without such copies have no constant `copy_strided`, so they stay what they were.
template <class C, class = void> struct Strided { static constexpr bool value = false; };
template <class C> struct Strided<C, typename Void<C::copy_strided>::type> {
  static constexpr bool value = C::copy_strided;
};

// Loops of a copy, outermost first, in the last places; those before have one index. Rows count in units.
struct Loops {
  u64 row;
  u32 count[kMaxLoops];
  u64 source_pitch[kMaxLoops], target_pitch[kMaxLoops];
};

// `rows`: the loop rows behind a copy.
TS_DEV Loops loops_of(const Step* rows, u32 loops, u32 unit) {
  Loops found;
  found.row = rows[0].size / unit;
#pragma unroll
  for (u32 j = 0; j < kMaxLoops; ++j) {
    const u32 skipped = kMaxLoops - loops;
    found.count[j] = j < skipped ? 1u : rows[j - skipped].value;
    found.source_pitch[j] = j < skipped ? 0ull : rows[j - skipped].source_offset;
    found.target_pitch[j] = j < skipped ? 0ull : rows[j - skipped].target_offset;
  }
  return found;
}

// A place in a copy: an index for every loop, and a unit of the row.
struct Odometer {
  u64 column;
  u32 index[kMaxLoops];
};

TS_DEV Odometer odometer_at(const Loops& loops, u64 unit) {
  Odometer found;
  u64 rest = unit / loops.row;
  found.column = unit - rest * loops.row;
#pragma unroll
  for (u32 j = kMaxLoops; j-- > 0;) {
    const u64 more = rest / loops.count[j];
    found.index[j] = (u32)(rest - more * loops.count[j]);
    rest = more;
  }
  return found;
}

// The place `step` further.
TS_DEV void odometer_add(const Loops& loops, Odometer& at, const Odometer& step) {
  at.column += step.column;
  u32 carry = at.column >= loops.row ? 1u : 0u;
  if (carry) at.column -= loops.row;
#pragma unroll
  for (u32 j = kMaxLoops; j-- > 0;) {
    at.index[j] += step.index[j] + carry;
    carry = at.index[j] >= loops.count[j] ? 1u : 0u;
    if (carry) at.index[j] -= loops.count[j];
  }
}

TS_DEV u64 offset_at(const Odometer& at, const u64* pitches, u32 unit) {
  u64 found = at.column * unit;
#pragma unroll
  for (u32 j = 0; j < kMaxLoops; ++j) found += (u64)at.index[j] * pitches[j];
  return found;
}

// Loads and stores of `share` by the threads of a group, as in a contiguous copy.
template <class C> TS_DEV void strided_by_threads(const Loops& loops, const u8* from, u8* to, Share share) {
  typedef typename UnitOf<C::copy_unit>::type Unit;
  constexpr u32 kStride = Group<C>::threads;
  const Odometer step = odometer_at(loops, kStride);
  u64 i = share.begin + lane<C>();
  Odometer at = odometer_at(loops, i);
  for (; i + (C::copy_unroll - 1) * (u64)kStride < share.end; i += C::copy_unroll * (u64)kStride) {
    Unit held[C::copy_unroll];
    Unit* target[C::copy_unroll];
#pragma unroll
    for (int u = 0; u < C::copy_unroll; ++u) {
      held[u] = load((const Unit*)(from + offset_at(at, loops.source_pitch, C::copy_unit)));
      target[u] = (Unit*)(to + offset_at(at, loops.target_pitch, C::copy_unit));
      odometer_add(loops, at, step);
    }
#pragma unroll
    for (int u = 0; u < C::copy_unroll; ++u) store(target[u], held[u]);
  }
  for (; i < share.end; i += kStride) {
    store((Unit*)(to + offset_at(at, loops.target_pitch, C::copy_unit)),
          load((const Unit*)(from + offset_at(at, loops.source_pitch, C::copy_unit))));
    odometer_add(loops, at, step);
  }
}

// The contiguous pieces of `bytes` from unit `first` (of 16 bytes) on: `move(done, source, target, piece)` for each, with the
// bytes before it, its offsets on both sides, and its size.
template <class Move> TS_DEV void strided_pieces(const Loops& loops, u64 first, u32 bytes, Move move) {
  Odometer at = odometer_at(loops, first);
  Odometer next;
  next.column = 0;
#pragma unroll
  for (u32 j = 0; j < kMaxLoops; ++j) next.index[j] = j + 1 == kMaxLoops ? 1u : 0u;
  u32 done = 0;
  while (done < bytes) {
    const u64 left = (loops.row - at.column) * 16;
    const u32 piece = (u32)(left < bytes - done ? left : bytes - done);
    move(done, offset_at(at, loops.source_pitch, 16), offset_at(at, loops.target_pitch, 16), piece);
    done += piece;
    at.column = 0;
    odometer_add(loops, at, next);
  }
}

}  // namespace ts
