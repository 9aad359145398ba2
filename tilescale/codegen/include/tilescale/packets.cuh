// Sums over ranks whose parts travel as packets (NCCL's LL protocol): data and mark in one store that arrives as a whole, so
// whoever finds the mark has the data. No fence, no signal, no counter, no table: one trip over the link a shot.
//
// What comes from rank s lies in the inbox of a rank behind what comes from the ranks before it. The launch has one row,
// which comes with the arguments (see Step in abi.cuh). All warps but the last exchange packets; the last one counts the
// call on, because the fence in front of that would wait for the packets of its warp to arrive.
#pragma once

namespace ts {

// Texts of other kernels have no constant `packets`, so they stay what they were.
template <class C, class = void> struct Packets { static constexpr bool value = false; };
template <class C> struct Packets<C, typename Void<C::packets>::type> { static constexpr bool value = C::packets; };

constexpr u32 kPacketBytes = 8;   // of data, in two halves, each beside the mark
constexpr u32 kPacketLooks = 64;  // looks at packets between two at the clock, each of which takes longer than one
constexpr u32 kEpochKnown = 1;    // the barrier at which all threads know which call it is

// Threads that exchange packets, and what one of them has in flight.
template <class C> struct PacketShape {
  static constexpr u32 kThreads = C::threads - 32;
  static constexpr int kBatch = SumShape<C>::kBatch;    // ranks whose packets are looked at together
  static constexpr int kUnits = SumShape<C>::kUnroll;   // packets of each
};

// The mark of a call: its epoch, with the highest bit set. So it differs from what calls before left in an inbox, and from
// the zeros of a new workspace, also when it begins anew after 2^31 calls.
constexpr u32 kMarked = 0x80000000u;
TS_DEV u32 packet_mark(const Call& call) { return call.calls | kMarked; }
// For reports: the number of the call that a mark is of, 0 of zeros.
TS_DEV u32 marked_call(u32 mark) { return mark == 0u ? 0u : (mark & ~kMarked) + 1u; }

TS_DEV bool packet_there(const U128& packet, u32 mark) { return packet.y == mark && packet.w == mark; }
TS_DEV u64 packet_data(const U128& packet) { return (u64)packet.x | ((u64)packet.z << 32); }

// What the threads of a block share: packets `first`, and every so many further, up to `end`, of the `each` that go from
// one rank to another.
struct Exchange {
  u64 each, first, end;
  const u64* operand;
  u32 rank, mark;
};

// The peer at distance `d`, the next rank first: so ranks do not all send to one.
template <class C> TS_DEV u32 peer_at(const Exchange& ex, int d) {
  return ex.rank + d < C::sum_sources ? ex.rank + d : ex.rank + d - C::sum_sources;
}

// The steps that packets are awaited in: one for all ranks, or, where they are handed out, one for each, by its distance.
struct Steps {
  u32 first;
  bool apart;
  template <class C> TS_DEV u32 of(const Exchange& ex, u32 source) const {
    if (!apart) return first;
    return first + (source > ex.rank ? source - ex.rank : source + C::sum_sources - ex.rank) - 1u;
  }
};

// Of the operand: in one shot all of it, in two the rows of `owner`.
template <class C> TS_DEV const u64* part_for(const Exchange& ex, u32 owner) {
  return C::two_shots ? ex.operand + ex.each * owner : ex.operand;
}

// Data of packets from `at` on to every peer, the same for all of them, into the inboxes from slot `slot` on.
template <class C, int kUnits>
TS_DEV void send_packets(const Call& call, const Exchange& ex, u32 slot, u64 at, const u64 (&held)[kUnits]) {
#pragma unroll
  for (int d = 1; d < C::sum_sources; ++d) {
    U128* to = (U128*)call.at(slot + peer_at<C>(ex, d), 0) + ex.each * ex.rank + at;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) packet_store(to + u * (u64)PacketShape<C>::kThreads, held[u], ex.mark);
  }
}

