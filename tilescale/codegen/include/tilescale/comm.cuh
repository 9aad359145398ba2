// Counters between ranks: signals, waits with a time limit, the epoch.
#pragma once

namespace ts {

struct Maps {
  TensorMap a[3];  // own shard; gathered operand of even calls; of odd calls
  TensorMap b;
  TensorMap out;
};

// What a block knows of its call.
struct Call {
  const Arguments* args;
  u32 calls;  // completed before this one

  TS_DEV u8* at(u32 slot, u64 offset) const {
    return (u8*)(args->base[slot] + offset + ((calls & 1u) ? args->stride[slot] : 0ull));
  }
};

// Step `i` of a block. Where a launch has one, it comes with the arguments: no table is waited for.
template <class C> TS_DEV Step step_of(const Call& call, const Block& me, u32 i) {
  if constexpr (C::solo) return call.args->only;
  return call.args->steps[me.first_step + i];
}

TS_DEV void report_failure(const Call& call, u32 step, u32 counter, u32 wanted, u32 found) {
  State* state = call.args->state;
  if (atomic_add(&state->failed, 1u) == 0u) {
    state->failed_rank = call.args->rank;
    state->failed_step = step;
    state->failed_counter = counter;
    state->wanted = wanted;
    state->found = found;
  }
}

// A barrier in shared memory completes unless the block itself is broken, so the limit counts tries (each suspends the
// thread for up to a scheduling quantum), and costs no clock reads.
constexpr u32 kBarrierTries = 1u << 24;
constexpr u32 kNoCounter = 0xFFFFFFFFu;

TS_DEV void barrier_wait(const Call& call, const Step& step, u64* barrier, u32 parity) {
  for (u32 tries = 0; !mb_try_wait(barrier, parity); ++tries) {
    if (tries == kBarrierTries) {
      report_failure(call, step.id, kNoCounter, parity, parity ^ 1u);
      return;
    }
  }
}

// Looks at a counter between two at the clock, and at whether another wait has failed: that takes as long as a look.
constexpr u32 kLooks = 16;

// One thread. Past the time limit, or once any wait of this rank has failed, it returns: the kernel drains and the host
// finds the failure record. Counters grow over all calls, so the comparison is by difference.
TS_DEV void wait_step(const Call& call, const Step& step) {
  const u32* counter = (const u32*)call.args->counters[call.args->rank] + step.counter;
  const u32 target = call.calls * step.per_call + step.value;
  log_wait(counter, target);
  u32 found = load_acquire(counter);
  if ((int)(found - target) >= 0) return;
  if (load_relaxed(&call.args->state->failed) != 0u) return;
  const u64 start = time_ns();
  for (u32 looks = 1;; ++looks) {
    pause_until(counter, target);
    found = load_acquire(counter);
    if ((int)(found - target) >= 0) return;
    if (looks % kLooks != 0u) continue;
    if (load_relaxed(&call.args->state->failed) != 0u) return;
    if (time_ns() - start > call.args->time_limit_ns) {
      report_failure(call, step.id, step.counter, target, found);
      return;
    }
  }
}

// One thread, behind a block barrier. `fence` is false where the step before was a signal too.
TS_DEV void signal_step(const Call& call, const Step& step, bool fence) {
  if (fence) fence_system();
  signal_add((u32*)call.args->counters[step.source] + step.counter, step.value);
}

// The scale model: ranks share one GPU, and every remote byte takes the links of its sender and its receiver for as long
// as it would on the machine that is modelled. Signals are not charged.
// Small enough that senders into one receiver take turns, large enough that a piece outlasts its reservations (1.5 us).
constexpr u64 kChargeBytes = 524288;

TS_DEV Links* links_of(const Call& call, u32 rank) { return (Links*)(call.args->counters[rank] - kLinksBeforeCounters); }

// Takes both links for `bytes`; returns until when.
TS_DEV u64 reserve_links(const Call& call, const Step& step, u64 bytes) {
  const u64 ns = bytes * call.args->link_fs_per_byte / 1000000u;
  const u64 sent = link_reserve(&links_of(call, step.counter)->egress, ns);
  const u64 received = link_reserve(&links_of(call, step.value)->ingress, ns);
  return sent > received ? sent : received;
}

// One thread that copies nothing: walks the links' time line for `bytes`, piece by piece and one piece ahead, while
// others copy. The time that reservations take is so hidden behind the links.
TS_DEV void walk_links(const Call& call, const Step& step, u64 bytes) {
  if (step.counter == step.value || bytes == 0) return;
  u64 before = 0;
  while (bytes > 0) {
    const u64 piece = bytes < kChargeBytes ? bytes : kChargeBytes;
    const u64 end = reserve_links(call, step, piece);
    link_wait(before);
    before = end;
    bytes -= piece;
  }
  link_wait(before);
}

// Around a copy by a copy engine: take the links before it, and hold the stream until they are free after it.
TS_DEV void pace_step(const Call& call, const Step& step) {
  u64* lane = &links_of(call, call.args->rank)->lanes[step.target];
  if (step.kind == kReserve) {
    link_hold(lane, reserve_links(call, step, step.size));
  } else {
    link_release(lane);
  }
}

// One thread of every participant of the last launch: whoever comes last completes the call. All have read `calls` by
// then. `participants` is 0 in launches that are not the last.
TS_DEV void finish(const Call& call, u32 participants) {
  if (participants == 0u) return;
  State* state = call.args->state;
  if (atomic_add(&state->exits, 1u) + 1u == participants) {
    store(&state->exits, 0u);
    store(&state->calls, call.calls + 1u);
  }
}

}  // namespace ts
