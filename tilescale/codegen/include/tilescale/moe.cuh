// Expert parallelism, ragged: how many rows go where is known on the device alone.
//
// The tokens of a rank are shared by the blocks of its gang, as the bytes of a copy are. Every block numbers its own: which
// of the rows of an expert an entry is (a token and one of its experts), and which of the tokens of a rank a token is.
// Behind a meeting of the gang these numbers are added up over blocks. No number of a peer is needed for that: a rank
// reserves a segment for every source, which its source fills from the start.
//
// A segment of a dispatch: rows of each expert of the receiver, how many tokens, then for every token its number at the
// source and the places of its rows (expert and which of its rows, in one number), then the tokens themselves. A token
// crosses a link once, whatever the number of its experts there. A segment of a combine: where the rows of each expert of
// the holder begin, or these rows.
#pragma once

namespace ts {

// Texts of other kernels have no constant `has_moe`, so they stay what they were.
template <class C, class = void> struct Moe { static constexpr bool value = false; };
template <class C> struct Moe<C, typename Void<C::has_moe>::type> { static constexpr bool value = C::has_moe; };

constexpr u32 kNoKey = 0xFFFFFFFFu;

// Where experts multiply their rows (grouped.cuh): their groups on a rank, and what the rows of an expert begin at multiples
// of.
template <class C, class = void> struct Groups { static constexpr u32 count = 1, pad = 1; };
template <class C> struct Groups<C, typename Void<(C::moe_groups > 0)>::type> {
  static constexpr u32 count = C::moe_groups, pad = C::moe_pad;
};
template <class C, class = void> struct Grouped { static constexpr bool value = false; };
template <class C> struct Grouped<C, typename Void<C::has_groups>::type> { static constexpr bool value = C::has_groups; };

// Sizes that a text fixes. A key is an expert, or a group of the experts of a rank, behind all experts.
template <class C> struct MoeShape {
  static constexpr u32 kTopK = C::moe_top_k;
  static constexpr u32 kExperts = C::moe_experts;
  static constexpr u32 kWorld = C::moe_world;
  static constexpr u32 kLocal = kExperts / kWorld;
  static constexpr u32 kGroups = Groups<C>::count;            // of a rank
  static constexpr u32 kGroup = kLocal / kGroups;             // experts
  static constexpr u32 kKeys = kExperts + kWorld * kGroups;
  static constexpr u32 kWarps = C::threads / 32;
  static constexpr u32 kMovers = CopyThreads<C>::value / 32;  // warps that move rows
  static constexpr u32 kHead = (kLocal + kGroups + 3) / 4 * 4;  // of a segment: words before its tokens
  static constexpr u32 kEntry = kTopK + 1;                    // words of a token
};

// What a block knows of the routing, in shared memory.
struct MoeShared {
  u32 *experts, *owners;         // keys of the entries at hand, one a thread
  u32 *counts;                   // of each warp, by key
  u32 *running, *before, *total; // by key: in this block so far; in blocks before it; in all blocks
  u32 *first, *rows;             // by rank and local expert: where its rows begin; how many they are
  u32 *sums;                     // by local expert
  u32 *tokens;                   // by rank and group
  u32 *failed;
};

template <class C> TS_DEV MoeShared moe_shared(u8* smem) {
  typedef MoeShape<C> Shape;
  u32* at = (u32*)smem;
  MoeShared found;
  found.experts = at;
  found.owners = found.experts + C::threads;
  found.counts = found.owners + C::threads;
  found.running = found.counts + Shape::kWarps * Shape::kKeys;
  found.before = found.running + Shape::kKeys;
  found.total = found.before + Shape::kKeys;
  found.first = found.total + Shape::kKeys;
  found.rows = found.first + Shape::kExperts;
  found.sums = found.rows + Shape::kExperts;
  found.tokens = found.sums + Shape::kExperts;
  found.failed = found.tokens + Shape::kWorld * Shape::kGroups;
  return found;
}

// Where the numbers of a rank stand: of the entries' rows, of the tokens at the first entry for a rank, and the counts of
// blocks. `row`: behind a step, it names indices and numbers, and the tokens of the largest shard.
struct Routes {
  const u32* indices;
  u32 *ranks, *slots, *counts;
  u32 capacity;  // entries
};

template <class C> TS_DEV Routes routes_of(const Call& call, const Step& row) {
  Routes found;
  found.capacity = (u32)row.size * MoeShape<C>::kTopK;
  found.indices = (const u32*)call.at(row.source, row.source_offset);
  found.ranks = (u32*)call.at(row.target, row.target_offset);
  found.slots = found.ranks + found.capacity;
  found.counts = found.slots + found.capacity;
  return found;
}

// An index as an expert; kNoKey where it is none.
template <class C> TS_DEV u32 expert_of(u32 index) { return index < MoeShape<C>::kExperts ? index : kNoKey; }

// Which of the same keys of its warp a key is; the last of them leaves their number.
TS_DEV u32 number_in_warp(const u32* keys, u32* counts, u32 key) {
  const u32 lane = thread() % 32u;
  u32 number = 0;
  bool last = true;
#pragma unroll 4
  for (u32 other = 0; other < 32u; ++other) {
    if (keys[other] == key) {
      if (other < lane) ++number;
      if (other > lane) last = false;
    }
  }
  if (last && key != kNoKey) counts[key] = number + 1u;
  return number;
}

// Counts of warps become what stands before each; `running` goes on behind them.
template <class C> TS_DEV void add_warps(const MoeShared& shared) {
  typedef MoeShape<C> Shape;
  for (u32 key = thread(); key < Shape::kKeys; key += C::threads) {
    u32 sum = shared.running[key];
#pragma unroll 4
    for (u32 warp = 0; warp < Shape::kWarps; ++warp) {
      const u32 found = shared.counts[warp * Shape::kKeys + key];
      shared.counts[warp * Shape::kKeys + key] = sum;
      sum += found;
    }
    shared.running[key] = sum;
  }
}

// Numbers the entries of the block's tokens, as many at once as there are threads.
template <class C> TS_DEV void route_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem) {
  typedef MoeShape<C> Shape;
  const MoeShared shared = moe_shared<C>(smem);
  const Routes routes = routes_of<C>(call, behind[0]);
  const Share share = share_of(step.size, me.index, me.gang);
  const u32 end = (u32)share.end * Shape::kTopK;  // entries have 32 bits, see moe_limits
  const u32 warp = thread() / 32u;
  for (u32 key = thread(); key < Shape::kKeys; key += C::threads) shared.running[key] = 0u;
  for (u32 first = (u32)share.begin * Shape::kTopK; first < end; first += C::threads) {
    const u32 entry = first + thread();
    u32 expert = kNoKey, owner = kNoKey;
    if (entry < end) {
      expert = expert_of<C>(load(routes.indices + entry));
      owner = expert == kNoKey ? kNoKey : Shape::kExperts + expert / Shape::kGroup;
      const u32 token = entry - entry % Shape::kTopK, behind_group = Shape::kGroups > 1u ? token + Shape::kTopK : entry;
#pragma unroll 1
      for (u32 other = token; other < behind_group; ++other) {
        const u32 found = expert_of<C>(load(routes.indices + other));
        if (found == kNoKey || expert == kNoKey || found / Shape::kLocal != expert / Shape::kLocal) continue;
        const u32 group = found / Shape::kGroup;  // a token travels with the first of its groups there
        if (group < expert / Shape::kGroup || (group == expert / Shape::kGroup && other < entry)) owner = kNoKey;
      }
    }
    shared.experts[thread()] = expert;
    shared.owners[thread()] = owner;
    for (u32 i = thread(); i < Shape::kWarps * Shape::kKeys; i += C::threads) shared.counts[i] = 0u;
    sync();
    u32* counts = shared.counts + warp * Shape::kKeys;
    const u32 row = number_in_warp(shared.experts + warp * 32u, counts, expert);
    const u32 token = number_in_warp(shared.owners + warp * 32u, counts, owner);
    sync();
    add_warps<C>(shared);
    sync();
    if (entry < end) {
      store(routes.ranks + entry, expert == kNoKey ? kNoKey : counts[expert] + row);
      store(routes.slots + entry, owner == kNoKey ? kNoKey : counts[owner] + token);
    }
    sync();
  }
  u32* mine = routes.counts + me.index * Shape::kKeys;
  for (u32 key = thread(); key < Shape::kKeys; key += C::threads) store(mine + key, shared.running[key]);
}

