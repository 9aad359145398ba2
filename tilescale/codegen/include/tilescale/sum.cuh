// Sums over ranks: each block adds its share of the elements, in fp32, in the order of the sources, and rounds once.
#pragma once

namespace ts {

// A unit of a source as numbers, and numbers as a unit of the target.
template <class C> struct SumUnit {
  typedef typename UnitOf<C::sum_unit>::type Held;
  static constexpr int kElements = C::sum_unit / BytesOf<typename C::Part>::value;
  static constexpr int kOutBytes = kElements * BytesOf<typename C::Out>::value;

  static TS_DEV void add(float (&sum)[kElements], Held held) {
    if constexpr (Same<typename C::Part, Fp32>::value) {
      const float* values = (const float*)&held;
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum[e] += values[e];
    } else {
      const u16* values = (const u16*)&held;
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum[e] += unpack1<typename C::Part>(values[e]);
    }
  }

  // The numbers as the target holds them; `bytes` is aligned to 16.
  static TS_DEV void round(u8* bytes, const float (&sum)[kElements]) {
    if constexpr (Same<typename C::Out, Fp32>::value) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) ((float*)bytes)[e] = sum[e];
    } else if constexpr (kElements % 2 == 0) {
#pragma unroll
      for (int e = 0; e < kElements / 2; ++e) ((u32*)bytes)[e] = pack2<typename C::Out>(sum[2 * e], sum[2 * e + 1]);
    } else {
      ((u16*)bytes)[0] = pack1<typename C::Out>(sum[0]);
    }
  }

  static TS_DEV void write(u8* to, const float (&sum)[kElements]) {
    constexpr int kStore = kOutBytes < 16 ? kOutBytes : 16;
    typedef typename UnitOf<kStore>::type Word;
    alignas(16) u8 bytes[kOutBytes];
    round(bytes, sum);
#pragma unroll
    for (int w = 0; w < kOutBytes / kStore; ++w) store((Word*)to + w, ((const Word*)bytes)[w]);
  }
};

// Enough loads in flight a thread to fill the memory's latency, whatever the number of sources.
constexpr int kSumLoads = 8;

template <class C> struct SumShape {
  static constexpr int kBatch = C::sum_sources < kSumLoads ? C::sum_sources : kSumLoads;  // sources loaded together
  static constexpr int kUnroll = kSumLoads / kBatch;                                      // units loaded together
};

// `count` units from `first`, `stride` apart: all sources of each.
template <class C, int kUnits>
TS_DEV void sum_units(const Results& results, const Step* sources, u8* to, u64 first, u64 stride) {
  const Call& call = *results.call;
  typedef SumUnit<C> Unit;
  typedef typename Unit::Held Held;
  constexpr int kBatch = SumShape<C>::kBatch;
  float sums[kUnits][Unit::kElements];
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
#pragma unroll
    for (int e = 0; e < Unit::kElements; ++e) sums[u][e] = 0.f;
  for (int s = 0; s < C::sum_sources; s += kBatch) {
    Held held[kBatch][kUnits];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (s + b < C::sum_sources) {
        const Held* from = (const Held*)call.at(sources[s + b].source, sources[s + b].source_offset);
#pragma unroll
        for (int u = 0; u < kUnits; ++u) held[b][u] = load(from + first + u * stride);
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (s + b < C::sum_sources) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) Unit::add(sums[u], held[b][u]);
      }
    }
  }
  if constexpr (EpilogueOf<C>::any) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) finish_elements<C>(results, (first + u * stride) * Unit::kElements, sums[u]);
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) Unit::write(to + (first + u * stride) * Unit::kOutBytes, sums[u]);
}

// `sources`: the rows behind `step`, one a source. All threads of the block.
template <class C> TS_DEV void sum_step(const Call& call, const Step& step, const Step* sources, const Block& me) {
  u8* to = call.at(step.target, step.target_offset);
  const Results results{&call, step.source_offset, call.args->n};
  const Share share = share_of(step.size / C::sum_unit, me.index, me.gang);
  constexpr u32 kThreads = CopyThreads<C>::value;
  constexpr int kUnroll = SumShape<C>::kUnroll;
  if constexpr (C::link_clock) {
    if (thread() == kThreads) {
      for (int s = 0; s < C::sum_sources; ++s) walk_links(call, sources[s], (share.end - share.begin) * C::sum_unit);
    }
  }
  if (thread() < kThreads) {
    u64 i = share.begin + thread();
    for (; i + (kUnroll - 1) * (u64)kThreads < share.end; i += kUnroll * (u64)kThreads)
      sum_units<C, kUnroll>(results, sources, to, i, kThreads);
    for (; i < share.end; i += kThreads) sum_units<C, 1>(results, sources, to, i, kThreads);
  }
  if constexpr (C::link_clock) sync();
}

}  // namespace ts
