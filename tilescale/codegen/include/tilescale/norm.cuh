// Sums over ranks whose epilogue needs whole rows: a block takes its share of the rows, one at a time. A row stays in
// shared memory in fp32 between adding it up and scaling it; its mean square is added up in a fixed order.
#pragma once

namespace ts {

constexpr u32 kNormMeet = 2;    // a named barrier
constexpr u32 kNormLanes = 32;  // threads that add up what all threads have

// In shared memory, behind the window of steps.
template <class C> struct NormRow {
  static constexpr u32 threads = CopyThreads<C>::value;
  float* squares;  // of every thread
  float* lanes;    // of every lane
  float* values;   // of the row

  TS_DEV explicit NormRow(u8* at) : squares((float*)at), lanes((float*)at + C::threads), values((float*)at + C::threads + kNormLanes) {}

  // The sum of what every thread brings, the same on all.
  TS_DEV float total(float own) const {
    squares[thread()] = own;
    named_barrier(kNormMeet, threads);
    if (thread() < kNormLanes) {
      float sum = 0.f;
      for (u32 i = thread(); i < threads; i += kNormLanes) sum += squares[i];
      lanes[thread()] = sum;
    }
    named_barrier(kNormMeet, threads);
    float sum = 0.f;
#pragma unroll
    for (u32 i = 0; i < kNormLanes; ++i) sum += lanes[i];
    return sum;
  }
};

// Unit `unit` of all sources, added up in their order.
template <class C> TS_DEV void add_sources(const Call& call, const Step* sources, u64 unit, float (&sum)[SumUnit<C>::kElements]) {
  typedef SumUnit<C> Unit;
  typedef typename Unit::Held Held;
  constexpr int kBatch = SumShape<C>::kBatch;
#pragma unroll
  for (int e = 0; e < Unit::kElements; ++e) sum[e] = 0.f;
  for (int s = 0; s < C::sum_sources; s += kBatch) {
    Held held[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (s + b < C::sum_sources) held[b] = load((const Held*)call.at(sources[s + b].source, sources[s + b].source_offset) + unit);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (s + b < C::sum_sources) Unit::add(sum, held[b]);
    }
  }
}

// One row: `row` of the step, to `to`; what the epilogue hands out besides to `aside`. The threads that copy.
template <class C>
TS_DEV void norm_row(const Results& results, const Step* sources, u8* to, u8* aside, u64 row, const NormRow<C>& shared) {
  typedef SumUnit<C> Unit;
  constexpr int kElements = Unit::kElements;
  const u32 units = results.columns / kElements;
  float squares = 0.f;
  for (u32 u = thread(); u < units; u += NormRow<C>::threads) {
    float sum[kElements];
    add_sources<C>(*results.call, sources, row * units + u, sum);
    const u32 column = u * kElements;
    EpilogueOf<C>::type::template apply<kElements>(
        *results.call, Place{results.first + row * results.columns + column, column, (u32)kElements}, sum);
    if constexpr (EpilogueOf<C>::aside) Unit::write(aside + (row * units + u) * Unit::kOutBytes, sum);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      squares += sum[e] * sum[e];
      shared.values[column + e] = sum[e];
    }
  }
  const float by = inverse_root(shared.total(squares) / (float)results.columns + kNormEpsilon);
  for (u32 u = thread(); u < units; u += NormRow<C>::threads) {  // the same as before: nobody waits
    float values[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) values[e] = shared.values[u * kElements + e];
    EpilogueOf<C>::type::template scale<kElements>(*results.call, u * kElements, by, values);
    Unit::write(to + (row * units + u) * Unit::kOutBytes, values);
  }
}

// A step's rows, shared evenly by the blocks. All threads of the block.
template <class C>
TS_DEV void norm_step(const Results& results, const Step& step, const Step* sources, const Block& me, u8* smem) {
  const u64 row_bytes = (u64)results.columns * BytesOf<typename C::Part>::value;
  const Share share = share_of(step.size / row_bytes, me.index, me.gang);
  const NormRow<C> shared(smem);
  if constexpr (C::link_clock) {
    if (thread() == NormRow<C>::threads) {
      for (int s = 0; s < C::sum_sources; ++s) walk_links(*results.call, sources[s], (share.end - share.begin) * row_bytes);
    }
  }
  u8* to = results.call->at(step.target, step.target_offset);
  u8* aside = EpilogueOf<C>::aside ? results.call->at(step.source, step.target_offset) : to;
  if (thread() < NormRow<C>::threads) {
    for (u64 row = share.begin; row < share.end; ++row) norm_row<C>(results, sources, to, aside, row, shared);
  }
  if constexpr (C::link_clock) sync();
}

}  // namespace ts
