// Sums over ranks whose parts travel as packets (NCCL's LL protocol): data and mark in one store that arrives as a whole, so
// whoever finds the mark has the data. No fence, no signal, no counter, no table: one trip over the link.
//
// Rank s's part lies in the inbox of every other rank, behind those of the ranks before it. The launch has one row, which
// comes with the arguments (see Step in abi.cuh).
#pragma once

namespace ts {

// Texts of other kernels have no constant `packets`, so they stay what they were.
template <class C, class = void> struct Packets { static constexpr bool value = false; };
template <class C> struct Packets<C, typename Void<C::packets>::type> { static constexpr bool value = C::packets; };

constexpr u32 kPacketBytes = 8;    // of data, in two halves, each beside the mark
constexpr u32 kPacketLooks = 64;   // polls between two looks at the clock, and at whether a wait has failed

// The mark of a call: how often its version of the inbox is written with it. So it differs from what the call before last
// left there, and from the zeros of a new workspace: it goes from 1 to 2^31, and begins anew when the epoch wraps.
TS_DEV u32 packet_mark(const Call& call) { return (call.calls >> 1) + 1u; }

TS_DEV bool packet_there(const U128& packet, u32 mark) { return packet.y == mark && packet.w == mark; }
TS_DEV u64 packet_data(const U128& packet) { return (u64)packet.x | ((u64)packet.z << 32); }

// Where the packets of rank `source` lie at rank `owner`.
TS_DEV U128* packets_at(const Call& call, const Step& step, u32 owner, u32 source) {
  return (U128*)call.at(step.counter + owner, 2ull * step.size * source);
}

// A packet that was not there yet, once it is. Past the time limit, or once any wait of this rank has failed, it returns
// what there is: the kernel drains, and the host finds the failure record.
TS_DEV U128 packet_wait(const Call& call, const Step& step, const U128* at, u32 source, u32 mark) {
  const u64 start = time_ns();
  for (u32 polls = 1;; ++polls) {
    packet_pause(at, mark);
    const U128 found = packet_load(at);
    if (packet_there(found, mark)) return found;
    if (polls % kPacketLooks != 0u) continue;
    if (load_relaxed(&call.args->state->failed) != 0u) return found;
    if (time_ns() - start > call.args->time_limit_ns) {
      report_failure(call, step.id + 1u, source, mark, found.y == mark ? found.w : found.y);
      return found;
    }
  }
}

// Packets `first`, and `kUnits` - 1 more a block's threads apart, to every peer: the next rank first.
template <class C, int kUnits> TS_DEV void put_packet_units(const Call& call, const Step& step, u32 mark, u64 first) {
  const u32 rank = call.args->rank;
  const u64* from = (const u64*)call.at(step.source, 0);
  u64 held[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) held[u] = load(from + first + u * (u64)C::threads);
#pragma unroll
  for (int d = 1; d < C::sum_sources; ++d) {
    const u32 peer = rank + d < C::sum_sources ? rank + d : rank + d - C::sum_sources;
    U128* to = packets_at(call, step, peer, rank) + first;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) packet_store(to + u * (u64)C::threads, held[u], mark);
  }
}

// The sums of as many, in the order of ranks. The packets of all of them are asked for together.
template <class C, int kUnits> TS_DEV void sum_packet_units(const Call& call, const Step& step, u32 mark, u64 first) {
  typedef SumUnit<C> Unit;
  constexpr int kBatch = SumShape<C>::kBatch;
  const u32 rank = call.args->rank;
  const u64* own = (const u64*)call.at(step.source, 0) + first;
  u8* to = call.at(step.target, 0);
  float sums[kUnits][Unit::kElements];
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
#pragma unroll
    for (int e = 0; e < Unit::kElements; ++e) sums[u][e] = 0.f;
  for (int s = 0; s < C::sum_sources; s += kBatch) {
    U128 held[kBatch][kUnits];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        if ((u32)(s + b) == rank) {
          const u64 data = load(own + u * (u64)C::threads);
          held[b][u] = U128{(u32)data, mark, (u32)(data >> 32), mark};
        } else if (s + b < C::sum_sources) {
          held[b][u] = packet_load(packets_at(call, step, rank, s + b) + first + u * (u64)C::threads);
        }
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (s + b < C::sum_sources) {
        const U128* at = packets_at(call, step, rank, s + b) + first;
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          if (!packet_there(held[b][u], mark)) held[b][u] = packet_wait(call, step, at + u * (u64)C::threads, s + b, mark);
          Unit::add(sums[u], packet_data(held[b][u]));
        }
      }
    }
  }
  const Results results{&call, 0ull, call.args->n};
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const u64 at = first + u * (u64)C::threads;
    if constexpr (EpilogueOf<C>::any) finish_elements<C>(results, at * Unit::kElements, sums[u]);
    Unit::write(to + at * Unit::kOutBytes, sums[u]);
  }
}

// The scale model: what a block sends takes the links, with its marks, before it leaves.
template <class C> TS_DEV void walk_packets(const Call& call, const Step& step, Share share) {
  if (thread() == 0) {
    Step sent = step;
    sent.counter = call.args->rank;
    for (u32 peer = 0; peer < (u32)C::sum_sources; ++peer) {
      sent.value = peer;
      walk_links(call, sent, (share.end - share.begin) * 2u * kPacketBytes);
    }
  }
  sync();
}

// All threads of the block. What a block sends is what the blocks of its number add up elsewhere.
template <class C> TS_DEV void packet_role(const Call& call, const Block& me) {
  constexpr int kUnits = SumShape<C>::kUnroll;
  constexpr u64 kThreads = C::threads;
  const Step step = call.args->only;
  const u32 mark = packet_mark(call);
  const Share share = share_of(step.size / kPacketBytes, me.index, me.gang);
  if constexpr (C::link_clock) walk_packets<C>(call, step, share);
  step_begin(step.id);
  u64 i = share.begin + thread();
  for (; i + (kUnits - 1) * kThreads < share.end; i += kUnits * kThreads) put_packet_units<C, kUnits>(call, step, mark, i);
  for (; i < share.end; i += kThreads) put_packet_units<C, 1>(call, step, mark, i);
  step_end();
  sync();
  // Every thread of the block knows the epoch: it may be counted on, while packets travel.
  if (thread() == kCounts) finish(call, call.args->last);
  step_begin(step.id + 1u);
  i = share.begin + thread();
  for (; i + (kUnits - 1) * kThreads < share.end; i += kUnits * kThreads) sum_packet_units<C, kUnits>(call, step, mark, i);
  for (; i < share.end; i += kThreads) sum_packet_units<C, 1>(call, step, mark, i);
  step_end();
}

}  // namespace ts