// Adds up the counts of all blocks of the gang.
template <class C> TS_DEV void total_step(const Call& call, const Step* behind, const Block& me, u8* smem) {
  typedef MoeShape<C> Shape;
  const MoeShared shared = moe_shared<C>(smem);
  const Routes routes = routes_of<C>(call, behind[0]);
  for (u32 key = thread(); key < Shape::kKeys; key += C::threads) {
    u32 sum = 0, before = 0;
#pragma unroll 4
    for (u32 other = 0; other < me.gang; ++other) {
      if (other == me.index) before = sum;
      sum += load(routes.counts + other * Shape::kKeys + key);
    }
    shared.before[key] = before;
    shared.total[key] = sum;
  }
  sync();
}

// A row by the lanes of a warp, `copy_unroll` accesses in flight each.
template <class C> TS_DEV void move_row(const u8* from, u8* to, u32 bytes) {
  typedef typename UnitOf<C::copy_unit>::type Unit;
  const Unit* source = (const Unit*)from;
  Unit* target = (Unit*)to;
  const u32 units = bytes / C::copy_unit;
  u32 i = thread() % 32u;
  for (; i + (C::copy_unroll - 1) * 32u < units; i += C::copy_unroll * 32u) {
    Unit held[C::copy_unroll];
#pragma unroll
    for (int u = 0; u < C::copy_unroll; ++u) held[u] = load(source + i + u * 32u);
#pragma unroll
    for (int u = 0; u < C::copy_unroll; ++u) store(target + i + u * 32u, held[u]);
  }
  for (; i < units; i += 32u) store(target + i, load(source + i));
}

