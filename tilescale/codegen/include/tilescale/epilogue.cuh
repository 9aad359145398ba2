// Epilogues: what is done to results while they are still in fp32. A Config names those of its results, in their order:
//
//   using Epilogue = ts::Then<ts::Bias<0, ts::Bf16>, ts::Silu>;
//
// Extra operands have the first pointer slots. Each epilogue takes a few neighbouring results of a row at a time.
#pragma once

namespace ts {

// Results of one row: the first one's column, and its place in tensors of the shape of the output. Those from `live` on
// are behind the end of the row. `numbers`: where the row of numbers begins that has one a column.
struct Place {
  u64 element;
  u32 column, live;
  u64 numbers = 0;
};

// `kCount` elements from index `first`; one load where they are aligned.
template <class T, int kCount> TS_DEV void load_values(const u8* base, u64 first, u32 live, float (&values)[kCount]) {
  constexpr int kBytes = kCount * BytesOf<T>::value, kWord = kBytes < 16 ? kBytes : 16;
  typedef typename UnitOf<BytesOf<T>::value>::type Single;
  alignas(16) u8 bytes[kBytes];
  const u8* from = base + first * BytesOf<T>::value;
  if (live >= (u32)kCount && (u64)from % kWord == 0u) {
#pragma unroll
    for (int w = 0; w < kBytes / kWord; ++w)
      ((typename UnitOf<kWord>::type*)bytes)[w] = load((const typename UnitOf<kWord>::type*)from + w);
  } else {
#pragma unroll
    for (int e = 0; e < kCount; ++e) ((Single*)bytes)[e] = (u32)e < live ? load((const Single*)from + e) : (Single)0;
  }
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    if constexpr (Same<T, Fp32>::value) {
      values[e] = ((const float*)bytes)[e];
    } else {
      values[e] = unpack1<T>(((const u16*)bytes)[e]);
    }
  }
}

// A number a column is added.
template <int kSlot, class T> struct Bias {
  static constexpr bool halves = false, whole_rows = false, aside = false;
  template <int kCount> static TS_DEV void apply(const Call& call, Place at, float (&values)[kCount]) {
    float added[kCount];
    load_values<T, kCount>((const u8*)call.args->base[kSlot], at.numbers + at.column, at.live, added);
#pragma unroll
    for (int e = 0; e < kCount; ++e) values[e] += added[e];
  }
};

// A tensor of the shape of the output is added.
template <int kSlot, class T> struct Addend {
  static constexpr bool halves = false, whole_rows = false, aside = false;
  template <int kCount> static TS_DEV void apply(const Call& call, Place at, float (&values)[kCount]) {
    float added[kCount];
    load_values<T, kCount>((const u8*)call.args->base[kSlot], at.element, at.live, added);
#pragma unroll
    for (int e = 0; e < kCount; ++e) values[e] += added[e];
  }
};

TS_DEV float silu(float x) { return quotient(x, 1.f + exponential(-x)); }

struct Silu {
  static constexpr bool halves = false, whole_rows = false, aside = false;
  template <int kCount> static TS_DEV void apply(const Call&, Place, float (&values)[kCount]) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) values[e] = silu(values[e]);
  }
};

struct Gelu {
  static constexpr bool halves = false, whole_rows = false, aside = false;
  template <int kCount> static TS_DEV void apply(const Call&, Place, float (&values)[kCount]) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) values[e] = 0.5f * values[e] * (1.f + error_function(values[e] * 0.70710678f));
  }
};

// The columns of B are those of gate and of up in turn, eight of each: silu(gate) * up, in half as many columns. What it
// takes are two neighbouring blocks of columns, which a thread holds both; see halve_tile and store_finished.
struct Swiglu {
  static constexpr bool halves = true, whole_rows = false, aside = false;
  template <int kCount> static TS_DEV void apply(const Call&, Place, float (&)[kCount]) {}
};
constexpr u32 kHalfColumns = 8;

// A tensor of the shape of the output is added, and each row divided by the root of its mean square, times a number a
// column. Adding is elementwise; the rest needs the row, and is norm.cuh's.
constexpr float kNormEpsilon = 0x1p-20f;  // spec/epilogues/_norm.py
template <int kResidual, int kGamma, class T> struct ResidualRmsnorm {
  static constexpr bool halves = false, whole_rows = true, aside = false;
  template <int kCount> static TS_DEV void apply(const Call& call, Place at, float (&values)[kCount]) {
    Addend<kResidual, T>::template apply<kCount>(call, at, values);
  }
  template <int kCount> static TS_DEV void scale(const Call& call, u32 column, float by, float (&values)[kCount]) {
    float gamma[kCount];
    load_values<T, kCount>((const u8*)call.args->base[kGamma], column, (u32)kCount, gamma);
#pragma unroll
    for (int e = 0; e < kCount; ++e) values[e] = values[e] * by * gamma[e];
  }
};

