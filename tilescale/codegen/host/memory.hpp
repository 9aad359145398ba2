// Global memory: bounds, initialised bytes, the log of accesses, counters.
#pragma once
#include <algorithm>
#include <cstring>

#include "machine.hpp"

namespace ts::host {

inline Memory* look_up(u64 address) {
  Machine& m = *machine;
  if (m.last_memory && address - m.last_memory->base < m.last_memory->size) return m.last_memory;
  auto after = std::upper_bound(m.by_address.begin(), m.by_address.end(), address,
                                [](u64 a, const Memory* memory) { return a < memory->base; });
  if (after == m.by_address.begin()) return nullptr;
  return m.last_memory = *(after - 1);
}

// The memory that holds [address, address + bytes), else an error that names the nearest one below.
Memory& find_memory(u64 address, u64 bytes, const Place* at, const char* what) {
  Memory* memory = look_up(address);
  if (memory && address - memory->base + bytes <= memory->size) return *memory;
  const Place place = at ? *at : here();
  if (memory) {
    machine->fault_memory = memory->index;
    machine->fault_offset = address - memory->base;
    fail(kOutOfBounds, place, "%s %llu bytes outside any buffer", what, bytes);
  }
  fail(kOutOfBounds, place, "%s %llu bytes at address 0x%llx, below any buffer", what, bytes, address);
}

// ---- the log -------------------------------------------------------------------------------------------------------

StepLog* log_of(u32 call, u32 rank, u32 step) {
  Machine& m = *machine;
  const u64 key = static_cast<u64>(call) << 48 | static_cast<u64>(rank) << 32 | step;
  auto& entry = m.log_index[key];
  if (!entry) {
    entry.reset(new StepLog{call, rank, step, {}, nullptr, {}, {}});
    m.log.push_back(entry.get());
  }
  return entry.get();
}

inline void set_bits(std::vector<u64>& bits, u64 begin, u64 end) {
  const u64 first = begin / 64, last = (end - 1) / 64;
  const u64 head = ~0ull << (begin % 64), tail = ~0ull >> (63 - (end - 1) % 64);
  if (first == last) {
    bits[first] |= head & tail;
    return;
  }
  bits[first] |= head;
  for (u64 i = first + 1; i < last; ++i) bits[i] = ~0ull;
  bits[last] |= tail;
}

inline void log_access(StepLog* log, const Memory& memory, u64 begin, u64 end, u32 write) {
  if (memory.kind != kData || begin == end) return;
  if (!log->last || log->last->memory != memory.index) {
    log->last = nullptr;
    for (Access& access : log->accesses)
      if (access.memory == memory.index) log->last = &access;
    if (!log->last) {
      log->accesses.push_back({memory.index, {}});
      log->last = &log->accesses.back();
    }
  }
  auto& bits = log->last->bits[write];
  if (bits.empty()) bits.resize((memory.size + 63) / 64);
  set_bits(bits, begin, end);
}

// ---- accesses ------------------------------------------------------------------------------------------------------

void read_global(StepLog* log, const Place* place, u64 address, void* to, u64 bytes) {
  Memory& memory = find_memory(address, bytes, place, "reads");
  const u64 offset = address - memory.base;
  if (const void* hole = memchr(memory.shadow.data() + offset, 0, bytes)) {
    machine->fault_memory = memory.index;
    machine->fault_offset = static_cast<u64>(static_cast<const u8*>(hole) - memory.shadow.data());
    fail(kUninitialised, place ? *place : here(), "reads bytes that nothing has written");
  }
  memcpy(to, reinterpret_cast<const void*>(address), bytes);
  log_access(log, memory, offset, offset + bytes, 0);
}

void write_global(StepLog* log, const Place* place, u64 address, const void* from, u64 bytes) {
  Memory& memory = find_memory(address, bytes, place, "writes");
  const u64 offset = address - memory.base;
  if (bytes == 4) {  // the stores of fragments, by far the most
    memcpy(reinterpret_cast<void*>(address), from, 4);
    memset(memory.shadow.data() + offset, 1, 4);
  } else {
    memcpy(reinterpret_cast<void*>(address), from, bytes);
    memset(memory.shadow.data() + offset, 1, bytes);
  }
  ++machine->changes;
  log_access(log, memory, offset, offset + bytes, 1);
  if (memory.kind != kData) {
    for (u64 p = address & ~3ull; p < address + bytes; p += 4) wake_counter(p);
  }
}

void check_shared(Cta* block, const Place& place, u64 address, u64 bytes, const char* what) {
  const u64 base = reinterpret_cast<u64>(block->smem);
  if (address >= base && address + bytes <= base + block->smem_size) return;
  fail(kOutOfBounds, place, "%s %llu bytes at shared offset %lld of %llu", what, bytes,
       static_cast<long long>(address - base), block->smem_size);
}

inline void check_aligned(u64 address, u64 alignment, const char* what) {
  if (address & (alignment - 1)) fail(kMisaligned, here(), "%s must be a multiple of %llu bytes", what, alignment);
}

void load(void* value, const void* p, u32 bytes) {
  check_aligned(reinterpret_cast<u64>(p), bytes, "the address of a load");
  if (machine->adversary == kRandom) maybe_yield(64);
  read_global(machine->me->log, nullptr, reinterpret_cast<u64>(p), value, bytes);
}

void store(void* p, const void* value, u32 bytes) {
  check_aligned(reinterpret_cast<u64>(p), bytes, "the address of a store");
  if (machine->adversary == kRandom) maybe_yield(64);
  write_global(machine->me->log, nullptr, reinterpret_cast<u64>(p), value, bytes);
}

// ---- counters ------------------------------------------------------------------------------------------------------

inline bool reached(u32 value, u32 target) { return static_cast<int>(value - target) >= 0; }

void wake_counter(u64 address) {
  Machine& m = *machine;
  if (m.counter_waiters.empty()) return;
  auto entry = m.counter_waiters.find(address);
  if (entry == m.counter_waiters.end()) return;
  std::vector<Fiber*> waiters, still;
  for (Fiber* fiber : entry->second)
    (reached(*reinterpret_cast<u32*>(address), static_cast<u32>(fiber->wanted)) ? waiters : still).push_back(fiber);
  if (still.empty()) {
    m.counter_waiters.erase(entry);
  } else {
    entry->second.swap(still);
  }
  wake_all(waiters);
}

inline u32 counter_number(const Memory& memory, u64 address) {
  return static_cast<u32>((address - memory.base) / memory.counter_stride);
}

inline u32* counter_at(const u32* p, const char* what, Memory** memory) {
  const u64 address = reinterpret_cast<u64>(p);
  check_aligned(address, 4, "the address of a counter");
  *memory = &find_memory(address, 4, nullptr, what);
  if (memchr((*memory)->shadow.data() + (address - (*memory)->base), 0, 4)) {
    machine->fault_memory = (*memory)->index;
    machine->fault_offset = address - (*memory)->base;
    fail(kUninitialised, here(), "%s a counter that nothing has written", what);
  }
  return const_cast<u32*>(p);
}

inline void note_wait(const Memory& memory, u64 address, u32 target, u32 found, bool wanted) {
  if (memory.kind != kCounters) return;
  const u32 counter = counter_number(memory, address);
  auto& waits = machine->me->log->waits;
  for (auto& wait : waits) {
    if (wait.counter != counter || (wait.wanted && wanted && wait.target != target)) continue;
    if (wanted) wait.target = target, wait.wanted = true;
    wait.found = found;
    return;
  }
  waits.push_back({counter, target, found, wanted});
}

// A thread that polls again and again makes way for all others.
inline void note_poll(u64 address) {
  Machine& m = *machine;
  if (++m.me->polls <= 8) return;
  m.spinning.push_back(m.me);
  block_fiber(kSpins, address, 0);
}

inline u32 poll(const u32* p, const char* what, bool acquire) {
  Memory* memory;
  counter_at(p, what, &memory);
  note_poll(reinterpret_cast<u64>(p));
  if (acquire) note_wait(*memory, reinterpret_cast<u64>(p), 0, *p, false);
  return *p;
}

}  // namespace ts::host