// One shot: packets `at`, and `kUnits` - 1 more, of the one part for all.
template <class C, int kUnits> TS_DEV void put_packets(const Call& call, const Step& step, const Exchange& ex, u64 at) {
  u64 held[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) held[u] = load(ex.operand + at + u * (u64)PacketShape<C>::kThreads);
  send_packets<C, kUnits>(call, ex, step.counter, at, held);
}

// Two shots: data of packet `at` for peers at distances from `d` on, who get other rows each.
template <class C, int kPeers>
TS_DEV void load_parts(const Step& step, const Exchange& ex, int d, u64 at, u64 (&held)[kPeers]) {
#pragma unroll
  for (int b = 0; b < kPeers; ++b) {
    if (d + b < C::sum_sources) {
      step_begin(step.id + d + b - 1u);
      held[b] = load(part_for<C>(ex, peer_at<C>(ex, d + b)) + at);
    }
  }
}

template <class C, int kPeers>
TS_DEV void deal_parts(const Call& call, const Step& step, const Exchange& ex, int d, u64 at, const u64 (&held)[kPeers]) {
#pragma unroll
  for (int b = 0; b < kPeers; ++b) {
    if (d + b < C::sum_sources) {
      step_begin(step.id + d + b - 1u);
      U128* to = (U128*)call.at(step.counter + peer_at<C>(ex, d + b), 0) + ex.each * ex.rank + at;
      packet_store(to, held[b], ex.mark);
    }
  }
}

// The same from `d` on, to the last.
template <class C> TS_DEV void deal_packets(const Call& call, const Step& step, const Exchange& ex, int d, u64 at) {
  constexpr int kBatch = PacketShape<C>::kBatch;
  for (; d < C::sum_sources; d += kBatch) {
    u64 held[kBatch];
    load_parts<C>(step, ex, d, at, held);
    deal_parts<C>(call, step, ex, d, at, held);
  }
}

// Packets of the ranks from `source` on, held as they were at a first look, once they are all there: those that are missing
// are looked at again, together. Past the time limit, or once any wait of this rank has failed, it returns with what there
// is: the kernel drains, and the host finds the failure record.
template <class C, int kRanks, int kUnits>
TS_DEV void await_packets(const Call& call, const Steps& steps, const Exchange& ex, const U128* from, u32 source,
                          U128 (&held)[kRanks][kUnits]) {
  u64 start = 0;
  for (u32 looks = 1;; ++looks) {
    u32 missing = C::sum_sources, found = 0;
#pragma unroll
    for (int b = 0; b < kRanks; ++b) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        if (!packet_there(held[b][u], ex.mark)) {
          missing = source + b;
          found = held[b][u].y == ex.mark ? held[b][u].w : held[b][u].y;
        }
      }
    }
    if (missing == C::sum_sources) return;
#pragma unroll
    for (int b = 0; b < kRanks; ++b) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const U128* at = from + ex.each * (source + b) + u * (u64)PacketShape<C>::kThreads;
        if (!packet_there(held[b][u], ex.mark)) {
          step_begin(steps.of<C>(ex, source + b));
          packet_pause(at, ex.mark);
          held[b][u] = packet_load(at);
        }
      }
    }
    if (looks % kPacketLooks != 0u) continue;
    if (start == 0) start = time_ns();
    if (load_relaxed(&call.args->state->failed) != 0u) return;
    if (time_ns() - start > call.args->time_limit_ns) {
      report_failure(call, steps.of<C>(ex, missing), missing, marked_call(ex.mark), marked_call(found));
      return;
    }
  }
}