// In the scale model one thread keeps the links' time for `rows` rows, from the rank `counter` to the rank `value` of `row`.
template <class C> TS_DEV void charge_rows(const Call& call, const Step& row, u64 rows, u32 bytes) {
  if constexpr (C::link_clock) {
    if (thread() == CopyThreads<C>::value) walk_links(call, row, rows * bytes);
  }
}

// Where `token` stands in the segment of `target`; kNoKey where none of its experts is there.
template <class C> TS_DEV u32 slot_of(const Routes& routes, const MoeShared& shared, u64 token, u32 target) {
  typedef MoeShape<C> Shape;
  u32 slot = kNoKey;
#pragma unroll
  for (u32 k = 0; k < Shape::kTopK; ++k) {
    const u64 entry = token * Shape::kTopK + k;
    const u32 expert = expert_of<C>(load(routes.indices + entry));
    if (expert != kNoKey && expert / Shape::kLocal == target) {
      const u32 found = load(routes.slots + entry);
      if (found != kNoKey) slot = shared.before[Shape::kExperts + target] + found;
    }
  }
  return slot;
}

// Fills this rank's segment of a receiver; the tokens themselves only where `peer` says where they stand in it.
template <class C> TS_DEV void send_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem) {
  typedef MoeShape<C> Shape;
  const MoeShared shared = moe_shared<C>(smem);
  const Routes routes = routes_of<C>(call, behind[0]);
  const u32 target = step.value, bytes = step.first_tile;
  const u8* from = call.at(step.source, step.source_offset);
  u8* segment = call.at(step.target, step.target_offset);
  u32* head = (u32*)segment;
  u32* entries = head + Shape::kHead;
  if (me.index == 0u) {
    for (u32 e = thread(); e < Shape::kLocal; e += C::threads) store(head + e, shared.total[target * Shape::kLocal + e]);
    if (thread() == 0) store(head + Shape::kLocal, shared.total[Shape::kExperts + target]);
  }
  const u32 warp = thread() / 32u, lane = thread() % 32u;
  const Share share = share_of(step.size, me.index, me.gang);
  if constexpr (C::link_clock) {
    const u32 mine = load(routes.counts + me.index * Shape::kKeys + Shape::kExperts + target);
    if (step.peer != 0u) charge_rows<C>(call, step, mine, bytes);
  }
  if (warp < Shape::kMovers) {
    for (u64 token = share.begin + warp; token < share.end; token += Shape::kMovers) {
      const u32 slot = (u32)slot_of<C>(routes, shared, token, target);
      if (slot == kNoKey) continue;
      u32* words = entries + (u64)slot * Shape::kEntry;
      if (lane == 0u) store(words, (u32)token);
      for (u32 k = lane; k < Shape::kTopK; k += 32u) {
        const u64 entry = token * Shape::kTopK + k;
        const u32 expert = expert_of<C>(load(routes.indices + entry));
        u32 place = kNoKey;
        if (expert != kNoKey && expert / Shape::kLocal == target)
          place = expert % Shape::kLocal * routes.capacity + shared.before[expert] + load(routes.ranks + entry);
        store(words + 1 + k, place);
      }
      if (step.peer != 0u) move_row<C>(from + token * bytes, segment + step.peer + (u64)slot * bytes, bytes);
    }
  }
  if constexpr (C::link_clock) sync();
}

