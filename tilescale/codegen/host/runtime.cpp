// The emulator's runtime library: one machine at a time, driven from Python (runtime/emulator.py) through a C interface.
// Compiled once; kernels are small libraries that link against it.
#define TS_HOST
#include "primitives.hpp"

#include "scheduler.hpp"

#include "library.hpp"

#include <csetjmp>
#include <csignal>

namespace ts::host {

unsigned char* shared_memory() { return machine->me->block->smem; }

namespace {

sigjmp_buf landing;

// A kernel touched memory that is not there. The stack of its fiber is abandoned with the run.
void on_fault(int, siginfo_t* info, void*) {
  Machine& m = *machine;
  const Place place = here();
  m.me = nullptr;
  m.fault = kMemoryFault;
  m.fault_place = place;
  char text[128];
  snprintf(text, sizeof text, "plain access to 0x%llx, where nothing is mapped", reinterpret_cast<u64>(info->si_addr));
  m.message = text;
  siglongjmp(landing, 1);
}

class FaultHandler {
 public:
  FaultHandler() : stack_(64 << 10) {
    stack_t alternate{};
    alternate.ss_sp = stack_.data();
    alternate.ss_size = stack_.size();
    sigaltstack(&alternate, &old_stack_);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &old_segv_);
    sigaction(SIGBUS, &action, &old_bus_);
  }
  ~FaultHandler() {
    sigaction(SIGSEGV, &old_segv_, nullptr);
    sigaction(SIGBUS, &old_bus_, nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  std::vector<u8> stack_;
  stack_t old_stack_{};
  struct sigaction old_segv_ {}, old_bus_ {};
};

u32 add_node(NodeKind kind, u32 rank, u32 call, u32 step) {
  Machine& m = *machine;
  auto node = std::make_unique<Node>();
  node->kind = kind, node->rank = rank, node->call = call, node->step = step;
  node->index = static_cast<u32>(m.nodes.size());
  if (m.launch_queue.size() <= rank) m.launch_queue.resize(rank + 1), m.resident.resize(rank + 1);
  m.nodes.push_back(std::move(node));
  return m.nodes.back()->index;
}

}  // namespace
}  // namespace ts::host

using namespace ts::host;

extern "C" {

void ts_create(u64 seed, u32 adversary, u32 sm_share, u64 step_limit, u32 expire, u32 late_rank) {
  machine = new Machine;
  machine->random.seed(seed);
  machine->adversary = adversary;
  machine->sm_share = sm_share;
  machine->step_limit = step_limit;
  machine->expire = expire != 0;
  machine->late_rank = late_rank;
}

// 1: mapped at exactly that address. Bytes past `data_bytes` are poison, and uninitialised unless `initialised`.
u32 ts_memory(u32 rank, u32 kind, u64 address, u64 size, u32 initialised, u32 counter_stride, const void* data, u64 data_bytes) {
  Machine& m = *machine;
#ifdef MAP_FIXED_NOREPLACE
  constexpr int kFixed = MAP_FIXED_NOREPLACE;
#else
  constexpr int kFixed = 0;
#endif
  void* wanted = reinterpret_cast<void*>(address);
  void* map = mmap(wanted, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | kFixed, -1, 0);
  if (map != wanted) {
    if (map != MAP_FAILED) munmap(map, size);
    return 0;
  }
  auto memory = std::make_unique<Memory>();
  *memory = {static_cast<u32>(m.memories.size()), rank, kind, address, size, counter_stride, std::vector<u8>(size, initialised ? 1 : 0)};
  memset(map, 0xFF, size);
  if (data_bytes) {
    memcpy(map, data, data_bytes);
    memset(memory->shadow.data(), 1, data_bytes);
  }
  m.by_address.push_back(memory.get());
  std::sort(m.by_address.begin(), m.by_address.end(), [](const Memory* a, const Memory* b) { return a->base < b->base; });
  m.memories.push_back(std::move(memory));
  return 1;
}

u32 ts_kernel(u32 rank, u32 call, void* entry, const void* arguments, u64 arguments_bytes, const void* maps, u64 maps_bytes,
              u32 blocks, u32 threads, u32 shared_bytes, u32 cluster) {
  const u32 index = add_node(kKernelNode, rank, call, kNoStep);
  Node& node = *machine->nodes[index];
  node.entry = reinterpret_cast<Entry>(entry);
  memset(&node.arguments, 0, sizeof node.arguments);
  memset(static_cast<void*>(&node.maps), 0, sizeof node.maps);
  memcpy(&node.arguments, arguments, arguments_bytes);
  memcpy(static_cast<void*>(&node.maps), maps, maps_bytes);
  node.blocks = blocks, node.threads = threads, node.shared_bytes = shared_bytes, node.cluster = cluster;
  return index;
}

void ts_multicast(u64 base, u64 size, const u64* members, u64 count) {
  machine->multicasts.push_back({base, size, std::vector<u64>(members, members + count)});
}

u32 ts_copy(u32 rank, u32 call, u32 step, u64 target, u64 source, u64 size) {
  const u32 index = add_node(kCopyEngineNode, rank, call, step);
  Node& node = *machine->nodes[index];
  node.target = target, node.source = source, node.size = size;
  return index;
}

u32 ts_gemm(u32 rank, u32 call, u32 step, const LibraryGemm* gemm) {
  const u32 index = add_node(kLibraryNode, rank, call, step);
  machine->nodes[index]->gemm = *gemm;
  return index;
}

u32 ts_caller_writes(u32 rank, u32 call, u64 target, const void* data, u64 size) {
  const u32 index = add_node(kCallerWrites, rank, call, kNoStep);
  Node& node = *machine->nodes[index];
  node.target = target;
  node.data.assign(static_cast<const u8*>(data), static_cast<const u8*>(data) + size);
  return index;
}

u32 ts_caller_reads(u32 rank, u32 call, u64 source, u64 size) {
  const u32 index = add_node(kCallerReads, rank, call, kNoStep);
  Node& node = *machine->nodes[index];
  node.source = source, node.size = size;
  return index;
}

void ts_after(u32 node, u32 before) {
  machine->nodes[before]->then.push_back(node);
  ++machine->nodes[node]->waits_for;
}

// The kind of the fault, 0 when every node has completed.
u32 ts_run() {
  FaultHandler handler;
  if (sigsetjmp(landing, 1) == 0) {
    try {
      run_loop();
    } catch (const Failed&) {
    } catch (const char* text) {
      machine->fault = kUnsupported;
      machine->message = text;
    }
  }
  return machine->fault;
}

u64 ts_steps() { return machine->steps; }
const char* ts_message() { return machine->message.c_str(); }

// rank, node, block, thread, step, memory, offset
void ts_place(u64* values) {
  const Place& p = machine->fault_place;
  const u64 all[] = {p.rank, p.node, p.block, p.thread, p.step, machine->fault_memory, machine->fault_offset};
  memcpy(values, all, sizeof all);
}

u64 ts_waiting(const Waiting** first) {
  *first = machine->waiting.data();
  return machine->waiting.size();
}

const void* ts_seen(u32 node) { return machine->nodes[node]->completed ? machine->nodes[node]->data.data() : nullptr; }
const void* ts_contents(u32 memory) { return reinterpret_cast<const void*>(machine->memories[memory]->base); }

// Calls `row(call, rank, step, kind, a, b, c, d)`: reads and writes: memory, begin, end; signals: rank, counter, amount;
// waits: counter, target, found, whether the target is known.
void ts_log(void (*row)(u32, u32, u32, u32, u64, u64, u64, u64)) {
  for (const StepLog* log : machine->log) {
    for (const Access& access : log->accesses) {
      for (u32 write = 0; write < 2; ++write) {
        const auto& bits = access.bits[write];
        const u64 size = bits.size() * 64;
        for (u64 i = 0; i < size;) {
          if (i % 64 == 0 && bits[i / 64] == 0) { i += 64; continue; }
          if (!(bits[i / 64] >> (i % 64) & 1)) { ++i; continue; }
          const u64 begin = i;
          while (i < size && (bits[i / 64] >> (i % 64) & 1)) i += i % 64 == 0 && bits[i / 64] == ~0ull ? 64 : 1;
          row(log->call, log->rank, log->step, write ? kWrites : kReads, access.memory, begin, i, 0);
        }
      }
    }
    for (const auto& s : log->signals) row(log->call, log->rank, log->step, kSignals, s.rank, s.counter, s.amount, 0);
    for (const auto& w : log->waits) row(log->call, log->rank, log->step, kWaits, w.counter, w.target, w.found, w.wanted);
  }
}

void ts_destroy() {
  Machine& m = *machine;
  for (auto& queue : m.pending)
    for (Op* op : queue) delete op;
  for (auto& block : m.blocks)
    if (block->live) munmap(block->smem_map, block->smem_map_size + 4096);
  for (auto& [map, size] : m.free_smem) munmap(map, size + 4096);
  for (auto& memory : m.memories) munmap(reinterpret_cast<void*>(memory->base), memory->size);
  stacks.trim();
  delete machine;
  machine = nullptr;
}

}  // extern "C"
