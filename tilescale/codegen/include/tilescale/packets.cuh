// Sums over ranks whose parts travel as packets (NCCL's LL protocol): data and mark in one store that arrives as a whole, so
// whoever finds the mark has the data. No fence, no signal, no counter, no table: one trip over the link.
//
// Rank s's part lies in the inbox of every other rank, behind those of the ranks before it. The launch has one row, which
// comes with the arguments (see Step in abi.cuh). All warps but the last exchange packets; the last one counts the call on,
// because the fence in front of that would wait for the packets of its warp to arrive.
#pragma once

namespace ts {

// Texts of other kernels have no constant `packets`, so they stay what they were.
template <class C, class = void> struct Packets { static constexpr bool value = false; };
template <class C> struct Packets<C, typename Void<C::packets>::type> { static constexpr bool value = C::packets; };

constexpr u32 kPacketBytes = 8;   // of data, in two halves, each beside the mark
constexpr u32 kPacketLooks = 64;  // looks at packets between two at the clock, each of which takes longer than one
constexpr u32 kEpochKnown = 1;    // the barrier at which all threads know which call it is

// Threads that exchange packets.
template <class C> struct PacketThreads { static constexpr u32 value = C::threads - 32; };

// The mark of a call: how often its version of the inbox is written with it. So it differs from what the call before last
// left there, and from the zeros of a new workspace: it goes from 1 to 2^31, and begins anew when the epoch wraps.
TS_DEV u32 packet_mark(const Call& call) { return (call.calls >> 1) + 1u; }

TS_DEV bool packet_there(const U128& packet, u32 mark) { return packet.y == mark && packet.w == mark; }
TS_DEV u64 packet_data(const U128& packet) { return (u64)packet.x | ((u64)packet.z << 32); }

// The packets of rank 0 at rank `owner`; those of every other rank follow, `packets_of` each.
TS_DEV U128* inbox_of(const Call& call, const Step& step, u32 owner) { return (U128*)call.at(step.counter + owner, 0); }
TS_DEV u64 packets_of(const Step& step) { return step.size / kPacketBytes; }

// Data `held` of packets `first`, and `kUnits` - 1 more a block's threads apart, to every peer: the next rank first.
template <class C, int kUnits>
TS_DEV void send_packets(const Call& call, const Step& step, u32 mark, u64 first, const u64 (&held)[kUnits]) {
  const u32 rank = call.args->rank;
#pragma unroll
  for (int d = 1; d < C::sum_sources; ++d) {
    const u32 peer = rank + d < C::sum_sources ? rank + d : rank + d - C::sum_sources;
    U128* to = inbox_of(call, step, peer) + packets_of(step) * rank + first;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) packet_store(to + u * (u64)PacketThreads<C>::value, held[u], mark);
  }
}

template <class C, int kUnits>
TS_DEV void put_packets(const Call& call, const Step& step, const u64* part, u32 mark, u64 first) {
  u64 held[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) held[u] = load(part + first + u * (u64)PacketThreads<C>::value);
  send_packets<C, kUnits>(call, step, mark, first, held);
}

// Packets of the ranks from `source` on, held as they were at a first look, once they are all there: those that are missing
// are looked at again, together. Past the time limit, or once any wait of this rank has failed, it returns with what there
// is: the kernel drains, and the host finds the failure record.
template <class C, int kRanks, int kUnits>
TS_DEV void await_packets(const Call& call, const Step& step, const U128* from, u32 source, u32 mark,
                          U128 (&held)[kRanks][kUnits]) {
  constexpr u64 kStride = PacketThreads<C>::value;
  u64 start = 0;
  for (u32 looks = 1;; ++looks) {
    u32 missing = C::sum_sources, found = 0;
#pragma unroll
    for (int b = 0; b < kRanks; ++b) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        if (!packet_there(held[b][u], mark)) {
          missing = source + b;
          found = held[b][u].y == mark ? held[b][u].w : held[b][u].y;
        }
      }
    }
    if (missing == C::sum_sources) return;
#pragma unroll
    for (int b = 0; b < kRanks; ++b) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const U128* at = from + packets_of(step) * (source + b) + u * kStride;
        if (!packet_there(held[b][u], mark)) {
          packet_pause(at, mark);
          held[b][u] = packet_load(at);
        }
      }
    }
    if (looks % kPacketLooks != 0u) continue;
    if (start == 0) start = time_ns();
    if (load_relaxed(&call.args->state->failed) != 0u) return;
    if (time_ns() - start > call.args->time_limit_ns) {
      report_failure(call, step.id + 1u, missing, mark, found);
      return;
    }
  }
}