// From the rows of every source and local expert (`rows`) to where they begin: by expert, then by source. All threads.
template <class C> TS_DEV void begin_rows(const MoeShared& shared) {
  typedef MoeShape<C> Shape;
  sync();
  for (u32 e = thread(); e < Shape::kLocal; e += C::threads) {
    u32 sum = 0;
#pragma unroll 4
    for (u32 s = 0; s < Shape::kWorld; ++s) {
      shared.first[s * Shape::kLocal + e] = sum;
      sum += shared.rows[s * Shape::kLocal + e];
    }
    shared.sums[e] = sum;
  }
  sync();
  if (thread() == 0) {
    u32 sum = 0;
#pragma unroll 4
    for (u32 e = 0; e < Shape::kLocal; ++e) {
      const u32 found = shared.sums[e];
      shared.sums[e] = sum;
      sum += (found + Groups<C>::pad - 1u) / Groups<C>::pad * Groups<C>::pad;
    }
  }
  sync();
  for (u32 i = thread(); i < Shape::kExperts; i += C::threads) shared.first[i] += shared.sums[i % Shape::kLocal];
  sync();
}

// A token to all places of its rows; `places` are rows of the output, kNoKey for none.
template <class C> TS_DEV void place_row(const u8* from, u8* out, const u32 (&places)[C::moe_top_k], u32 bytes) {
  typedef typename UnitOf<C::copy_unit>::type Unit;
  const Unit* source = (const Unit*)from;
  const u32 units = bytes / C::copy_unit;
  for (u32 first = thread() % 32u; first < units; first += C::copy_unroll * 32u) {
    Unit held[C::copy_unroll];
#pragma unroll
    for (int u = 0; u < C::copy_unroll; ++u)
      if (first + u * 32u < units) held[u] = load(source + first + u * 32u);
#pragma unroll
    for (int k = 0; k < C::moe_top_k; ++k) {
      if (places[k] != kNoKey) {
        Unit* target = (Unit*)(out + (u64)places[k] * bytes);
#pragma unroll
        for (int u = 0; u < C::copy_unroll; ++u)
          if (first + u * 32u < units) store(target + first + u * 32u, held[u]);
      }
    }
  }
}

