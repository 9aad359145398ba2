// The first error ends the run. A deadlock is described by who waits for what.
#pragma once
#include <cstdarg>
#include <cstdio>

#include "machine.hpp"

namespace ts::host {

Machine* machine = nullptr;
StackPool stacks;

inline Place place_of(const Fiber& fiber) {
  const Cta& block = *fiber.block;
  return {block.node->rank, block.node->index, block.index, fiber.thread, fiber.step, fiber.beside};
}

Place here() { return machine->me ? place_of(*machine->me) : Place{}; }

// A fiber that fails is left where it is; in the scheduler's own context the exception unwinds to `run`.
void fail(u32 kind, const Place& place, const char* format, ...) {
  Machine& m = *machine;
  if (m.fault == kNoFault) {
    char text[512];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    m.fault = kind;
    m.fault_place = place;
    m.message = text;
  }
  if (m.me) {
    Fiber* fiber = m.me;
    m.me = nullptr;
    switch_context(&fiber->context, &m.main);
  }
  throw Failed{};
}

inline Waiting describe(const Fiber& fiber) {
  const Place p = place_of(fiber);
  Waiting w{p.rank, p.node, p.block, p.thread, p.thread, p.step, fiber.waits, kNobody, fiber.object, 0, fiber.wanted};
  if (fiber.waits == kCounter || fiber.waits == kSpins) {
    const u64 address = fiber.object;
    for (const Memory* memory : machine->by_address) {
      if (address < memory->base || address >= memory->end()) continue;
      w.owner = memory->index;
      w.object = (address - memory->base) / memory->counter_stride;
    }
    w.found = *reinterpret_cast<const u32*>(address);
  } else if (fiber.waits == kMbarrierPhase) {  // object: offset; found: arrivals missing; wanted: bytes missing
    for (const Mbarrier& barrier : fiber.block->mbarriers) {
      if (barrier.offset != fiber.object) continue;
      w.found = static_cast<u64>(barrier.pending);
      w.wanted = static_cast<u64>(barrier.bytes);
    }
  } else if (fiber.waits == kNamedBarrier) {
    const NamedBarrier& barrier = fiber.block->barriers[fiber.object];
    w.found = barrier.arrived;
    w.wanted = barrier.expected ? barrier.expected : fiber.block->live;
  }
  return w;
}

inline bool continues(const Waiting& a, const Waiting& b) {
  return a.rank == b.rank && a.node == b.node && a.block == b.block && a.last_thread + 1 == b.first_thread &&
         a.step == b.step && a.kind == b.kind && a.owner == b.owner && a.object == b.object && a.found == b.found &&
         a.wanted == b.wanted;
}

inline void collect_waiting() {
  Machine& m = *machine;
  for (auto& block : m.blocks) {
    if (!block->fibers || !block->live) continue;
    for (u32 t = 0; t < block->node->threads; ++t) {
      const Fiber& fiber = block->fibers[t];
      if (fiber.done || fiber.waits == kRuns) continue;
      const Waiting w = describe(fiber);
      if (!m.waiting.empty() && continues(m.waiting.back(), w)) {
        m.waiting.back().last_thread = t;
      } else {
        m.waiting.push_back(w);
      }
    }
  }
  for (auto& queue : m.launch_queue) {
    for (const Node* node : queue)
      m.waiting.push_back({node->rank, node->index, node->started, 0, 0, kNoStep, kNotStarted, kNobody,
                           node->blocks - node->started, m.resident[node->rank], m.sm_share});
  }
}

// Nothing can run: bytes that no copy will bring are an error of the barrier, all else is a deadlock.
inline void report_deadlock() {
  Machine& m = *machine;
  collect_waiting();
  for (const Waiting& w : m.waiting) {
    if (w.kind == kMbarrierPhase && w.found == 0 && w.wanted != 0) {
      fail(kMbarrier, {w.rank, w.node, w.block, w.first_thread, w.step},
           "the mbarrier at shared offset %llu expects %lld bytes that no copy brings", w.object,
           static_cast<long long>(w.wanted));
    }
  }
  fail(kDeadlock, Place{}, "nothing can run");
}

}  // namespace ts::host