// The same, and x + residual is stored before it is scaled, rounded on its own.
template <int kResidual, int kGamma, class T> struct AddRmsnorm : ResidualRmsnorm<kResidual, kGamma, T> {
  static constexpr bool aside = true;
};

// One after the other.
template <class... Each> struct Then {
  static constexpr bool halves = (Each::halves || ...), whole_rows = (Each::whole_rows || ...);
  static constexpr bool aside = (Each::aside || ...);
  template <int kCount> static TS_DEV void apply(const Call& call, Place at, float (&values)[kCount]) {
    (Each::template apply<kCount>(call, at, values), ...);
  }
  template <int kCount> static TS_DEV void scale(const Call& call, u32 column, float by, float (&values)[kCount]) {
    (Each::template scale<kCount>(call, column, by, values), ...);
  }
};

// Texts of kernels without epilogues name none, so they stay what they were.
template <class> struct IsType { typedef void type; };
template <class C, class = void> struct EpilogueOf {
  static constexpr bool any = false, halves = false, whole_rows = false, aside = false;
  typedef Then<> type;
};
template <class C> struct EpilogueOf<C, typename IsType<typename C::Epilogue>::type> {
  static constexpr bool any = true, halves = C::Epilogue::halves, whole_rows = C::Epilogue::whole_rows;
  static constexpr bool aside = C::Epilogue::aside;
  typedef typename C::Epilogue type;
};

// Where the results of a step lie in tensors of the shape of the output: their first element, and the columns of a row.
// `numbers`: where their row of numbers begins, where an expert each has one.
struct Results {
  const Call* call;
  u64 first;
  u32 columns;
  u64 numbers = 0;
};

// Neighbouring results of row `row` from `column` on.
template <class C, int kCount> TS_DEV void finish_results(const Results& results, u32 row, u32 column, float (&values)[kCount]) {
  if (column >= results.columns) return;
  const Place at{results.first + (u64)row * results.columns + column, column, results.columns - column,
                 results.numbers};
  EpilogueOf<C>::type::template apply<kCount>(*results.call, at, values);
}

// The same for results that are counted through, whatever row they are in: `element` from the first of all.
template <class C, int kCount> TS_DEV void finish_elements(const Results& results, u64 element, float (&values)[kCount]) {
  const u64 first = results.first + element;
  const u32 column = (u32)(first % results.columns);
  if (results.columns - column >= (u32)kCount) {
    EpilogueOf<C>::type::template apply<kCount>(*results.call, Place{first, column, (u32)kCount}, values);
    return;
  }
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    float one[1] = {values[e]};
    EpilogueOf<C>::type::template apply<1>(*results.call, Place{first + e, (u32)((first + e) % results.columns), 1u}, one);
    values[e] = one[0];
  }
}

constexpr int kLoadsAhead = 4;  // pairs of extra operands in flight: more would take the registers that sums are in

// The accumulators of 64 rows of a tile (see store_registers for which thread holds what).
template <class C>
TS_DEV void finish_tile(const Results& results, u32 row, u32 rows, u32 column, float (&acc)[C::block_n / 2]) {
  const u32 t = thread() % 128, first = row + t / 32 * 16 + t % 32 / 4;
  keep_sums(acc);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (first + half * 8 < rows) {
#pragma unroll
      for (int j = 0; j < C::block_n / 8; ++j) {
        if (j % kLoadsAhead == 0) load_fence();
        float pair[2] = {acc[4 * j + 2 * half], acc[4 * j + 2 * half + 1]};
        finish_results<C, 2>(results, first + half * 8, column + j * 8 + t % 4 * 2, pair);
        acc[4 * j + 2 * half] = pair[0];
        acc[4 * j + 2 * half + 1] = pair[1];
      }
    }
  }
}

// What is stored of a tile: all of its columns, or half.
template <class C> struct Halved : C { static constexpr int block_n = C::block_n / 2; };
template <class C, bool kHalves = EpilogueOf<C>::halves> struct StoredAs { typedef C type; };
template <class C> struct StoredAs<C, true> { typedef Halved<C> type; };
template <class C> TS_DEV u32 stored_columns(u32 n) { return EpilogueOf<C>::halves ? n / 2u : n; }

// Accumulators of gate and up to those of what is stored, which are laid out as those of a tile of half the columns.
template <class C> TS_DEV void halve_tile(const float (&acc)[C::block_n / 2], float (&halved)[C::block_n / 4]) {
#pragma unroll
  for (int j = 0; j < C::block_n / 16; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) halved[4 * j + e] = silu(acc[8 * j + e]) * acc[8 * j + 4 + e];
  }
}

}  // namespace ts