// Takes what has arrived to where it belongs. Behind the step and the routing: a row that names the counts, then one a
// source: its segment, and where its tokens are, by their number at the source where `per_call` is 1, else as they arrived.
template <class C> TS_DEV void place_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem) {
  typedef MoeShape<C> Shape;
  const MoeShared shared = moe_shared<C>(smem);
  const Step* sources = behind + 2;
  const u32 capacity = (u32)behind[0].size * Shape::kTopK, bytes = step.first_tile;
  u32* counts = (u32*)call.at(behind[1].target, behind[1].target_offset);
  u8* out = call.at(step.target, step.target_offset);
  for (u32 i = thread(); i < Shape::kExperts; i += C::threads) {
    const Step& row = sources[i / Shape::kLocal];
    const u32 found = load((const u32*)call.at(row.source, row.source_offset) + i % Shape::kLocal);
    shared.rows[i] = found;
    if (me.index == 0u) store(counts + i, found);
  }
  for (u32 s = thread(); s < Shape::kWorld; s += C::threads)
    shared.tokens[s] = load((const u32*)call.at(sources[s].source, sources[s].source_offset) + Shape::kLocal);
  begin_rows<C>(shared);
  const u32 warp = thread() / 32u;
  for (u32 turn = 0; turn < Shape::kWorld; ++turn) {
    const u32 s = (step.counter + turn) % Shape::kWorld;
    const Step& row = sources[s];
    const u32* entries = (const u32*)call.at(row.source, row.source_offset) + Shape::kHead;
    const u8* tokens = call.at(row.target, row.target_offset);
    const u32 number = shared.tokens[s];
    const Share even = share_of(number, me.index, me.gang);
    charge_rows<C>(call, row, even.end - even.begin, bytes);
    if (warp < Shape::kMovers) {
      for (u64 slot = me.index * Shape::kMovers + warp; slot < number; slot += me.gang * Shape::kMovers) {
        const u32* words = entries + slot * Shape::kEntry;
        u32 places[Shape::kTopK];
#pragma unroll
        for (u32 k = 0; k < Shape::kTopK; ++k) {
          const u32 place = load(words + 1 + k);
          places[k] = place == kNoKey ? kNoKey : shared.first[s * Shape::kLocal + place / capacity] + place % capacity;
        }
        const u64 from = row.per_call != 0u ? load(words) : slot;
        place_row<C>(tokens + from * bytes, out, places, bytes);
      }
    }
    if constexpr (C::link_clock) sync();
  }
}

// The way back. Rows of every source and local expert, from the counts of the dispatch.
template <class C> TS_DEV void tally_step(const Call& call, const Step& step, u8* smem) {
  typedef MoeShape<C> Shape;
  const MoeShared shared = moe_shared<C>(smem);
  const u32* counts = (const u32*)call.at(step.source, step.source_offset);
  for (u32 i = thread(); i < Shape::kExperts; i += C::threads) shared.rows[i] = load(counts + i);
  begin_rows<C>(shared);
}

// Gives a source its rows, or tells it where they begin. Rows of one source and expert stand together on both sides.
// `size`: rows that there are; `counter`: entries of the largest shard. Wrong counts reach no further than these.
template <class C> TS_DEV void return_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem) {
  typedef MoeShape<C> Shape;
  const MoeShared shared = moe_shared<C>(smem);
  const u32 source = step.value, bytes = step.first_tile;
  const u32 capacity = (u32)behind[0].size * Shape::kTopK;
  const u32* first = shared.first + source * Shape::kLocal;
  const u32* rows = shared.rows + source * Shape::kLocal;
  u8* segment = call.at(step.target, step.target_offset);
  if (step.peer == 0u) {
    if (me.index == 0u)
      for (u32 e = thread(); e < Shape::kLocal; e += C::threads) store((u32*)segment + e, first[e]);
    return;
  }
  const u8* from = call.at(step.source, step.source_offset);
  u32 number = 0;
#pragma unroll 4
  for (u32 e = 0; e < Shape::kLocal; ++e) number += rows[e];
  number = number < capacity ? number : capacity;
  const u32 warp = thread() / 32u;
  const Share even = share_of(number, me.index, me.gang);
  charge_rows<C>(call, step, even.end - even.begin, bytes);
  if (warp < Shape::kMovers) {
    u32 expert = 0, passed = 0;  // rows of the experts before
    for (u32 i = me.index * Shape::kMovers + warp; i < number; i += me.gang * Shape::kMovers) {
      while (i - passed >= rows[expert]) passed += rows[expert++];
      const u64 row = first[expert] + (i - passed);
      if (row < step.size) move_row<C>(from + row * bytes, segment + (u64)i * bytes, bytes);
    }
  }
  if constexpr (C::link_clock) sync();
}

// `count` numbers of a row, weighted, in the order of a token's experts.
template <class C, int kElements> TS_DEV void add_weighted(float (&sum)[kElements], const void* held, float weight) {
  if constexpr (Same<typename C::Part, Fp32>::value) {
    const float* values = (const float*)held;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const float term = weight * values[e];
      sum[e] += term;
    }
  } else {
    const u16* values = (const u16*)held;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const float term = weight * unpack1<typename C::Part>(values[e]);
      sum[e] += term;
    }
  }
}

