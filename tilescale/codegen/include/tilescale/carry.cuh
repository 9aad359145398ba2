// Sums that go from rank to rank: the sum so far, in fp32, and a part of this rank become the sum that the next rank goes on
// with, stored there in fp32, or the complete one, rounded.
#pragma once

namespace ts {

// Texts of kernels without such sums have no constant `sum_carries`, so they stay what they were.
template <class C, class = void> struct Carries { static constexpr bool value = false; };
template <class C> struct Carries<C, typename Void<C::sum_carries>::type> {
  static constexpr bool value = C::sum_carries;
};

// A unit of a part and what it becomes.
template <class C> struct CarriedUnit {
  typedef SumUnit<C> Part;
  static constexpr int kElements = Part::kElements;
  static constexpr int kBytes = kElements * 4;                // of the sum so far
  static constexpr int kWord = kBytes < 16 ? kBytes : 16;
  typedef typename UnitOf<kWord>::type Word;

  static TS_DEV void read(float (&sum)[kElements], const u8* from) {
#pragma unroll
    for (int w = 0; w < kBytes / kWord; ++w) ((Word*)sum)[w] = load((const Word*)from + w);
  }

  static TS_DEV void write(u8* to, const float (&sum)[kElements]) {
#pragma unroll
    for (int w = 0; w < kBytes / kWord; ++w) store((Word*)to + w, ((const Word*)sum)[w]);
  }
};

// `kUnits` units from `first`, `stride` apart. `carried`: the sum so far, null where this part begins it; `complete`: it is
// rounded, behind the epilogues.
template <class C, int kUnits>
TS_DEV void carry_units(const Results& results, const u8* carried, const u8* part, u8* to, bool complete, u64 first, u64 stride) {
  typedef CarriedUnit<C> Unit;
  typedef typename Unit::Part Part;
  alignas(16) float sums[kUnits][Unit::kElements];
  typename Part::Held held[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) held[u] = load((const typename Part::Held*)part + first + u * stride);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (carried != nullptr) {
      Unit::read(sums[u], carried + (first + u * stride) * Unit::kBytes);
    } else {
#pragma unroll
      for (int e = 0; e < Unit::kElements; ++e) sums[u][e] = 0.f;
    }
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    Part::add(sums[u], held[u]);
    if (complete) {
      if constexpr (EpilogueOf<C>::any) finish_elements<C>(results, (first + u * stride) * Unit::kElements, sums[u]);
      Part::write(to + (first + u * stride) * Part::kOutBytes, sums[u]);
    } else {
      Unit::write(to + (first + u * stride) * Unit::kBytes, sums[u]);
    }
  }
}

// `sources`: the rows behind `step`, the sum so far before the part. All threads of the block.
template <class C> TS_DEV void carry_step(const Call& call, const Step& step, const Step* sources, const Block& me) {
  constexpr u32 kThreads = CopyThreads<C>::value;
  constexpr int kUnroll = 4;
  const bool begun = step.peer == kSumBegun, complete = step.peer == kSumCompleted;
  const Step& last = sources[step.rows - 1u];
  const u8* part = call.at(last.source, last.source_offset);
  const u8* carried = begun ? nullptr : call.at(sources[0].source, sources[0].source_offset);
  u8* to = call.at(step.target, step.target_offset);
  const Results results{&call, step.source_offset, call.args->n};
  const Share share = share_of(step.size / C::sum_unit, me.index, me.gang);
  if constexpr (C::link_clock) {
    if (thread() == kThreads) {
      const u64 each = complete ? (u64)CarriedUnit<C>::Part::kOutBytes : (u64)CarriedUnit<C>::kBytes;
      walk_links(call, step, (share.end - share.begin) * each);
    }
  }
  if (thread() < kThreads) {
    u64 i = share.begin + thread();
    for (; i + (kUnroll - 1) * (u64)kThreads < share.end; i += kUnroll * (u64)kThreads)
      carry_units<C, kUnroll>(results, carried, part, to, complete, i, kThreads);
    for (; i < share.end; i += kThreads) carry_units<C, 1>(results, carried, part, to, complete, i, kThreads);
  }
  if constexpr (C::link_clock) sync();
}

}  // namespace ts
