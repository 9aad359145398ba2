// Which fiber runs next, when asynchronous work happens, when launches and their blocks start.
#pragma once
#include "report.hpp"

namespace ts::host {

inline void make_runnable(Fiber* fiber) {
  fiber->waits = kRuns;
  Cta* block = fiber->block;
  if (block->runnable.empty()) machine->runnable[block->priority].push_back(block);
  block->runnable.push_back(fiber);
}

void wake(Fiber* fiber) { make_runnable(fiber); }

void wake_all(std::vector<Fiber*>& waiters) {
  for (Fiber* fiber : waiters) make_runnable(fiber);
  waiters.clear();
}

inline void leave_fiber() {
  Machine& m = *machine;
  Fiber* fiber = m.me;
  m.me = nullptr;
  switch_context(&fiber->context, &m.main);
}

// The caller has put the fiber on the queue of what it waits for. Callers look again at their condition afterwards.
void block_fiber(WaitKind kind, u64 object, u64 wanted) {
  Fiber* fiber = machine->me;
  fiber->waits = kind;
  fiber->object = object;
  fiber->wanted = wanted;
  leave_fiber();
}

void maybe_yield(u32 one_in) {
  Machine& m = *machine;
  if (!m.me || m.random.below(one_in)) return;
  make_runnable(m.me);
  leave_fiber();
}

// ---- blocks --------------------------------------------------------------------------------------------------------

inline void map_shared(Cta* block, u64 bytes) {
  Machine& m = *machine;
  constexpr u64 kPage = 4096;
  const u64 size = (bytes + 1023) / 1024 * 1024, map_size = (size + kPage - 1) / kPage * kPage;
  block->smem_size = bytes;
  block->smem_map_size = map_size;
  for (auto& [map, free_size] : m.free_smem) {
    if (free_size != map_size) continue;
    block->smem_map = map;
    std::swap(map, m.free_smem.back().first);
    std::swap(free_size, m.free_smem.back().second);
    m.free_smem.pop_back();
    break;
  }
  if (!block->smem_map) {  // a page without access follows, so that an overrun is a fault with a place
    void* map = mmap(nullptr, map_size + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) fail(kUnsupported, {block->node->rank, block->node->index}, "no memory for shared memory");
    mprotect(static_cast<u8*>(map) + map_size, kPage, PROT_NONE);
    block->smem_map = static_cast<u8*>(map);
  }
  block->smem = block->smem_map + (map_size - size);
  __builtin_memset(block->smem, 0xFF, size);
}

inline void finish_block(Cta* block) {
  Machine& m = *machine;
  Node* node = block->node;
  m.free_smem.push_back({block->smem_map, block->smem_map_size});
  if (block->smem_ops) {
    fail(kInFlight, {node->rank, node->index, block->index},
         "the block exits while %u asynchronous operations still use its shared memory", block->smem_ops);
  }
  --m.resident[node->rank];
  if (++node->finished == node->blocks && node->ops == 0) node_completed(node);
}

inline void finish_fiber(Fiber* fiber) {
  Cta* block = fiber->block;
  if (!StackPool::intact(fiber->stack)) fail(kMemoryFault, place_of(*fiber), "the stack of the thread overflowed");
  if (fiber->wg_issued || fiber->wg_committed > block->warpgroups[fiber->thread / 128].done)
    fail(kInFlight, place_of(*fiber), "the thread exits while its wgmma is in flight");
  stacks.give(fiber->stack);
  fiber->stack = nullptr;
  --block->live;
  leave_cluster(block);
  if (block->live) {
    leave_barriers(block);
  } else {
    finish_block(block);
  }
}

inline void fiber_body() {
  Fiber* fiber = machine->me;
  const Node& node = *fiber->block->node;
  node.entry(node.arguments, node.maps);
  fiber->done = true;
  leave_fiber();
}

inline Cta* start_block(Node* node) {
  Machine& m = *machine;
  m.blocks.push_back(std::make_unique<Cta>());
  Cta* block = m.blocks.back().get();
  block->node = node;
  block->index = node->started++;
  block->live = node->threads;
  block->warpgroups.resize((node->threads + 127) / 128);
  block->warps.resize((node->threads + 31) / 32);
  block->warp_loads.resize((node->threads + 31) / 32);
  block->warp_barriers.resize((node->threads + 31) / 32);
  block->mbarriers.reserve(32);
  if (m.order == 1) block->priority = m.rank_priority[node->rank] % Machine::kPriorities;
  if (m.order == 2) block->priority = m.random.below(Machine::kPriorities);
  if (node->rank == m.late_rank) block->priority = Machine::kPriorities;
  map_shared(block, node->shared_bytes);
  ++m.resident[node->rank];
  block->fibers.reset(new Fiber[node->threads]);
  for (u32 t = 0; t < node->threads; ++t) {
    Fiber* fiber = &block->fibers[t];
    fiber->block = block;
    fiber->thread = t;
    fiber->log = log_of(node->call, node->rank, kNoStep);
    fiber->stack = stacks.take();
    make_context(&fiber->context, fiber->stack, fiber_body);
    make_runnable(fiber);
  }
  return block;
}

// Blocks start in order, first launch first, one a place: `sm_share` places a rank.
inline bool start_blocks() {
  Machine& m = *machine;
  bool any = false;
  for (u32 rank = 0; rank < m.launch_queue.size(); ++rank) {
    auto& queue = m.launch_queue[rank];
    while (!queue.empty() && m.resident[rank] + queue.front()->cluster <= m.sm_share) {
      Node* node = queue.front();
      auto cluster = std::make_shared<Cluster>();
      for (u32 i = 0; i < node->cluster; ++i) {  // the blocks of a cluster start together
        cluster->blocks.push_back(start_block(node));
        cluster->blocks.back()->cluster = cluster;
      }
      any = true;
      if (node->started == node->blocks) queue.pop_front();
    }
  }
  return any;
}

// ---- nodes ---------------------------------------------------------------------------------------------------------

inline void start_node(Node* node) {
  Machine& m = *machine;
  if (node->kind == kKernelNode) {
    m.launch_queue[node->rank].push_back(node);
    return;
  }
  Op* op = new Op;
  op->node = node;
  op->call = node->call;
  op->place = {node->rank, node->index, kNobody, kNobody, node->step};
  op->source = node->source, op->target = node->target, op->size = node->size;
  static constexpr OpKind kKinds[] = {kCopyNode, kCopyNode, kGemmNode, kWriteNode, kReadNode};
  static constexpr Queue kFirst[] = {kStoreReads, kStoreReads, kMultiplies, kStoreWrites, kLoadReads};
  op->kind = kKinds[node->kind];
  ++node->ops;
  start_op(op, kFirst[node->kind]);
}

void node_completed(Node* node) {
  Machine& m = *machine;
  node->completed = true;
  ++m.nodes_done;
  for (u32 next : node->then)
    if (--m.nodes[next]->waits_for == 0) start_node(m.nodes[next].get());
}

void finish_op(Op* op) {
  if (op->block && op->kind != kBulkStore && op->kind != kTensorStore) --op->block->smem_ops;
  Node* node = op->block ? op->block->node : op->node;
  --node->ops;
  const bool complete = node->kind == kKernelNode ? node->finished == node->blocks : true;
  delete op;
  if (node->ops == 0 && complete) node_completed(node);
}

// ---- the loop ------------------------------------------------------------------------------------------------------

inline Op* take(std::vector<Op*>& queue) {
  const u32 i = machine->random.below(queue.size());
  Op* op = queue[i];
  queue[i] = queue.back();
  queue.pop_back();
  return op;
}

// One stage of one asynchronous operation. The lazy adversary gives in queue by queue, the others anywhere. With a late
// rank, only its operations are looked at, or only those of others.
inline bool run_async(bool late = false) {
  Machine& m = *machine;
  if (m.late_rank != kNobody) {
    for (auto& queue : m.pending) {
      for (size_t i = 0; i < queue.size(); ++i) {
        if ((queue[i]->place.rank == m.late_rank) != late) continue;
        std::swap(queue[i], queue.back());
        Op* op = queue.back();
        queue.pop_back();
        advance_op(op);
        return true;
      }
    }
    return false;
  }
  size_t count = 0;
  for (auto& queue : m.pending) count += queue.size();
  if (!count) return false;
  size_t pick = m.adversary == kLazy ? 0 : m.random.below(count);
  for (auto& queue : m.pending) {
    if (pick < queue.size()) {
      advance_op(take(queue));
      return true;
    }
    pick -= m.adversary == kLazy ? 0 : queue.size();
  }
  return false;
}

inline void resume(Fiber* fiber) {
  Machine& m = *machine;
  m.me = fiber;
  fiber->polls = 0;
  switch_context(&m.main, &fiber->context);
  m.me = nullptr;
  if (m.fault != kNoFault) throw Failed{};
  if (fiber->done) finish_fiber(fiber);
}

// A thread at random, of a block at random. A block keeps the turn for a burst, which the caches of the CPU like.
inline bool run_fiber(bool late = false) {
  Machine& m = *machine;
  for (auto& queue : m.runnable) {
    if (queue.empty() || (&queue == &m.runnable[Machine::kPriorities]) != late) continue;
    if (m.current >= queue.size() || m.random.below(m.burst) == 0) m.current = m.random.below(queue.size());
    Cta* block = queue[m.current];
    auto& fibers = block->runnable;
    std::swap(fibers[m.random.below(fibers.size())], fibers.back());
    Fiber* fiber = fibers.back();
    fibers.pop_back();
    if (fibers.empty()) {
      queue[m.current] = queue.back();
      queue.pop_back();
    }
    resume(fiber);
    return true;
  }
  return false;
}

// Threads that poll run again only when nothing else can; if nothing changes in many rounds they will never get on.
inline bool run_spinning() {
  Machine& m = *machine;
  if (m.spinning.empty()) return false;
  m.idle_rounds = m.changes == m.seen_changes ? m.idle_rounds + 1 : 0;
  m.seen_changes = m.changes;
  if (m.idle_rounds > 100) return false;
  wake_all(m.spinning);
  return true;
}

inline bool expire_waits() {
  Machine& m = *machine;
  if (!m.expire || m.counter_waiters.empty()) return false;
  m.expired_ns += 1ull << 50;
  std::vector<Fiber*> expired;
  for (auto& entry : m.counter_waiters) expired.insert(expired.end(), entry.second.begin(), entry.second.end());
  m.counter_waiters.clear();
  for (Fiber* fiber : expired) fiber->expired = true;
  wake_all(expired);
  return true;
}

inline void choose_order() {
  Machine& m = *machine;
  m.order = m.random.below(4);  // 0, 3: all alike; 1: some ranks far ahead of others; 2: some blocks
  m.async_lag = 1u << m.random.below(7);
  m.burst = 1u << (2 + m.random.below(6));
  for (u32 r = 0; r < m.launch_queue.size(); ++r) m.rank_priority.push_back(r);
  for (u32 r = m.rank_priority.size(); r > 1; --r) std::swap(m.rank_priority[r - 1], m.rank_priority[m.random.below(r)]);
}

inline void run_loop() {
  Machine& m = *machine;
  choose_order();
  std::vector<Node*> roots;
  for (auto& node : m.nodes)
    if (node->waits_for == 0) roots.push_back(node.get());
  for (Node* node : roots) start_node(node);
  for (;;) {
    start_blocks();
    if (++m.steps > m.step_limit) {
      collect_waiting();
      fail(kStepLimit, Place{}, "the run took more than %llu steps", m.step_limit);
    }
    if (m.adversary == kRandom && m.random.below(m.async_lag) == 0) run_async();
    if (run_fiber() || run_async()) continue;
    if (m.late_rank != kNobody && (run_fiber(true) || run_async(true))) continue;
    if (run_spinning()) continue;
    if (m.nodes_done == m.nodes.size()) return;
    if (start_blocks()) continue;
    if (!expire_waits()) report_deadlock();
  }
}

}  // namespace ts::host