constexpr int kMoeBatch = 4;  // rows loaded together: as many as registers hold beside their addresses

// Adds up the rows of a token. `rows[k]`: address of its k-th row, 0 where it has none.
template <class C>
TS_DEV void weigh_token(const u64 (&rows)[C::moe_top_k], const float (&weights)[C::moe_top_k], u8* to, u32 bytes) {
  typedef SumUnit<C> Unit;
  typedef typename Unit::Held Held;
  constexpr int kBatch = C::moe_top_k < kMoeBatch ? C::moe_top_k : kMoeBatch;
  const u32 units = bytes / C::sum_unit;
#pragma unroll 1
  for (u32 i = thread() % 32u; i < units; i += 32u) {
    float sum[Unit::kElements];
#pragma unroll
    for (int e = 0; e < Unit::kElements; ++e) sum[e] = 0.f;
#pragma unroll
    for (int first = 0; first < C::moe_top_k; first += kBatch) {
      Held held[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k)
        if (first + k < C::moe_top_k && rows[first + k] != 0ull) held[k] = load((const Held*)rows[first + k] + i);
#pragma unroll
      for (int k = 0; k < kBatch; ++k)
        if (first + k < C::moe_top_k && rows[first + k] != 0ull)
          add_weighted<C, Unit::kElements>(sum, &held[k], weights[first + k]);
    }
    Unit::write(to + (u64)i * Unit::kOutBytes, sum);
  }
}

// How a source finds its rows of a rank: where they begin in the rank's own rows (known from the tally, or told by it), or
// packed in a segment.
enum MoeRows : u32 { kPacked = 0, kOwn = 1, kTold = 2 };

// Where the rows of each expert begin that this rank's tokens went to. All threads.
template <class C> TS_DEV void find_rows(const Call& call, const Step* holders, const MoeShared& shared, u32 rank) {
  typedef MoeShape<C> Shape;
  if (thread() == 0) {
#pragma unroll 1
    for (u32 holder = 0; holder < Shape::kWorld; ++holder) {
      u32 sum = 0;
#pragma unroll 1
      for (u32 e = holder * Shape::kLocal; e < (holder + 1u) * Shape::kLocal; ++e) {
        shared.rows[e] = sum;
        sum += shared.total[e];
      }
    }
  }
  sync();
  for (u32 i = thread(); i < Shape::kExperts; i += C::threads) {
    const Step& row = holders[i / Shape::kLocal];
    if (row.per_call == kOwn) shared.rows[i] = shared.first[rank * Shape::kLocal + i % Shape::kLocal];
    if (row.per_call == kTold)
      shared.rows[i] = load((const u32*)call.at(row.source, row.source_offset) + i % Shape::kLocal);
  }
  sync();
}

// Behind the step and the routing: a row for every rank that holds rows: its segment, where the rows are, how many there may
// be (`size`), and which way (`per_call`).
template <class C> TS_DEV void weigh_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem) {
  typedef MoeShape<C> Shape;
  const MoeShared shared = moe_shared<C>(smem);
  const Routes routes = routes_of<C>(call, behind[0]);
  const Step* holders = behind + 1;
  const u32 bytes = step.first_tile, out_bytes = bytes / BytesOf<typename C::Part>::value * BytesOf<typename C::Out>::value;
  const float* given = (const float*)call.at(step.source, step.source_offset);
  u8* out = call.at(step.target, step.target_offset);
  find_rows<C>(call, holders, shared, step.counter);
  const Share share = share_of(step.size, me.index, me.gang);
  const u32 warp = thread() / 32u;
  if constexpr (C::link_clock) {
    for (u32 holder = 0; holder < Shape::kWorld; ++holder) {
      u64 mine = 0;
      for (u32 e = holder * Shape::kLocal; e < (holder + 1u) * Shape::kLocal; ++e)
        mine += load(routes.counts + me.index * Shape::kKeys + e);
      charge_rows<C>(call, holders[holder], mine, bytes);
    }
  }
  if (warp < Shape::kMovers) {
    for (u64 token = share.begin + warp; token < share.end; token += Shape::kMovers) {
      u64 rows[Shape::kTopK];
      float weights[Shape::kTopK];
#pragma unroll
      for (u32 k = 0; k < Shape::kTopK; ++k) {
        const u64 entry = token * Shape::kTopK + k;
        const u32 expert = expert_of<C>(load(routes.indices + entry));
        rows[k] = 0ull;
        weights[k] = 0.f;
        if (expert != kNoKey) {
          const Step& row = holders[expert / Shape::kLocal];
          const u64 number = shared.rows[expert] + shared.before[expert] + load(routes.ranks + entry);
          weights[k] = load(given + entry);
          if (number < row.size) rows[k] = (u64)(call.at(row.target, row.target_offset) + number * bytes);
        }
      }
      weigh_token<C>(rows, weights, out + token * out_bytes, bytes);
    }
  }
  if constexpr (C::link_clock) sync();
}