// The sums of packets `first`, and `kUnits` - 1 more, in the order of ranks. Those of all ranks are asked for together.
template <class C, int kUnits>
TS_DEV void sum_packets(const Call& call, const Step& step, const u64* part, const U128* inbox, u32 mark, u64 first) {
  typedef SumUnit<C> Unit;
  constexpr u64 kStride = PacketThreads<C>::value;
  constexpr int kBatch = SumShape<C>::kBatch;
  const u32 rank = call.args->rank;
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
        if (s + b >= C::sum_sources || (u32)(s + b) == rank) {  // the own part is there
          const u64 data = (u32)(s + b) == rank ? load(part + first + u * kStride) : 0ull;
          held[b][u] = U128{(u32)data, mark, (u32)(data >> 32), mark};
        } else {
          held[b][u] = packet_load(inbox + packets_of(step) * (s + b) + first + u * kStride);
        }
      }
    }
    await_packets<C>(call, step, inbox + first, s, mark, held);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (s + b < C::sum_sources) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) Unit::add(sums[u], packet_data(held[b][u]));
      }
    }
  }
  const Results results{&call, 0ull, call.args->n};
  u8* to = (u8*)call.args->base[step.target];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const u64 at = first + u * kStride;
    if constexpr (EpilogueOf<C>::any) finish_elements<C>(results, at * Unit::kElements, sums[u]);
    Unit::write(to + at * Unit::kOutBytes, sums[u]);
  }
}

// The scale model: what a block sends takes the links, with its marks, before it leaves.
template <class C> TS_DEV void walk_packets(const Call& call, const Step& step, u64 packets) {
  if (thread() == PacketThreads<C>::value) {
    Step sent = step;
    sent.counter = call.args->rank;
    for (u32 peer = 0; peer < (u32)C::sum_sources; ++peer) {
      sent.value = peer;
      walk_links(call, sent, packets * 2u * kPacketBytes);
    }
  }
  sync();
}

// All threads of the block, of which the warps that exchange packets have a share: `first` of it, up to `end`. What a block
// sends is what the blocks of its number add up elsewhere.
template <class C>
TS_DEV void exchange_packets(const Call& call, const Step& step, const u64* part, u64 first, u64 end, const u64 (&ahead)[1]) {
  constexpr int kUnits = SumShape<C>::kUnroll;
  constexpr u64 kStride = PacketThreads<C>::value;
  const u32 mark = packet_mark(call);
  if (first < end) send_packets<C, 1>(call, step, mark, first, ahead);
  u64 i = first + kStride;
  for (; i + (kUnits - 1) * kStride < end; i += kUnits * kStride) put_packets<C, kUnits>(call, step, part, mark, i);
  for (; i < end; i += kStride) put_packets<C, 1>(call, step, part, mark, i);
  step_end();
  named_arrive(kEpochKnown, C::threads);
  const U128* inbox = inbox_of(call, step, call.args->rank);
  step_begin(step.id + 1u);
  i = first;
  for (; i + (kUnits - 1) * kStride < end; i += kUnits * kStride) sum_packets<C, kUnits>(call, step, part, inbox, mark, i);
  for (; i < end; i += kStride) sum_packets<C, 1>(call, step, part, inbox, mark, i);
  step_end();
}

// All threads of the block. Operand and output have one version each, so that the first of a thread's share and the epoch
// are loaded side by side.
template <class C> TS_DEV void packet_role(const Arguments& args) {
  const Step step = args.only;
  const u64 begin = (u64)step.rows * block(), most = packets_of(step);
  const u64 end = begin + step.rows < most ? begin + step.rows : most, first = begin + thread();
  const u64* part = (const u64*)args.base[step.source];
  step_begin(step.id);
  u64 ahead[1] = {0ull};
  if (thread() < PacketThreads<C>::value && first < end) ahead[0] = load(part + first);
  const Call call{&args, load_relaxed(&args.state->calls)};
  if constexpr (C::link_clock) walk_packets<C>(call, step, begin < end ? end - begin : 0ull);
  if (thread() < PacketThreads<C>::value) {
    exchange_packets<C>(call, step, part, first, end, ahead);
  } else {
    named_barrier(kEpochKnown, C::threads);
    if (thread() == PacketThreads<C>::value) finish(call, args.last);
  }
}

}  // namespace ts
