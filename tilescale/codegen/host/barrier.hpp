// Barriers: of the block, named, and mbarriers in shared memory.
#pragma once
#include "memory.hpp"

namespace ts::host {

constexpr u64 kMbarrierMark = 0x7C5Bull << 48;
constexpr long long kMaxPendingBytes = (1 << 20) - 1;

inline void release(NamedBarrier& barrier) {
  barrier.arrived = barrier.expected = 0;
  wake_all(barrier.waiters);
}

// `threads` 0: all threads of the block that have not exited.
inline void arrive_and_wait(u32 id, u32 threads, bool waits = true) {
  Fiber* fiber = machine->me;
  Cta* block = fiber->block;
  if (id >= 16) fail(kBarrier, here(), "a block has 16 barriers, not number %u", id);
  NamedBarrier& barrier = block->barriers[id];
  if (threads % 32 || threads > block->node->threads)
    fail(kBarrier, here(), "barrier %u of %u threads: a multiple of 32 up to the block's %u is needed", id, threads,
         block->node->threads);
  if (barrier.arrived && barrier.expected != threads)
    fail(kBarrier, here(), "barrier %u is used for %u and for %u threads at once (0: the block)", id, barrier.expected, threads);
  barrier.expected = threads;
  if (++barrier.arrived == (threads ? threads : block->live)) {
    release(barrier);
    return;
  }
  if (!waits) return;
  barrier.waiters.push_back(fiber);
  block_fiber(kNamedBarrier, id, threads);
}

// A thread has exited: barriers of the whole block no longer count it.
void leave_barriers(Cta* block) {
  for (NamedBarrier& barrier : block->barriers)
    if (barrier.arrived && barrier.expected == 0 && barrier.arrived == block->live) release(barrier);
}

inline Mbarrier& mbarrier_at(Cta* block, const u64* barrier, u32* index = nullptr) {
  check_shared(block, here(), reinterpret_cast<u64>(barrier), 8, "uses an mbarrier of");
  const u64 number = *barrier - kMbarrierMark;
  const u32 offset = static_cast<u32>(reinterpret_cast<const u8*>(barrier) - block->smem);
  if (number >= block->mbarriers.size() || block->mbarriers[number].offset != offset)
    fail(kMbarrier, here(), "the mbarrier at shared offset %u is not initialised, or was overwritten", offset);
  if (index) *index = static_cast<u32>(number);
  return block->mbarriers[number];
}

inline void complete_phase(Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = static_cast<int>(barrier.arrivals);
  wake_all(barrier.waiters);
}

inline void arrive(Cta* block, u64* address, u32 bytes) {
  Mbarrier& barrier = mbarrier_at(block, address);
  if (barrier.pending == 0)
    fail(kMbarrier, here(), "arrives at the mbarrier at shared offset %u more than %u times in a phase (%lld bytes are missing)",
         barrier.offset, barrier.arrivals, barrier.bytes);
  barrier.bytes += bytes;
  if (barrier.bytes > kMaxPendingBytes)
    fail(kMbarrier, here(), "the mbarrier at shared offset %u expects %lld bytes, the limit is %lld", barrier.offset,
         barrier.bytes, kMaxPendingBytes);
  --barrier.pending;
  complete_phase(barrier);
  maybe_yield(4);
}

// A copy has landed `bytes`. They belong to the phase in which it was issued.
void complete_bytes(Cta* block, const Op& op, u32 bytes) {
  Mbarrier& barrier = block->mbarriers[op.barrier];
  barrier.bytes -= bytes;
  if (barrier.phase != op.phase)
    fail(kMbarrier, op.place, "%u bytes land at the mbarrier at shared offset %u after the phase of their copy was complete: "
         "fewer were expected than copied", bytes, barrier.offset);
  if (barrier.bytes < 0 && barrier.pending == 0)
    fail(kMbarrier, op.place, "%lld bytes more than expected land at the mbarrier at shared offset %u", -barrier.bytes,
         barrier.offset);
  complete_phase(barrier);
}

}  // namespace ts::host

namespace ts {

void sync() { host::arrive_and_wait(0, 0); }

void named_barrier(u32 id, u32 threads) {
  if (threads == 0) host::fail(host::kBarrier, host::here(), "a named barrier needs a count of threads");
  host::arrive_and_wait(id, threads);
}

void mb_init(u64* address, u32 arrivals) {
  using namespace host;
  Cta* block = machine->me->block;
  check_aligned(reinterpret_cast<u64>(address), 8, "the address of an mbarrier");
  check_shared(block, here(), reinterpret_cast<u64>(address), 8, "uses an mbarrier of");
  if (arrivals == 0 || arrivals > static_cast<u32>(kMaxPendingBytes))
    fail(kMbarrier, here(), "an mbarrier counts 1 to %lld arrivals, not %u", kMaxPendingBytes, arrivals);
  const u32 offset = static_cast<u32>(reinterpret_cast<u8*>(address) - block->smem);
  *address = kMbarrierMark + block->mbarriers.size();
  block->mbarriers.push_back({offset, arrivals, static_cast<int>(arrivals), 0, 0, {}});
}

void mb_fence_init() {}
void named_arrive(u32 id, u32 threads) {
  if (threads == 0) host::fail(host::kBarrier, host::here(), "a named barrier needs a count of threads");
  host::arrive_and_wait(id, threads, false);
  host::maybe_yield(2);
}

void warp_sync() {
  using namespace host;
  Fiber* fiber = machine->me;
  WarpBarrier& warp = fiber->block->warp_barriers[fiber->thread / 32];
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    wake_all(warp.waiters);
    return;
  }
  warp.waiters.push_back(fiber);
  block_fiber(kWarp, fiber->thread / 32, 32);
}

void mb_expect(u64* address, u32 bytes) { host::arrive(host::machine->me->block, address, bytes); }
void mb_arrive(u64* address) { host::arrive(host::machine->me->block, address, 0); }

// Looks at the parity again each time it runs, as hardware does: a phase that was missed is not remembered.
bool mb_try_wait(u64* address, u32 parity) {
  using namespace host;
  Fiber* fiber = machine->me;
  for (;;) {
    Mbarrier& barrier = mbarrier_at(fiber->block, address);
    if ((barrier.phase & 1) != (parity & 1)) return true;
    barrier.waiters.push_back(fiber);
    block_fiber(kMbarrierPhase, barrier.offset, parity);
  }
}

}  // namespace ts