// A first look at packets from `at` on, of the ranks from `source` on; the own rank sends none, and its place holds `own`.
template <class C, int kRanks, int kUnits>
TS_DEV void look_at_packets(const Steps& steps, const Exchange& ex, const U128* from, u32 source, const u64 (&own)[kUnits],
                            U128 (&held)[kRanks][kUnits]) {
#pragma unroll
  for (int b = 0; b < kRanks; ++b) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (source + b == ex.rank || source + b >= C::sum_sources) {
        held[b][u] = U128{(u32)own[u], ex.mark, (u32)(own[u] >> 32), ex.mark};
      } else {
        step_begin(steps.of<C>(ex, source + b));
        held[b][u] = packet_load(from + ex.each * (source + b) + u * (u64)PacketShape<C>::kThreads);
      }
    }
  }
}

// The sums of packets from `at` on, in the order of ranks. Those of all ranks are asked for together.
template <class C, int kUnits>
TS_DEV void sum_packets(const Call& call, const Step& step, const Steps& steps, const Exchange& ex, const U128* inbox,
                        u64 at) {
  typedef SumUnit<C> Unit;
  constexpr u64 kStride = PacketShape<C>::kThreads;
  constexpr int kBatch = PacketShape<C>::kBatch;
  float sums[kUnits][Unit::kElements];
  u64 own[kUnits];
  step_begin(steps.first);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    own[u] = load(part_for<C>(ex, ex.rank) + at + u * kStride);
#pragma unroll
    for (int e = 0; e < Unit::kElements; ++e) sums[u][e] = 0.f;
  }
  for (int s = 0; s < C::sum_sources; s += kBatch) {
    U128 held[kBatch][kUnits];
    look_at_packets<C>(steps, ex, inbox + at, s, own, held);
    await_packets<C>(call, steps, ex, inbox + at, s, held);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (s + b < C::sum_sources) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) Unit::add(sums[u], packet_data(held[b][u]));
      }
    }
  }
  const u64 place = C::two_shots ? ex.each * ex.rank + at : at;
  const Results results{&call, 0ull, call.args->n};
  u8* to = (u8*)call.args->base[step.target];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if constexpr (EpilogueOf<C>::any) finish_elements<C>(results, (place + u * kStride) * Unit::kElements, sums[u]);
    Unit::write(to + (place + u * kStride) * Unit::kOutBytes, sums[u]);
  }
  if constexpr (C::two_shots) {  // to be handed out, in the same bits
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      alignas(16) u8 bytes[Unit::kOutBytes];
      Unit::round(bytes, sums[u]);
      own[u] = *(const u64*)bytes;
    }
    send_packets<C, kUnits>(call, ex, step.per_call, at, own);
  }
}

// The sums of all other owners, as they come, to where they belong in the output.
template <class C> TS_DEV void get_packets(const Call& call, const Step& step, const Steps& steps, const Exchange& ex,
                                           const U128* inbox, u64 at) {
  constexpr int kBatch = PacketShape<C>::kBatch;
  u64* to = (u64*)call.args->base[step.target] + at;
  const u64 none[1] = {0ull};
  for (int s = 0; s < C::sum_sources; s += kBatch) {
    U128 held[kBatch][1];
    look_at_packets<C>(steps, ex, inbox + at, s, none, held);
    await_packets<C>(call, steps, ex, inbox + at, s, held);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (s + b < C::sum_sources && (u32)(s + b) != ex.rank) {
        step_begin(steps.of<C>(ex, s + b));
        store(to + ex.each * (s + b), packet_data(held[b][0]));
      }
    }
  }
}

// The scale model: what a block sends takes the links, with its marks, before it leaves; of two shots all before the first.
template <class C> TS_DEV void walk_packets(const Call& call, const Step& step, u64 packets) {
  if (thread() == PacketShape<C>::kThreads) {
    Step sent = step;
    sent.counter = call.args->rank;
    for (u32 peer = 0; peer < (u32)C::sum_sources; ++peer) {
      sent.value = peer;
      walk_links(call, sent, packets * (C::two_shots ? 4u : 2u) * kPacketBytes);
    }
  }
  sync();
}

