// Stream-K: the tiles of the last waves are shared by all blocks along the contraction. They lie one behind the other, and
// each block (or cluster of rows of tiles) takes an even stretch of their steps. A stretch that begins inside a tile begins
// with the piece that ends it: its sums are left in memory, as they lie in registers, for the block that began the tile.
// Each block leaves its piece first, tells all, takes its whole tiles, and comes last to the tile that it only begins: so
// what it waits for has long been left. Sums are added in the order of the contraction, which is the same in every call.
#pragma once

namespace ts {

constexpr u32 kConsumersMeet = 1;  // a named barrier

// Texts of kernels that share nothing do not name `stream_k`, so they stay what they were.
template <class C, class = void> struct Streams {
  static constexpr bool value = false;
  static constexpr u32 waves = 0;
};
template <class C> struct Streams<C, typename Void<(C::stream_k > 0)>::type> {
  static constexpr bool value = true;
  static constexpr u32 waves = C::stream_k;
};

// The step rows of a group have consecutive numbers.
constexpr u32 kTellStep = 1, kJoinStep = 2, kSharedStep = 3;

// A tile, and the steps of its contraction that are taken.
struct StreamPiece { u32 tile, from, to; };

// What one block, or cluster, takes of a product.
struct Stream {
  u32 unit, units;    // this one, of how many
  u32 whole, shared;  // tiles that are taken as they are; those behind them
  u32 steps;          // of a tile
  u32 next_whole;
  u32 at, to;         // the stretch, in steps of the shared tiles

  TS_DEV u32 bound(u32 u) const { return (u32)((u64)(shared * steps) * u / units); }
  // Whether the stretch begins with the end of another one's tile.
  TS_DEV bool leaves() const { return at % steps != 0u && at < to; }
  // The next piece, in the order above; false where there is none.
  TS_DEV bool take_piece(StreamPiece& piece) {
    if (!leaves() && next_whole < whole) {
      piece = StreamPiece{next_whole, 0u, steps};
      next_whole += units;
      return true;
    }
    if (at >= to) return false;
    const u32 from = at % steps, left = steps - from, taken = to - at < left ? to - at : left;
    piece = StreamPiece{whole + at / steps, from, from + taken};
    at += taken;
    return true;
  }
};

template <class C> TS_DEV Stream stream_of(const Call& call, const Block& me, u32 tiles) {
  Stream found;
  found.unit = me.index / C::cluster_m;
  found.units = me.gang / C::cluster_m;
  const u32 waves = (tiles + found.units - 1) / found.units;
  found.whole = waves > Streams<C>::waves ? (waves - Streams<C>::waves) * found.units : 0u;
  found.shared = tiles - found.whole;
  found.steps = (call.args->k + C::block_k - 1) / C::block_k;
  found.next_whole = found.unit;
  found.at = found.bound(found.unit);
  found.to = found.bound(found.unit + 1);
  return found;
}

// Where this thread's sums of unit `unit` lie, of the block that stands where this one does in its cluster.
template <class C, int kFours> TS_DEV Sums* stream_slot(const Call& call, const Step& step, u32 unit) {
  const u32 place = unit * C::cluster_m + (C::cluster_m > 1 ? cluster_rank() : 0u), warp = thread() / 32 - 4;
  const u64 bytes = (u64)C::block_m * C::block_n * 4u;
  return (Sums*)call.at(step.first_tile, place * bytes) + warp * (kFours * 32u) + thread() % 32;
}

template <class C, int kTiles, int kSums>
TS_DEV void leave_part(const Call& call, const Step& step, u32 unit, const float (&acc)[kTiles][kSums]) {
  Sums* to = stream_slot<C, kTiles * kSums / 4>(call, step, unit);
#pragma unroll
  for (int s = 0; s < kTiles; ++s) {
#pragma unroll
    for (int j = 0; j < kSums; j += 4)
      store(to + (s * kSums + j) * 8, Sums{acc[s][j], acc[s][j + 1], acc[s][j + 2], acc[s][j + 3]});
  }
}

// Loads in flight, as registers allow beside the sums.
template <int kSums> struct LoadsAhead { static constexpr int value = kSums <= 128 ? 16 : 4; };

template <class C, int kTiles, int kSums>
TS_DEV void add_left_part(const Call& call, const Step& step, u32 unit, float (&acc)[kTiles][kSums]) {
  const Sums* from = stream_slot<C, kTiles * kSums / 4>(call, step, unit);
#pragma unroll
  for (int s = 0; s < kTiles; ++s) {
#pragma unroll
    for (int j = 0; j < kSums; j += 4) {
      if (j / 4 % LoadsAhead<kTiles * kSums>::value == 0) load_fence();
      const Sums held = load(from + (s * kSums + j) * 8);
      acc[s][j] += held.x;
      acc[s][j + 1] += held.y;
      acc[s][j + 2] += held.z;
      acc[s][j + 3] += held.w;
    }
  }
}

// Threads that multiply: what they have left is told to all blocks of the rank.
template <class C> TS_DEV void tell_left(const Call& call, const Step& step, u32 threads) {
  bulk_wait<0>();  // a signal tells of all stores before it; tiles are stored behind this one
  named_barrier(kConsumersMeet, threads);
  if (thread() % threads == 0) {
    Step told = step;
    told.id = step.id + kTellStep;
    told.source = call.args->rank;
    told.counter = 0u;
    told.value = 1u;
    step_begin(told.id);
    signal_step(call, told, true);
    step_end();
  }
}

// Until all blocks have left what they leave.
template <class C> TS_DEV void wait_left(const Call& call, const Step& step, u32 threads) {
  if (thread() % threads == 0) {
    Step wanted = step;
    wanted.id = step.id + kJoinStep;
    wanted.counter = 0u;
    wanted.per_call = num_blocks();
    wanted.value = num_blocks();
    step_begin(wanted.id);
    wait_step(call, wanted);
    step_end();
  }
  named_barrier(kConsumersMeet, threads);
}

// Adds what others have left of the tile that this unit began last.
template <class C, int kTiles, int kSums>
TS_DEV void join_parts(const Call& call, const Step& step, const Stream& stream, float (&acc)[kTiles][kSums]) {
  const u32 end = (stream.to + stream.steps - 1) / stream.steps * stream.steps;
  u32 reached = stream.to;
  for (u32 unit = stream.unit + 1; reached < end; ++unit) {
    const u32 to = stream.bound(unit + 1);
    if (to > reached) add_left_part<C>(call, step, unit, acc);
    reached = to;
  }
}

}  // namespace ts
