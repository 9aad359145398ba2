// Scales of one-byte operands: fp32, scale_a in the first pointer slot and scale_b in the second. A Config names their kind:
//
//   using Scales = ts::RowColumnScales<false>;
//
// Where experts have matrices of their own, scale_b has as much for every one of them.
// kRowsOfA: rows of scale_a are those of A, whose products are parts of a sum; else those of the output of the rank.
#pragma once

namespace ts {

constexpr u32 kScaleBlock = 128;

template <bool kRowsOfA> struct TensorScales { static constexpr bool rows_of_a = kRowsOfA, ends = true, whole = true, blocks = false; };
template <bool kRowsOfA> struct RowColumnScales { static constexpr bool rows_of_a = kRowsOfA, ends = true, whole = false, blocks = false; };
template <bool kRowsOfA> struct BlockScales { static constexpr bool rows_of_a = kRowsOfA, ends = false, whole = false, blocks = true; };
struct Unscaled { static constexpr bool rows_of_a = false, ends = false, whole = false, blocks = false; };

// Texts of kernels without scales name none, so they stay what they were.
template <class C, class = void> struct ScalesOf { typedef Unscaled type; };
template <class C> struct ScalesOf<C, typename IsType<typename C::Scales>::type> { typedef typename C::Scales type; };

// Whether those who multiply read operands beside A and B.
template <class C> struct ReadsBeside {
  static constexpr bool value = EpilogueOf<C>::any || ScalesOf<C>::type::ends || ScalesOf<C>::type::blocks;
};

TS_DEV float scale_a(const Call& call, u64 index) { return load((const float*)call.args->base[0] + index); }
TS_DEV float scale_b(const Call& call, u64 index) { return load((const float*)call.args->base[1] + index); }

// Scales of the rows of a segment: its first row in scale_a, and how many there are; whose matrix they are multiplied by.
template <class C> struct Scaling {
  typedef typename ScalesOf<C>::type Kind;
  const Call* call;
  u64 first;
  u32 rows;
  u64 expert = 0;
  const float* of_rows;  // scale_a, or the scales of rows that have been sent

  TS_DEV Scaling(const Call& at, u64 first_row, u32 number, u32 of, const float* scales)
      : call(&at), first(first_row), rows(number), expert(of), of_rows(scales) {}

  TS_DEV Scaling(const Call& at, const Step& step) : call(&at), first(0), rows(step.rows), of_rows((const float*)at.args->base[0]) {
    if constexpr (Kind::rows_of_a) {
      first = step.source_offset;
    } else if constexpr (Kind::ends || Kind::blocks) {
      first = step.target_offset / BytesOf<typename C::Out>::value / at.args->n;
    }
  }
  TS_DEV float whole_scale() const { return scale_a(*call, 0) * scale_b(*call, expert); }
  // Of one row and one column.
  TS_DEV float row_scale(u32 row) const { return row < rows ? load(of_rows + first + row) : 0.f; }
  TS_DEV float column_scale(u32 column) const {
    return column < call->args->n ? scale_b(*call, expert * call->args->n + column) : 0.f;
  }
  // Of block `k` of the contraction: of a row, and of the column of blocks that `column` is in.
  TS_DEV float row_block(u32 row, u32 k) const {
    const u32 blocks = (call->args->k + kScaleBlock - 1) / kScaleBlock;
    return row < rows ? load(of_rows + (first + row) * blocks + k) : 0.f;
  }
  TS_DEV float column_block(u32 column, u32 k) const {
    const u32 blocks = (call->args->n + kScaleBlock - 1) / kScaleBlock, deep = (call->args->k + kScaleBlock - 1) / kScaleBlock;
    return scale_b(*call, (expert * deep + k) * blocks + column / kScaleBlock);
  }
};

// The accumulators of 64 rows of a tile (see store_registers for which thread holds what).
template <class C> TS_DEV void scale_rows(const Scaling<C>& scaling, u32 row, u32 column, float (&acc)[C::block_n / 2]) {
  if constexpr (ScalesOf<C>::type::whole) {
    const float scale = scaling.whole_scale();
#pragma unroll
    for (int i = 0; i < C::block_n / 2; ++i) acc[i] *= scale;
  } else {
    const u32 t = thread() % 128, top = row + t / 32 * 16 + t % 32 / 4;
    const float rows[2] = {scaling.row_scale(top), scaling.row_scale(top + 8)};
#pragma unroll
    for (int j = 0; j < C::block_n / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float scale = scaling.column_scale(column + 8 * j + t % 4 * 2 + e);
        acc[4 * j + e] = acc[4 * j + e] * rows[0] * scale;
        acc[4 * j + 2 + e] = acc[4 * j + 2 + e] * rows[1] * scale;
      }
    }
  }
}

// The same for four neighbouring results of a row.
template <class C> TS_DEV void scale_four(const Scaling<C>& scaling, u32 row, u32 column, float (&values)[4]) {
  if constexpr (ScalesOf<C>::type::whole) {
    const float scale = scaling.whole_scale();
#pragma unroll
    for (int e = 0; e < 4; ++e) values[e] *= scale;
  } else {
    const float scale = scaling.row_scale(row);
#pragma unroll
    for (int e = 0; e < 4; ++e) values[e] = values[e] * scale * scaling.column_scale(column + e);
  }
}

}  // namespace ts
