// The GEMM role below sm_90: persistent over the tiles of its segments. All threads copy tiles to shared memory, 16 bytes each
// at a time, some stages ahead of the one that they multiply, and across tiles: while a tile is stored, the first stages of
// the next one are on their way. Warps multiply by mma.sync, each its part of the tile, from matrices that ldmatrix reads.
// Waits and signals are those of other roles: one thread, and a barrier of the block.
#pragma once

namespace ts {

// Texts of kernels that use wgmma do not name `mma_sync`, so they stay what they were.
template <class C, class = void> struct WarpProducts { static constexpr bool value = false; };
template <class C> struct WarpProducts<C, typename Void<C::mma_sync>::type> { static constexpr bool value = C::mma_sync; };

// What one warp multiplies and stores of a tile.
template <class C> struct WarpTile : C {
  static constexpr int block_m = C::block_m / C::warps_m;
  static constexpr int block_n = C::block_n / C::warps_n;
};

template <class C> struct WarpLayout {
  static constexpr u32 a_bytes = C::block_m * 128;  // rows of 64 elements of the contraction
  static constexpr u32 b_rows = C::b_row_major ? (C::block_n + 63) / 64 * 64 : C::block_n;  // or columns, in slabs of 64
  static constexpr u32 stage_bytes = a_bytes + b_rows * 128;
  static constexpr u32 staging_offset = C::num_stages * stage_bytes;
  static constexpr int rows = C::block_m / C::warps_m / 16;    // instructions of a warp
  static constexpr int pairs = C::block_n / C::warps_n / 16;   // pairs of 8 columns
};

// Where 16 bytes of a row of 128 lie: units of a row are exchanged, so that 8 rows of one column are in different banks.
TS_DEV u32 unit_at(u32 row, u32 unit) { return row * 128 + ((unit ^ (row & 7u)) << 4); }

// The operands of a segment.
struct Factors {
  const u8* a;
  const u8* b;
  u32 rows, columns, depth;
};

// Rows of 128 bytes: row `row0` + r of the operand, from index `column` on, rows of `pitch` elements; zeros behind the ends.
template <class C, u32 kRows>
TS_DEV void copy_rows(u8* to, const u8* from, u32 row0, u32 column, u32 rows, u32 columns) {
#pragma unroll
  for (u32 i = 0; i < (kRows * 8 + C::threads - 1) / C::threads; ++i) {
    const u32 at = i * C::threads + thread(), row = at / 8, unit = at % 8;
    if (at >= kRows * 8) continue;
    const bool inside = row0 + row < rows && column + unit * 8 < columns;
    const u64 element = inside ? (u64)(row0 + row) * columns + column + unit * 8 : 0u;
    copy_async(to + unit_at(row, unit), from + element * 2u, inside ? 16u : 0u);
  }
}

// Both operands of block `k` of the contraction of a tile.
template <class C> TS_DEV void copy_stage(const Factors& factors, u8* stage, TilePosition tile, u32 k) {
  copy_rows<C, C::block_m>(stage, factors.a, tile.m * C::block_m, k * C::block_k, factors.rows, factors.depth);
  u8* b = stage + WarpLayout<C>::a_bytes;
  if constexpr (C::b_row_major) {
#pragma unroll
    for (u32 s = 0; s < WarpLayout<C>::b_rows / 64; ++s)
      copy_rows<C, C::block_k>(b + s * (C::block_k * 128), factors.b, k * C::block_k, tile.n * C::block_n + s * 64, factors.depth,
                               factors.columns);
  } else {
    copy_rows<C, C::block_n>(b, factors.b, tile.n * C::block_n, k * C::block_k, factors.columns, factors.depth);
  }
}

// Matrices of one instruction's depth of a stage, for all instructions of a warp.
template <class C> struct WarpFragments {
  u32 a[WarpLayout<C>::rows][4];
  u32 b[WarpLayout<C>::pairs][4];  // of two instructions each: indices 0 to 7 and 8 to 15 of the one, then of the other
};

template <class C> TS_DEV void load_fragments(WarpFragments<C>& fragments, const u8* stage, int kk) {
  constexpr int kRows = WarpLayout<C>::rows, kPairs = WarpLayout<C>::pairs;
  const u32 warp = thread() / 32, lane = thread() % 32, matrix = lane / 8;
  const u32 top = warp / C::warps_n * WarpTile<C>::block_m, left = warp % C::warps_n * WarpTile<C>::block_n;
  const u8* a[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) a[i] = stage + unit_at(top + i * 16 + matrix % 2 * 8 + lane % 8, kk * 2 + matrix / 2);
  load_matrices<kRows>(fragments.a, a);
  const u8* b[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    b[j] = stage + WarpLayout<C>::a_bytes;
    if constexpr (C::b_row_major) {
      const u32 unit = (left + j * 16) / 8 + matrix / 2;
      b[j] += unit / 8 * (C::block_k * 128) + unit_at(kk * 16 + matrix % 2 * 8 + lane % 8, unit % 8);
    } else {
      b[j] += unit_at(left + j * 16 + matrix / 2 * 8 + lane % 8, kk * 2 + matrix % 2);
    }
  }
  if constexpr (C::b_row_major) {
    load_matrices_turned<kPairs>(fragments.b, b);
  } else {
    load_matrices<kPairs>(fragments.b, b);
  }
}

// The next matrices are read while those at hand are multiplied.
template <class C>
TS_DEV void warp_multiply(float (&acc)[WarpLayout<C>::rows][WarpLayout<C>::pairs * 8], const u8* stage) {
  constexpr int kSlices = C::block_k / 16;
  WarpFragments<C> fragments[2];
  load_fragments<C>(fragments[0], stage, 0);
#pragma unroll
  for (int kk = 0; kk < kSlices; ++kk) {
    if (kk + 1 < kSlices) load_fragments<C>(fragments[(kk + 1) % 2], stage, kk + 1);
    mma_tile<typename C::Element, WarpLayout<C>::rows, WarpLayout<C>::pairs * 2>(acc, fragments[kk % 2].a, fragments[kk % 2].b);
  }
}

// The tiles of a segment that are this block's, and where in the contraction of one it is.
template <class C> struct TileCursor {
  u32 tile, tiles, tiles_m, tiles_n, gang, k, steps;

  TS_DEV bool there() const { return tile < tiles; }
  TS_DEV TilePosition position() const { return tile_position<C>(tile, tiles_m, tiles_n); }
  TS_DEV void advance_step() {
    if (++k < steps) return;
    k = 0;
    tile += gang;
  }
};

template <class C> TS_DEV TileCursor<C> tiles_from(const Call& call, const Step& step, const Block& me) {
  TileCursor<C> found;
  found.tiles_m = (step.rows + C::block_m - 1) / C::block_m;
  found.tiles_n = (call.args->n + C::block_n - 1) / C::block_n;
  found.tiles = found.tiles_m * found.tiles_n;
  found.gang = me.gang;
  found.tile = (me.index + me.gang - step.first_tile % me.gang) % me.gang;
  found.k = 0;
  found.steps = (call.args->k + C::block_k - 1) / C::block_k;
  return found;
}

// Copies the stage that the cursor stands at; a group of copies a stage, also where there is nothing to copy any more.
template <class C> TS_DEV void copy_ahead(const Factors& factors, TileCursor<C>& ahead, u8* smem, u32& slot) {
  if (ahead.there()) {
    copy_stage<C>(factors, smem + slot * WarpLayout<C>::stage_bytes, ahead.position(), ahead.k);
    ahead.advance_step();
  }
  copy_async_commit();
  slot = slot + 1 == C::num_stages ? 0u : slot + 1;
}

// A warp's part of a tile through the epilogues and to memory. Functions that store for a warpgroup add the rows of a warp in
// it, which are taken off here.
template <class C>
TS_DEV void store_warp_tile(const Results& results, const OutRows& out, float (&acc)[WarpLayout<C>::rows][WarpLayout<C>::pairs * 8],
                            Staging<typename StoredAs<WarpTile<C>>::type>& staging, TilePosition tile) {
  typedef WarpTile<C> Part;
  typedef typename StoredAs<Part>::type Stored;
  const u32 warp = thread() / 32, of_warpgroup = thread() % 128 / 32 * 16;
  const u32 column = tile.n * C::block_n + warp % C::warps_n * Part::block_n;
#pragma unroll
  for (int i = 0; i < WarpLayout<C>::rows; ++i) {
    const u32 row = tile.m * C::block_m + warp / C::warps_n * Part::block_m + i * 16 - of_warpgroup;
    if constexpr (EpilogueOf<C>::any) finish_tile<Part>(results, row, out.rows, column, acc[i]);
    if constexpr (EpilogueOf<C>::halves) {
      float halved[Part::block_n / 4];
      halve_tile<Part>(acc[i], halved);
      store_rows<Stored>(halved, staging, nullptr, out, row, column / 2);
    } else {
      store_rows<Stored>(acc[i], staging, nullptr, out, row, column);
    }
  }
}

// The scale model, for products that are stored at a peer: one thread takes the links for a tile, and the next tile, or a
// signal, waits for them.
template <class C> TS_DEV u64 charge_rows(const Call& call, const Step& step, TilePosition tile) {
  if (step.peer == call.args->rank || thread() != 0u) return 0;
  const u32 row = tile.m * C::block_m, column = tile.n * C::block_n;
  const u32 rows = step.rows - row < (u32)C::block_m ? step.rows - row : (u32)C::block_m;
  const u32 columns = call.args->n - column < (u32)C::block_n ? call.args->n - column : (u32)C::block_n;
  Step charge = step;
  charge.counter = call.args->rank;
  charge.value = step.peer;
  return reserve_links(call, charge, (u64)rows * columns * BytesOf<typename C::Out>::value);
}

// All tiles of a segment: stage i is multiplied while those behind it are copied.
template <class C>
TS_DEV void warp_segment(const Call& call, const Step& step, const Block& me, u8* smem,
                         Staging<typename StoredAs<WarpTile<C>>::type>& staging, u64& until) {
  const Factors factors{call.at(step.source, step.source_offset), call.at((u32)step.size, 0), step.rows, call.args->n, call.args->k};
  const OutRows out{call.at(step.target, step.target_offset), step.rows, stored_columns<C>(call.args->n), 0u, 0u};
  const Results results{&call, step.target_offset / BytesOf<typename C::Out>::value, call.args->n};
  TileCursor<C> ahead = tiles_from<C>(call, step, me), now = ahead;
  u32 filled = 0, stage = 0;
  float acc[WarpLayout<C>::rows][WarpLayout<C>::pairs * 8];
  sync();  // nobody reads a stage of the segment before any more
#pragma unroll
  for (int i = 0; i < C::num_stages - 1; ++i) copy_ahead<C>(factors, ahead, smem, filled);
  while (now.there()) {
    if (now.k == 0) {
#pragma unroll
      for (int i = 0; i < WarpLayout<C>::rows; ++i) {
#pragma unroll
        for (int j = 0; j < WarpLayout<C>::pairs * 8; ++j) acc[i][j] = 0.f;
      }
    }
    copy_async_wait<C::num_stages - 2>();
    sync();  // all have what they wait for, and none reads the stage that is filled next
    copy_ahead<C>(factors, ahead, smem, filled);
    warp_multiply<C>(acc, smem + stage * WarpLayout<C>::stage_bytes);
    stage = stage + 1 == C::num_stages ? 0u : stage + 1;
    const TilePosition tile = now.position();
    const bool last = now.k + 1 == now.steps;
    now.advance_step();
    if (last) {
      if constexpr (C::link_clock) {
        link_wait(until);
        until = charge_rows<C>(call, step, tile);
      }
      store_warp_tile<C>(results, out, acc, staging, tile);
    }
  }
}

template <class C> TS_DEV void mma_role(const Call& call, const Block& me, u8* smem) {
  typedef typename StoredAs<WarpTile<C>>::type Stored;
  Staging<Stored> staging{smem + WarpLayout<C>::staging_offset + thread() / 32 * Staging<Stored>::warp_bytes};
  u64 until = 0;  // the links of the scale model are taken
  bool signalled = false;
  for (u32 i = 0; i < me.num_steps; ++i) {
    const Step step = step_of<C>(call, me, i);
    step_begin(step.id);
    if (step.kind == kSignal) {
      if constexpr (C::link_clock) link_wait(until);
      if (!signalled) sync();
      if (thread() == 0) signal_step(call, step, !signalled);
    } else if (step.kind == kWait) {
      if (thread() == 0) {  // a segment, or a signal, begins with a barrier of the block
        wait_step(call, step);
        if constexpr (Multicast<C>::value) fence_alias();
      }
    } else if (step.kind == kGemm) {
      warp_segment<C>(call, step, me, smem, staging, until);
    }
    signalled = step.kind == kSignal;
    step_end();
  }
  if (thread() == 0) finish(call, call.args->last);  // all have met in a segment, so they have read the epoch
}

}  // namespace ts