// The steps of a dispatch whose rows experts multiply, and of a combine of products (grouped.cuh).
template <class C> TS_DEV void group_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem);
template <class C>
TS_DEV void return_group_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem);

template <class C> TS_DEV void ragged_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem) {
  if (step.per_call == kRoute) {
    route_step<C>(call, step, behind, me, smem);
  } else if (step.per_call == kTotal) {
    total_step<C>(call, behind, me, smem);
  }
  if constexpr (C::moe_combines) {
    if (step.per_call == kTally) {
      tally_step<C>(call, step, smem);
    } else if (step.per_call == kReturn) {
      return_step<C>(call, step, behind, me, smem);
    } else if (step.per_call == kWeigh) {
      weigh_step<C>(call, step, behind, me, smem);
    }
    if constexpr (Grouped<C>::value) {
      if (step.per_call == kReturnGroup) return_group_step<C>(call, step, behind, me, smem);
    }
  } else if constexpr (Grouped<C>::value) {
    group_step<C>(call, step, behind, me, smem);
  } else {
    if (step.per_call == kSend) {
      send_step<C>(call, step, behind, me, smem);
    } else if (step.per_call == kPlace) {
      place_step<C>(call, step, behind, me, smem);
    }
  }
}

// How many rows from `row` on are waits, of `left`.
template <class C> TS_DEV u32 waits_from(const Step* row, u32 left) {
  u32 found = 1;
  while (found < left && row[found].kind == kWait && found < C::threads) ++found;
  return found;
}

// Whether a wait of this rank has failed, as one thread sees it: said to all.
TS_DEV void tell_failed(const Call& call, u32* failed) { *failed = load_relaxed(&call.args->state->failed); }

// Walks the steps of a gang. All threads of the block. Once a wait has failed, numbers of peers may not be there: steps that
// go by them are left out, and so are the signals that would say that they are.
template <class C> TS_DEV void moe_role(const Call& call, const Block& me, u8* smem) {
  TilePipe pipe{smem, (u64*)smem, 0};
  u32* told = moe_shared<C>(smem).failed;
  if (thread() == 0) *told = 1u;  // until a wait has not
  bool signalled = false;
  bool failed = false;
  for (u32 i = 0; i < me.num_steps; ++i) {
    const Step* row = call.args->steps + me.first_step + i;
    const Step step = *row;
    step_begin(step.id);
    if (step.kind == kSignal) {
      if (!signalled) sync();
      if (thread() == 0) {
        if (!failed) signal_step(call, step, !signalled);
      }
    } else if (step.kind == kWait) {
      const u32 waits = waits_from<C>(row, me.num_steps - i);
      if (thread() < waits) {
        step_begin(row[thread()].id);
        wait_step(call, row[thread()]);
      }
      sync();
      if (thread() == 0) tell_failed(call, told);
      sync();
      failed = *told != 0u;
      i += waits - 1;
    } else if (step.kind == kCopy) {
      copy_step<C>(call, step, row + 1, me, pipe);
    } else if (step.kind == kRagged) {
      if (!failed) ragged_step<C>(call, step, row + 1, me, smem);
      i += step.rows;
    }
    signalled = step.kind == kSignal;
    step_end();
  }
  sync();
  if (thread() == 0) finish(call, call.args->last);
}

}  // namespace ts