namespace ts {

u32 load_acquire(const u32* p) { return host::poll(p, "acquires", true); }
u32 load_relaxed(const u32* p) { return host::poll(p, "reads", false); }
void fence_system() {}
u64 time_ns() { return host::machine->steps + host::machine->expired_ns; }

u32 atomic_add(u32* p, u32 value) {
  host::Memory* memory;
  u32* counter = host::counter_at(p, "adds to", &memory);
  const u32 old = *counter;
  *counter = old + value;
  ++host::machine->changes;
  host::log_access(host::machine->me->log, *memory, reinterpret_cast<u64>(p) - memory->base,
                   reinterpret_cast<u64>(p) - memory->base + 4, 1);
  host::wake_counter(reinterpret_cast<u64>(p));
  host::maybe_yield(4);
  return old;
}

void signal_add(u32* p, u32 value) {
  using namespace host;
  Memory* memory;
  u32* counter = counter_at(p, "signals", &memory);
  *counter += value;
  ++machine->changes;
  if (memory->kind == kCounters) {
    const u32 number = counter_number(*memory, reinterpret_cast<u64>(p));
    auto& signals = machine->me->log->signals;
    auto same = std::find_if(signals.begin(), signals.end(),
                             [&](const StepLog::Signal& s) { return s.rank == memory->rank && s.counter == number; });
    if (same == signals.end()) signals.push_back({memory->rank, number, 0}), same = signals.end() - 1;
    same->amount += value;
  }
  wake_counter(reinterpret_cast<u64>(p));
  maybe_yield(2);
}

// Blocks until the counter is there, or until its time is over (an emulation that lets waits expire).
void pause_until(const u32* p, u32 target) {
  using namespace host;
  Memory* memory;
  counter_at(p, "waits for", &memory);
  Fiber* fiber = machine->me;
  while (!reached(*p, target) && !fiber->expired) {
    machine->counter_waiters[reinterpret_cast<u64>(p)].push_back(fiber);
    block_fiber(kCounter, reinterpret_cast<u64>(p), target);
  }
  fiber->expired = false;
  note_wait(*memory, reinterpret_cast<u64>(p), target, *p, true);
}

void log_wait(const u32* p, u32 target) {
  host::Memory* memory;
  host::counter_at(p, "waits for", &memory);
  host::note_wait(*memory, reinterpret_cast<u64>(p), target, *p, true);
}

void step_begin(u32 id) {
  host::Fiber* fiber = host::machine->me;
  fiber->step = id;
  fiber->beside = host::kNoStep;
  fiber->log = host::log_of(fiber->block->node->call, fiber->block->node->rank, id);
}
void step_end() { step_begin(host::kNoStep); }
void step_shared(u32 id) { host::machine->me->beside = id; }

u32 thread() { return host::machine->me->thread; }
u32 block() { return host::machine->me->block->index; }
u32 num_blocks() { return host::machine->me->block->node->blocks; }

}  // namespace ts
