// The state of one emulated machine: memories, launches with their blocks and threads, asynchronous operations, the log.
#pragma once
#include "fiber.hpp"

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace ts::host {

constexpr u32 kNoStep = 0xFFFFFFFFu;
constexpr u32 kNobody = 0xFFFFFFFFu;

// Values shared with runtime/emulator.py (same order there).
enum Adversary : u32 { kLazy, kRandom, kEager };
enum MemoryKind : u32 { kData, kCounters, kControl };
enum FaultKind : u32 {
  kNoFault, kOutOfBounds, kUninitialised, kMbarrier, kBarrier, kCollective, kInFlight, kMisaligned, kStepLimit, kMemoryFault,
  kDeadlock, kUnsupported
};
enum WaitKind : u32 {
  kRuns, kCounter, kMbarrierPhase, kNamedBarrier, kBulkDone, kBulkRead, kTensorCore, kSpins, kNotStarted, kWarp, kClusterBarrier,
  kCopiesDone
};
enum LogKind : u32 { kReads, kWrites, kSignals, kWaits };

struct Place {
  u32 rank = kNobody, node = kNobody, block = kNobody, thread = kNobody, step = kNoStep;
  u32 beside = kNoStep;  // a step that what is loaded belongs to as well
};

struct Access {
  u32 memory;
  std::vector<u64> bits[2];  // read, written: one bit a byte
};

// What one step of one rank did in one call.
struct StepLog {
  u32 call, rank, step;
  std::deque<Access> accesses;
  Access* last = nullptr;
  struct Signal { u32 rank, counter; u64 amount; };
  struct Wait { u32 counter, target, found; bool wanted; };
  std::vector<Signal> signals;
  std::vector<Wait> waits;
};

struct Memory {
  u32 index, rank, kind;
  u64 base, size;
  u32 counter_stride;
  std::vector<u8> shadow;  // 1: initialised
  u64 end() const { return base + size; }
};

struct Cta;
struct Node;

// A copy to shared memory by a thread: `bytes` of 16, the rest are zeros; and those that it waits for together.
struct ThreadCopy { u64 source, target; u32 bytes; };
struct CopyGroup {
  std::vector<ThreadCopy> items;
  bool flying = false;
};

struct BulkGroup { u32 reads = 0, writes = 0; };  // operations that still have to read shared memory, to finish

struct Fiber {
  Context context;
  Cta* block = nullptr;
  u8* stack = nullptr;
  u32 thread = 0, step = kNoStep, beside = kNoStep;
  StepLog* log = nullptr;
  WaitKind waits = kRuns;
  u64 object = 0;             // what it waits for: address, offset of an mbarrier, number of a barrier
  u64 wanted = 0;
  bool done = false, expired = false;
  std::vector<BulkGroup> bulk;  // groups that may be in flight, from number `bulk_base`; `bulk_committed` is the open one
  u64 bulk_base = 0, bulk_committed = 0;
  std::deque<CopyGroup> copies;  // of this thread, from number `copies_base`; `copies_committed` is the open one
  u64 copies_base = 0, copies_committed = 0;
  u64 wg_committed = 0;
  u32 wg_issued = 0;          // in the open group
  u32 polls = 0;              // since it last ran
};

struct Mbarrier {
  u32 offset, arrivals;
  int pending;
  long long bytes;
  u64 phase;                  // phases completed
  std::vector<Fiber*> waiters;
};

struct NamedBarrier {
  u32 arrived = 0, expected = 0;
  std::vector<Fiber*> waiters;
};

// One wgmma of a warpgroup: `d[t]` is the fragment of thread t.
struct Wgmma {
  u64 a, b;
  u32 slab_bytes, n, format, seen;
  bool transpose_a, transpose_b, add;
  float* d[128];
};

struct WgmmaGroup {
  std::vector<Wgmma> items;
  u32 committed = 0;
};

struct Warpgroup {
  std::deque<WgmmaGroup> groups;
  u64 done = 0;               // groups executed; groups[0] is number `done`
  std::vector<Fiber*> waiters;
};

// One mma.sync of a warp, while its threads come together.
struct WarpProduct {
  u32 arrived = 0, format = 0, rows = 1, columns = 1;  // instructions along both
  float* d[32];
  const u32* a[32];
  const u32* b[32];
  std::vector<Fiber*> waiters;
};

// One ldmatrix of a warp, while its threads come together.
struct WarpLoad {
  u32 arrived = 0, count = 0;
  bool turned = false;
  u32* r[32];
  const u8* const* rows[32];
  std::vector<Fiber*> waiters;
};

// The threads of a warp come together.
struct WarpBarrier {
  u32 arrived = 0;
  std::vector<Fiber*> waiters;
};

// Blocks that start together and see each other's shared memory.
struct Cluster {
  std::vector<Cta*> blocks;
  u32 arrived = 0;
  std::vector<Fiber*> waiters;
};

// A block of a launch.
struct Cta {
  Node* node;
  std::shared_ptr<Cluster> cluster;
  std::vector<WarpProduct> warps;
  std::vector<WarpLoad> warp_loads;
  std::vector<u8> arriving;   // copies to each 16 bytes of shared memory that their thread has not waited for
  std::vector<WarpBarrier> warp_barriers;
  u32 index, live;
  u32 priority = 0;
  std::vector<Fiber*> runnable;
  u8* smem = nullptr;
  u8* smem_map = nullptr;
  u64 smem_size = 0, smem_map_size = 0;
  u32 smem_ops = 0;           // asynchronous operations that still touch its shared memory
  std::unique_ptr<Fiber[]> fibers;
  std::vector<Mbarrier> mbarriers;
  NamedBarrier barriers[16];
  std::vector<Warpgroup> warpgroups;
};

enum OpKind : u32 { kTensorLoad, kBulkLoad, kBulkStore, kTensorStore, kMultiply, kCopyNode, kGemmNode, kWriteNode, kReadNode,
  kThreadCopies, kPacketHalf };

// Queues of pending work, in the order in which the lazy adversary gives in.
enum Queue : u32 { kLoadReads, kLoadWrites, kMultiplies, kStoreReads, kStoreWrites, kQueues };

struct Op {
  OpKind kind;
  Place place;
  u32 call = 0;
  Fiber* issuer = nullptr;
  Cta* block = nullptr;
  Node* node = nullptr;
  bool was_read = false;
  u64 source = 0, target = 0, size = 0;
  TensorMap map{};
  int at[3] = {0, 0, 0};
  u32 dims = 0;
  int reduce = -1;            // stores: the format in which they add, -1: they replace
  u32 barrier = 0;            // index in the block
  u64 phase = 0, group = 0;
  Warpgroup* warpgroup = nullptr;
  std::vector<u8> data;
};

struct HostMaps { TensorMap map[8]; };
using Entry = void (*)(Arguments, HostMaps);

struct LibraryGemm { u64 a, b, out; u32 m, n, k, in_format, out_format, b_transposed, a_transposed; };

enum NodeKind : u32 { kKernelNode, kCopyEngineNode, kLibraryNode, kCallerWrites, kCallerReads };

struct Node {
  NodeKind kind;
  u32 index, rank, call, step = kNoStep;
  u32 waits_for = 0;          // nodes it depends on that have not completed
  std::vector<u32> then;
  Entry entry = nullptr;
  Arguments arguments;
  HostMaps maps;
  u32 blocks = 0, threads = 0, shared_bytes = 0, cluster = 1;
  u32 started = 0, finished = 0, ops = 0;
  u64 source = 0, target = 0, size = 0;
  LibraryGemm gemm{};
  std::vector<u8> data;       // written by, or seen by, the caller
  bool completed = false;
};

// One line of a deadlock report.
struct Waiting { u32 rank, node, block, first_thread, last_thread, step, kind, owner; u64 object, found, wanted; };

// An address range that stands for the same bytes of several memories.
struct Multicast {
  u64 base, size;
  std::vector<u64> members;   // their addresses
};

struct Failed {};

class Random {
 public:
  void seed(u64 value) { state_ = value * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull; for (int i = 0; i < 4; ++i) next(); }
  u64 next() {
    state_ ^= state_ >> 12, state_ ^= state_ << 25, state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Dull >> 16;
  }
  u32 below(u64 bound) { return static_cast<u32>(next() % bound); }

 private:
  u64 state_ = 1;
};

struct Machine {
  // Declared.
  u32 adversary = kLazy, sm_share = 1;
  u64 step_limit = 0;
  u32 late_rank = kNobody;    // runs only when no other rank can
  bool expire = false;        // a deadlocked wait returns with time run out, so that the drain path runs
  std::vector<std::unique_ptr<Memory>> memories;
  std::vector<Memory*> by_address;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Multicast> multicasts;

  // Running.
  Random random;
  Context main;
  Fiber* me = nullptr;
  std::vector<std::unique_ptr<Cta>> blocks;
  static constexpr u32 kPriorities = 16;
  std::vector<Cta*> runnable[kPriorities + 1];  // blocks with threads that can run; last: those of the late rank
  std::vector<Fiber*> spinning;
  std::vector<Op*> pending[kQueues];
  std::vector<std::deque<Node*>> launch_queue;  // by rank, kernels with blocks to start
  std::vector<u32> resident;                    // by rank
  std::unordered_map<u64, std::vector<Fiber*>> counter_waiters;
  std::vector<std::pair<u8*, u64>> free_smem;
  u32 order = 0, async_lag = 1, burst = 1, idle_rounds = 0, nodes_done = 0;
  u32 current = 0;                              // index of the block that runs now, in its queue
  std::vector<u32> rank_priority;
  u64 steps = 0, expired_ns = 0;
  u64 changes = 0, seen_changes = 0;  // of global memory
  Memory* last_memory = nullptr;

  // Results.
  u32 fault = kNoFault;
  Place fault_place;
  u32 fault_memory = kNobody;
  u64 fault_offset = 0;
  std::string message;
  std::vector<Waiting> waiting;
  std::unordered_map<u64, std::unique_ptr<StepLog>> log_index;
  std::vector<StepLog*> log;
};

extern Machine* machine;
extern StackPool stacks;  // of all machines, one after another

// errors (report.hpp)
[[noreturn]] void fail(u32 kind, const Place& place, const char* format, ...) __attribute__((format(printf, 3, 4)));
Place here();
// scheduler.hpp
void block_fiber(WaitKind kind, u64 object, u64 wanted);
void wake(Fiber* fiber);
void wake_all(std::vector<Fiber*>& waiters);
void maybe_yield(u32 one_in);
void finish_op(Op* op);
void node_completed(Node* node);
// memory.hpp
// `place` null: the running thread
Memory& find_memory(u64 address, u64 bytes, const Place* place, const char* what);
StepLog* log_of(u32 call, u32 rank, u32 step);
void read_global(StepLog* log, const Place* place, u64 address, void* to, u64 bytes);
void write_global(StepLog* log, const Place* place, u64 address, const void* from, u64 bytes);
void wake_counter(u64 address);
void check_shared(Cta* block, const Place& place, u64 address, u64 bytes, const char* what);
// mbarrier.hpp
void complete_bytes(Cta* block, const Op& op, u32 bytes);
void leave_barriers(Cta* block);
// cluster.hpp
void leave_cluster(Cta* block);
// async.hpp
void start_op(Op* op, Queue queue);
void advance_op(Op* op);
// wgmma.hpp
void run_group(Warpgroup* warpgroup);
// library.hpp
void run_library(const LibraryGemm& gemm, const Place& place, StepLog* log);

}  // namespace ts::host
