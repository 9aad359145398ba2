// How tiles of a product leave the block: from registers through shared memory, by tensor stores or, where no map covers the
// target, by wide ones; straight from registers where rows are not aligned.
#pragma once

namespace ts {

// Two neighbouring outputs of a row; `n` odd forces single stores, since rows then lose their alignment.
template <class Out> TS_DEV void store_pair(u8* out, u64 row, u32 column, u32 n, float low, float high) {
  u8* p = out + (row * n + column) * BytesOf<Out>::value;
  if (column >= n) return;
  if constexpr (Same<Out, Fp32>::value) {
    store((float*)p, low);
    if (column + 1 < n) store((float*)p + 1, high);
  } else {
    if (n % 2u == 0u) {
      store((u32*)p, pack2<Out>(low, high));
    } else {
      store((u16*)p, pack1<Out>(low));
      if (column + 1 < n) store((u16*)p + 1, pack1<Out>(high));
    }
  }
}

struct alignas(16) Sums { float x, y, z, w; };

// Four neighbouring outputs of a row.
template <class Out> TS_DEV void store_four(u8* out, u64 row, u32 column, u32 n, Sums v) {
  if (n % 4u != 0u) {
    store_pair<Out>(out, row, column, n, v.x, v.y);
    store_pair<Out>(out, row, column + 2, n, v.z, v.w);
  } else if (column < n) {
    u8* p = out + (row * n + column) * BytesOf<Out>::value;
    if constexpr (Same<Out, Fp32>::value) {
      store((Sums*)p, v);
    } else {
      store((u64*)p, pack2<Out>(v.x, v.y) | (u64)pack2<Out>(v.z, v.w) << 32);
    }
  }
}

template <class C> TS_DEV void finish_four(const Results& results, u32 row, u32 column, Sums& sum) {
  if constexpr (EpilogueOf<C>::any) {
    float values[4] = {sum.x, sum.y, sum.z, sum.w};
    finish_results<C, 4>(results, row, column, values);
    sum = Sums{values[0], values[1], values[2], values[3]};
  }
}

// Four neighbouring results behind the epilogues: `part(c)` gives the sums at columns c to c + 3 of a tile that begins at
// `column` of the product; `c` counts the columns that are stored.
template <class C, class Part>
TS_DEV void store_finished(const Results& results, u8* base, u32 row, u32 column, u32 c, Part part) {
  if constexpr (EpilogueOf<C>::halves) {
    const u32 at = c / kHalfColumns * (2 * kHalfColumns) + c % kHalfColumns;
    Sums gate = part(at), up = part(at + kHalfColumns);
    finish_four<C>(results, row, column + at, gate);
    finish_four<C>(results, row, column + at + kHalfColumns, up);
    const Sums made{silu(gate.x) * up.x, silu(gate.y) * up.y, silu(gate.z) * up.z, silu(gate.w) * up.w};
    store_four<typename C::Out>(base, row, column / 2u + c, results.columns / 2u, made);
  } else {
    Sums sum = part(c);
    finish_four<C>(results, row, column + c, sum);
    store_four<typename C::Out>(base, row, column + c, results.columns, sum);
  }
}

// The accumulator of m64nN: thread t holds rows t / 32 * 16 + t % 32 / 4 (+ 8) and columns 8 j + t % 4 * 2 (+ 1).
template <class C> TS_DEV void store_registers(const float (&acc)[C::block_n / 2], u8* out, u32 row, u32 rows, u32 column, u32 n) {
  const u32 t = thread() % 128, first = row + t / 32 * 16 + t % 32 / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const u32 r = first + half * 8;
    if (r < rows) {
#pragma unroll
      for (int j = 0; j < C::block_n / 8; ++j)
        store_pair<typename C::Out>(out, r, column + j * 8 + t % 4 * 2, n, acc[4 * j + 2 * half], acc[4 * j + 2 * half + 1]);
    }
  }
}

// Where the rows of a product go: `base` and rows of `n` elements; in the map of the output, from row `first` of `shard`.
struct OutRows {
  u8* base;
  u32 rows, n, first, shard;
};

