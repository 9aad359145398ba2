// Copy roles: put, get and local copies, and sums, by the blocks of a gang, each with an even share of the bytes.
#pragma once

namespace ts {

// Loads and stores of `share` by the threads of a group, `copy_unroll` accesses in flight each.
template <class C> TS_DEV void copy_by_threads(const u8* from, u8* to, Share share) {
  typedef typename UnitOf<C::copy_unit>::type Unit;
  const Unit* source = (const Unit*)from;
  Unit* target = (Unit*)to;
  constexpr u32 kStride = Group<C>::threads;
  u64 i = share.begin + lane<C>();
  for (; i + (C::copy_unroll - 1) * (u64)kStride < share.end; i += C::copy_unroll * (u64)kStride) {
    Unit held[C::copy_unroll];
#pragma unroll
    for (int u = 0; u < C::copy_unroll; ++u) held[u] = load(source + i + u * kStride);
#pragma unroll
    for (int u = 0; u < C::copy_unroll; ++u) store(target + i + u * kStride, held[u]);
  }
  for (; i < share.end; i += kStride) store(target + i, load(source + i));
}

// A ring of shared-memory tiles that bulk copies pass through; `tiles` counts all that have passed.
struct TilePipe {
  u8* smem;
  u64* full;
  u32 tiles;
};

// Bulk copies by one thread: load tile i, store it, and reuse the slot of tile i - 1 once that has been read.
template <class C>
TS_DEV void copy_by_tma(const Call& call, const Step& step, const u8* from, u8* to, const Block& me, const Loops& loops,
                        TilePipe& pipe) {
  const Share units = share_of(step.size / 16, me.index, me.gang);
  const u64 begin = units.begin * 16, end = units.end * 16;
  const u32 count = (u32)((end - begin + C::copy_tile_bytes - 1) / C::copy_tile_bytes);
  u32 loaded = 0;
  auto load_next = [&]() {
    const u32 slot = (pipe.tiles + loaded) % C::copy_stages;
    const u64 offset = begin + (u64)loaded * C::copy_tile_bytes;
    const u32 bytes = (u32)(end - offset < C::copy_tile_bytes ? end - offset : C::copy_tile_bytes);
    mb_expect(&pipe.full[slot], bytes);
    u8* tile = pipe.smem + slot * C::copy_tile_bytes;
    if (Strided<C>::value && step.rows != 0u) {
      strided_pieces(loops, offset / 16, bytes, [&](u32 done, u64 source, u64 target, u32 piece) {
        bulk_load(tile + done, from + source, piece, &pipe.full[slot]);
      });
    } else {
      bulk_load(tile, from + offset, bytes, &pipe.full[slot]);
    }
    ++loaded;
  };
  while (loaded < count && loaded < C::copy_stages) load_next();
  for (u32 i = 0; i < count; ++i) {
    const u32 slot = (pipe.tiles + i) % C::copy_stages;
    const u32 parity = ((pipe.tiles + i) / C::copy_stages) & 1u;
    const u64 offset = begin + (u64)i * C::copy_tile_bytes;
    const u32 bytes = (u32)(end - offset < C::copy_tile_bytes ? end - offset : C::copy_tile_bytes);
    barrier_wait(call, step, &pipe.full[slot], parity);
    u8* tile = pipe.smem + slot * C::copy_tile_bytes;
    if (Strided<C>::value && step.rows != 0u) {
      strided_pieces(loops, offset / 16, bytes, [&](u32 done, u64 source, u64 target, u32 piece) {
        bulk_store(to + target, tile + done, piece);
      });
    } else {
      bulk_store(to + offset, tile, bytes);
    }
    bulk_commit();
    if (i > 0 && loaded < count) {
      bulk_wait_read<1>();
      load_next();
    }
  }
  bulk_wait<0>();  // the destination is written, not only the tile read: a signal may follow
  pipe.tiles += count;
}

// `rows`: those behind the step, one a loop of a copy of rows at pitches.
template <class C>
TS_DEV void copy_step(const Call& call, const Step& step, const Step* rows, const Block& me, TilePipe& pipe) {
  const u8* from = call.at(step.source, step.source_offset);
  u8* to = call.at(step.target, step.target_offset);
  const Share share = share_of(step.size / C::copy_unit, me.index, me.gang);
  if constexpr (C::link_clock) {
    if (thread() == CopyThreads<C>::value) walk_links(call, step, (share.end - share.begin) * C::copy_unit);
  }
  Loops loops = {};
  if constexpr (Strided<C>::value) {
    if (step.rows != 0u) loops = loops_of(rows, step.rows, C::copy_unit);
  }
  if constexpr (C::copy_tma) {
    if (thread() == 0) copy_by_tma<C>(call, step, from, to, me, loops, pipe);
  } else if constexpr (Strided<C>::value) {
    if (thread() < CopyThreads<C>::value) {
      if (step.rows != 0u) {
        strided_by_threads<C>(loops, from, to, share_of_group<C>(share));
      } else {
        copy_by_threads<C>(from, to, share_of_group<C>(share));
      }
    }
  } else {
    if (thread() < CopyThreads<C>::value) copy_by_threads<C>(from, to, share_of_group<C>(share));
  }
  if constexpr (C::link_clock) sync();
}

// Copies of as many bytes that follow each other, where a thread has too little of one to fill the memory's latency: it loads
// from all before it stores what it has loaded first, so that they take one trip and not one each.
constexpr u32 kCopiesTogether = 8;

template <class C> TS_DEV void copies_by_threads(const Call& call, const Step* rows, u32 count, Share share) {
  typedef typename UnitOf<C::copy_unit>::type Unit;
  for (u64 i = share.begin + lane<C>(); i < share.end; i += Group<C>::threads) {
    Unit held[kCopiesTogether];
#pragma unroll
    for (u32 c = 0; c < kCopiesTogether; ++c) {
      if (c < count) {
        step_begin(rows[c].id);
        held[c] = load((const Unit*)call.at(rows[c].source, rows[c].source_offset) + i);
      }
    }
#pragma unroll
    for (u32 c = 0; c < kCopiesTogether; ++c) {
      if (c < count) {
        step_begin(rows[c].id);
        store((Unit*)call.at(rows[c].target, rows[c].target_offset) + i, held[c]);
      }
    }
  }
}

template <class C> TS_DEV void copy_steps(const Call& call, const Step* rows, u32 count, Share share) {
  if constexpr (C::link_clock) {
    if (thread() == CopyThreads<C>::value) {
      for (u32 c = 0; c < count; ++c) walk_links(call, rows[c], (share.end - share.begin) * C::copy_unit);
    }
  }
  if (thread() < CopyThreads<C>::value) copies_by_threads<C>(call, rows, count, share_of_group<C>(share));
  if constexpr (C::link_clock) sync();
}

// The rows of a block's steps, a window of them at a time in shared memory: walking a table in global memory costs a round
// trip to it for every step. Kernels of one warp have none (`window_rows` 0).
template <class C> struct StepWindow {
  static constexpr u32 kOffset = C::copy_tma ? C::copy_stages * (C::copy_tile_bytes + 8) : 0;
  const Step* table;  // in global memory
  Step* rows;
  u32 count, begin, end;

  // Makes row `i`, and the sources behind it where it is a sum, readable by all threads of the block.
  TS_DEV const Step* fetch(u32 i) {
    if constexpr (C::window_rows == 0) return table + i;
    const u32 last = i + 1 + kSources < count ? i + 1 + kSources : count;
    if (last > end) {
      sync();  // nobody reads the rows before any more
      begin = i;
      end = i + C::window_rows < count ? i + C::window_rows : count;
      for (u32 u = thread(); u < (end - begin) * kUnits; u += C::threads)
        ((U128*)rows)[u] = load((const U128*)(table + begin) + u);
      sync();
    }
    return rows + (i - begin);
  }

  // How many rows from `i` on, of those at hand, are waits.
  TS_DEV u32 waits(u32 i) const {
    if constexpr (C::window_rows == 0) return 1;
    u32 found = 1;
    while (i + found < end && rows[i + found - begin].kind == kWait && found < C::threads) ++found;
    return found;
  }

  // How many rows from `i` on, of those at hand, are copies of as many contiguous bytes, and taken together.
  TS_DEV u32 copies(u32 i, const Share& share) const {
    if constexpr (C::copy_tma || C::window_rows == 0) return 1;
    if (share.end - share.begin >= C::copy_unroll * (u64)CopyThreads<C>::value) return 1;
    const u64 size = rows[i - begin].size;
    u32 found = 0;
    while (i + found < end && found < kCopiesTogether && alike(rows[i + found - begin], size)) ++found;
    return found > 0 ? found : 1;
  }

 private:
  static TS_DEV bool alike(const Step& step, u64 size) {
    return step.kind == kCopy && step.size == size && (!Strided<C>::value || step.rows == 0u);
  }

  static constexpr u32 kUnits = sizeof(Step) / 16;
  static constexpr u32 kSources = C::sum_sources;
};

constexpr u32 kCounts = 32;  // the thread that counts the call on: not of the warp that waits and signals

// Walks the steps of a copy gang. All threads of the block. Waits that follow each other are waited for side by side.
template <class C> TS_DEV void copy_role(const Call& call, const Block& me, u8* smem) {
  TilePipe pipe{smem, (u64*)(smem + C::copy_stages * C::copy_tile_bytes), 0};
  StepWindow<C> window{call.args->steps + me.first_step, (Step*)(smem + StepWindow<C>::kOffset), me.num_steps, 0, 0};
  if constexpr (C::copy_tma) {
    if (thread() == 0) {
      for (int i = 0; i < C::copy_stages; ++i) mb_init(&pipe.full[i], 1);
      mb_fence_init();
    }
    sync();
  }
  if constexpr (C::window_rows > 0) {
    if constexpr (!C::copy_tma) sync();
    // Every thread of the block knows the epoch: it may be counted on, beside the work.
    if (thread() == kCounts) finish(call, call.args->last);
  }
  bool signalled = false;
  for (u32 i = 0; i < me.num_steps; ++i) {
    const Step* row = window.fetch(i);
    const Step step = *row;
    step_begin(step.id);
    if (step.kind == kCopy) {
      const Share share = share_of(step.size / C::copy_unit, me.index, me.gang);
      const u32 copies = window.copies(i, share);
      if (copies > 1) {
        copy_steps<C>(call, row, copies, share);
        i += copies - 1;
      } else {
        copy_step<C>(call, step, call.args->steps + me.first_step + i + 1, me, pipe);
        if constexpr (Strided<C>::value) i += step.rows;
      }
    } else if (step.kind == kSignal) {
      if (!signalled) sync();
      if (thread() == 0) signal_step(call, step, !signalled);
    } else if (step.kind == kWait) {
      const u32 waits = window.waits(i);
      if (thread() < waits) {
        step_begin(row[thread()].id);
        wait_step(call, row[thread()]);
      }
      sync();
      if constexpr (C::copy_tma) {
        if (thread() == 0) fence_async_global();
      }
      if constexpr (Multicast<C>::value) fence_alias();
      i += waits - 1;
    } else if (step.kind == kSum) {
      if constexpr (Carries<C>::value) {
        carry_step<C>(call, step, row + 1, me);
      } else if constexpr (C::has_sum && EpilogueOf<C>::whole_rows) {
        norm_step<C>(Results{&call, step.source_offset, call.args->n}, step, row + 1, me,
                     smem + StepWindow<C>::kOffset + C::window_rows * sizeof(Step));
      } else if constexpr (C::has_sum) {
        sum_step<C>(call, step, row + 1, me);
      }
      i += step.rows;
    } else if (step.kind == kMultiStore) {
      if constexpr (Multicast<C>::value) multi_store<C>(call, step, me);
    } else if (step.kind == kMultiSum) {
      if constexpr (Multicast<C>::value && C::has_sum) multi_sum<C>(call, step, me);
    } else {
      if constexpr (C::link_clock) {
        if (thread() == 0) pace_step(call, step);
      }
    }
    signalled = step.kind == kSignal;
    step_end();
  }
  if constexpr (C::window_rows == 0) {
    warp_sync();  // kernels of one warp
    if (thread() == 0) finish(call, call.args->last);
  }
}

}  // namespace ts