// Warps that exchange packets. `ahead`: the data of the first.
template <class C> TS_DEV void one_shot(const Call& call, const Step& step, const Exchange& ex, const u64 (&ahead)[1]) {
  constexpr int kUnits = PacketShape<C>::kUnits;
  constexpr u64 kStride = PacketShape<C>::kThreads;
  if (ex.first < ex.end) send_packets<C, 1>(call, ex, step.counter, ex.first, ahead);
  u64 i = ex.first + kStride;
  for (; i + (kUnits - 1) * kStride < ex.end; i += kUnits * kStride) put_packets<C, kUnits>(call, step, ex, i);
  for (; i < ex.end; i += kStride) put_packets<C, 1>(call, step, ex, i);
  step_end();
  named_arrive(kEpochKnown, C::threads);
  const Steps steps{step.id + 1u, false};
  const U128* inbox = (const U128*)call.at(step.counter + ex.rank, 0);
  i = ex.first;
  for (; i + (kUnits - 1) * kStride < ex.end; i += kUnits * kStride)
    sum_packets<C, kUnits>(call, step, steps, ex, inbox, i);
  for (; i < ex.end; i += kStride) sum_packets<C, 1>(call, step, steps, ex, inbox, i);
  step_end();
}

// The same; a thread hands out the sums of the packets that it has added up, and takes those of the same number from others.
template <class C>
TS_DEV void two_shots(const Call& call, const Step& step, const Exchange& ex, const u64 (&ahead)[PacketShape<C>::kBatch]) {
  constexpr u64 kStride = PacketShape<C>::kThreads;
  if (ex.first < ex.end) {
    deal_parts<C>(call, step, ex, 1, ex.first, ahead);
    deal_packets<C>(call, step, ex, 1 + PacketShape<C>::kBatch, ex.first);
  }
  for (u64 i = ex.first + kStride; i < ex.end; i += kStride) deal_packets<C>(call, step, ex, 1, i);
  step_end();
  named_arrive(kEpochKnown, C::threads);
  const Steps adding{step.id + C::sum_sources - 1u, false}, handed{step.id + C::sum_sources, true};
  const U128* inbox = (const U128*)call.at(step.counter + ex.rank, 0);
  for (u64 i = ex.first; i < ex.end; i += kStride) sum_packets<C, 1>(call, step, adding, ex, inbox, i);
  const U128* sums = (const U128*)call.at(step.per_call + ex.rank, 0);
  for (u64 i = ex.first; i < ex.end; i += kStride) get_packets<C>(call, step, handed, ex, sums, i);
  step_end();
}

// All threads of the block. What a block sends is what the blocks of its number await elsewhere. Operand and output have one
// version each, so that the first of a thread's share and the epoch are loaded side by side.
template <class C> TS_DEV void packet_role(const Arguments& args) {
  constexpr int kAhead = C::two_shots ? PacketShape<C>::kBatch : 1;
  const Step step = args.only;
  const u64 each = step.size / kPacketBytes, begin = (u64)step.rows * block();
  Exchange ex{each, begin + thread(), begin + step.rows < each ? begin + step.rows : each,
              (const u64*)args.base[step.source], args.rank, 0u};
  u64 ahead[kAhead] = {};
  if (thread() < PacketShape<C>::kThreads && ex.first < ex.end) {
    if constexpr (C::two_shots) {
      load_parts<C>(step, ex, 1, ex.first, ahead);
    } else {
      step_begin(step.id);
      ahead[0] = load(ex.operand + ex.first);
    }
  }
  const Call call{&args, load_relaxed(&args.state->calls)};
  ex.mark = packet_mark(call);
  if constexpr (C::link_clock) walk_packets<C>(call, step, begin < ex.end ? ex.end - begin : 0ull);
  if (thread() >= PacketShape<C>::kThreads) {
    named_barrier(kEpochKnown, C::threads);
    if (thread() == PacketShape<C>::kThreads) finish(call, args.last);
  } else if constexpr (C::two_shots) {
    two_shots<C>(call, step, ex, ahead);
  } else {
    step_begin(step.id);
    one_shot<C>(call, step, ex, ahead);
  }
}

}  // namespace ts