// A warp passes its 16 rows through shared memory, `store_columns` columns (32 to 128 bytes) at a time, in `store_buffers`
// buffers that it uses in turn. The layout is that of the swizzle of such rows, which keeps the warp on different banks.
template <class C> struct Staging {
  static constexpr u32 out_bytes = BytesOf<typename C::Out>::value;
  static constexpr u32 row_bytes = C::store_columns * out_bytes;
  static constexpr u32 buffer_bytes = 16 * row_bytes;
  static constexpr u32 warp_bytes = C::store_buffers * buffer_bytes;
  u8* buffers;      // of this warp
  u32 chunks = 0;   // staged so far
};
template <class C> TS_DEV u32 swizzled(u32 offset) { return offset ^ ((offset >> 7 & (Staging<C>::row_bytes / 16 - 1)) << 4); }

template <class C> TS_DEV void stage_chunk(const float (&acc)[C::block_n / 2], u8* buffer, int first) {
  constexpr u32 kBytes = Staging<C>::out_bytes;
  const u32 lane = thread() % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < C::store_columns / 8; ++j) {
      const int from = 4 * (first / 8 + j) + 2 * half;
      u8* to = buffer + swizzled<C>((lane / 4 + half * 8) * Staging<C>::row_bytes + (j * 8 + lane % 4 * 2) * kBytes);
      if constexpr (Same<typename C::Out, Fp32>::value) {
        *(u64*)to = pair_bits(acc[from], acc[from + 1]);
      } else {
        *(u32*)to = pack2<typename C::Out>(acc[from], acc[from + 1]);
      }
    }
  }
}

// A staged chunk to memory by 16-byte stores: to any address, rows and columns clipped.
template <class C> TS_DEV void copy_chunk(const u8* buffer, const OutRows& out, u32 row, u32 column) {
  constexpr u32 kUnits = Staging<C>::row_bytes / 16, kElements = 16 / Staging<C>::out_bytes;
  const u32 lane = thread() % 32;
#pragma unroll
  for (u32 i = 0; i < (kUnits + 1) / 2; ++i) {
    const u32 r = i * (32 / kUnits) + lane / kUnits, c = lane % kUnits;
    const U128 held = *(const U128*)(buffer + swizzled<C>(r * Staging<C>::row_bytes + c * 16));
    if (row + r < out.rows && column + c * kElements < out.n)
      store((U128*)(out.base + ((u64)(row + r) * out.n + column) * Staging<C>::out_bytes + c * 16), held);
  }
}

// Columns of a tile from `first` on, a constant once the loop around it is unrolled.
template <class C>
TS_DEV void store_chunk(const float (&acc)[C::block_n / 2], Staging<C>& staging, const TensorMap* map, const OutRows& out, u32 row,
                        u32 column, int first) {
  u8* buffer = staging.buffers + staging.chunks % C::store_buffers * Staging<C>::buffer_bytes;
  ++staging.chunks;
  if constexpr (C::store_tensor) bulk_wait_read<C::store_buffers - 1>();
  warp_sync();  // nobody reads this buffer any more
  stage_chunk<C>(acc, buffer, first);
  if constexpr (C::store_tensor) {
    fence_async_smem();
    warp_sync();
    if (thread() % 32 == 0) {
      if (row < out.rows && column + first < out.n)
        tma_store_3d(map, buffer, (int)(column + first), (int)(out.first + row), (int)out.shard);
      bulk_commit();
    }
  } else {
    warp_sync();
    copy_chunk<C>(buffer, out, row, column + first);
  }
}

// 64 rows of a tile by a warpgroup, from `row` of the segment. Tensor stores go on while the next tile is multiplied.
template <class C>
TS_DEV void store_rows(const float (&acc)[C::block_n / 2], Staging<C>& staging, const TensorMap* map, const OutRows& out, u32 row,
                       u32 column) {
  if constexpr (C::store_staged) {
#pragma unroll
    for (int first = 0; first < C::block_n; first += C::store_columns)
      store_chunk<C>(acc, staging, map, out, row + thread() % 128 / 32 * 16, column, first);
  } else {
    store_registers<C>(acc, out.base, row, out.rows, column, out.n);
  }
}

}  // namespace ts
