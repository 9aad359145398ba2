// Asynchronous copies. A load reads global memory late and lands later; a store reads shared memory late and writes global
// memory later still. Each operation advances one stage when the adversary says.
#pragma once
#include "barrier.hpp"
#include "sum.hpp"

namespace ts::host {

void start_op(Op* op, Queue queue) {
  Machine& m = *machine;
  m.pending[queue].push_back(op);
  if (m.adversary != kEager) return;
  m.pending[queue].pop_back();
  advance_op(op);
}

inline void later(Op* op, Queue queue) { start_op(op, queue); }

// ---- tensor maps ---------------------------------------------------------------------------------------------------

inline u64 box_bytes(const TensorMap& map, u32 dims) {
  return static_cast<u64>(map.box[0]) * map.box[1] * (dims == 3 ? map.box[2] : 1) * map.element_bytes;
}

// Calls `body(row, global address, bytes before, bytes inside)` for the rows of the box: of the `box[0]` elements of a row,
// `bytes inside` lie within the tensor, after `bytes before` that do not.
template <class Body>
inline void for_box_rows(const Op& op, Body body) {
  const TensorMap& map = op.map;
  const long long width = map.box[0], x = op.at[0];
  const long long begin = std::max(0ll, -x), end = std::min(width, static_cast<long long>(map.dims[0]) - x);
  const u32 depth = op.dims == 3 ? map.box[2] : 1;
  for (u32 k = 0, row = 0; k < depth; ++k) {
    for (u32 j = 0; j < map.box[1]; ++j, ++row) {
      const long long y = static_cast<long long>(op.at[1]) + j, z = static_cast<long long>(op.at[2]) + k;
      const bool inside = y >= 0 && y < static_cast<long long>(map.dims[1]) && begin < end &&
                          (op.dims == 2 || (z >= 0 && z < static_cast<long long>(map.dims[2])));
      const u64 address = map.base + y * map.strides[0] + (op.dims == 3 ? z * map.strides[1] : 0) +
                          static_cast<u64>(x + begin) * map.element_bytes;
      body(row, address, begin * map.element_bytes, inside ? (end - begin) * map.element_bytes : 0);
    }
  }
}

inline void read_box(Op* op) {
  StepLog* log = log_of(op->call, op->place.rank, op->place.step);
  StepLog* beside = op->place.beside == kNoStep ? nullptr : log_of(op->call, op->place.rank, op->place.beside);
  const u64 row_bytes = static_cast<u64>(op->map.box[0]) * op->map.element_bytes;
  op->data.assign(box_bytes(op->map, op->dims), 0);
  for_box_rows(*op, [&](u32 row, u64 address, u64 before, u64 bytes) {
    if (!bytes) return;
    read_global(log, &op->place, address, op->data.data() + row * row_bytes + before, bytes);
    if (beside) read_global(beside, &op->place, address, op->data.data() + row * row_bytes + before, bytes);
  });
}

// The swizzle of 128-byte rows exchanges 16-byte units within 1024 bytes, those of narrower rows within fewer.
inline u64 swizzle(const TensorMap& map, u64 address) {
  return address ^ (((address >> 7) & (map.box[0] * map.element_bytes / 16 - 1)) << 4);
}

inline void land(Op* op) {
  u8* to = reinterpret_cast<u8*>(op->target);
  if (op->kind == kBulkLoad || !op->map.swizzle) {
    memcpy(to, op->data.data(), op->data.size());
    return;
  }
  for (u64 i = 0; i < op->data.size(); i += 16) {
    const u64 address = swizzle(op->map, op->target + i);
    memcpy(reinterpret_cast<void*>(address), op->data.data() + i, 16);
  }
}

inline void check_map(const TensorMap& map, u32 dims, u64 smem) {
  const u64 row = static_cast<u64>(map.box[0]) * map.element_bytes;
  if (map.element_bytes == 0 || map.box[0] == 0 || map.box[1] == 0)
    fail(kUnsupported, here(), "the tensor map is empty");
  if (map.box[0] > 256 || map.box[1] > 256 || (dims == 3 && map.box[2] > 256))
    fail(kUnsupported, here(), "a box has at most 256 elements a dimension, not %u x %u x %u", map.box[0], map.box[1], map.box[2]);
  if (map.swizzle && row != 128 && row != 64 && row != 32)
    fail(kUnsupported, here(), "a swizzled box has rows of 32, 64 or 128 bytes, not %llu", row);
  check_aligned(row, 16, "a row of a box");
  check_aligned(map.base, 16, "the address of a tensor");
  check_aligned(map.strides[0], 16, "the stride of a tensor");
  if (dims == 3) check_aligned(map.strides[1], 16, "the stride of a tensor");
  check_aligned(smem, 128, "the shared address of a tensor copy");
}

// ---- stages --------------------------------------------------------------------------------------------------------

inline BulkGroup& group_of(Op* op) { return op->issuer->bulk[op->group - op->issuer->bulk_base]; }

inline bool bulk_reached(const Fiber& fiber, WaitKind kind, u64 groups) {
  for (u64 g = fiber.bulk_base; g < groups && g < fiber.bulk_base + fiber.bulk.size(); ++g) {
    const BulkGroup& group = fiber.bulk[g - fiber.bulk_base];
    if (kind == kBulkRead ? group.reads : group.writes) return false;
  }
  return true;
}

inline void wake_bulk(Fiber* fiber) {
  if (fiber->waits != kBulkDone && fiber->waits != kBulkRead) return;
  if (bulk_reached(*fiber, fiber->waits, fiber->wanted)) wake(fiber);
}

inline void advance_load(Op* op) {
  if (!op->was_read) {
    if (op->kind == kTensorLoad) {
      read_box(op);
    } else {
      op->data.resize(op->size);
      read_global(log_of(op->call, op->place.rank, op->place.step), &op->place, op->source, op->data.data(), op->size);
    }
    op->was_read = true;
    later(op, kLoadWrites);
    return;
  }
  land(op);
  complete_bytes(op->block, *op, static_cast<u32>(op->data.size()));
  finish_op(op);
}

// The bytes of shared memory that a store reads, in the order of its box.
inline void take_shared(Op* op) {
  const u8* from = reinterpret_cast<const u8*>(op->source);
  op->data.assign(from, from + op->size);
  if (op->kind != kTensorStore || !op->map.swizzle) return;
  for (u64 i = 0; i < op->size; i += 16) {
    const u64 address = swizzle(op->map, op->source + i);
    memcpy(op->data.data() + i, reinterpret_cast<const void*>(address), 16);
  }
}

inline void advance_store(Op* op) {
  if (!op->was_read) {
    take_shared(op);
    op->was_read = true;
    --op->block->smem_ops;
    --group_of(op).reads;
    wake_bulk(op->issuer);
    later(op, kStoreWrites);
    return;
  }
  StepLog* log = log_of(op->call, op->place.rank, op->place.step);
  if (op->kind == kTensorStore) {
    const u64 row_bytes = static_cast<u64>(op->map.box[0]) * op->map.element_bytes;
    for_box_rows(*op, [&](u32 row, u64 address, u64 before, u64 bytes) {
      if (bytes) put_global(log, &op->place, address, op->data.data() + row * row_bytes + before, bytes, op->reduce);
    });
  } else {
    put_global(log, &op->place, op->target, op->data.data(), op->size, op->reduce);
  }
  --group_of(op).writes;
  wake_bulk(op->issuer);
  finish_op(op);
}

inline void advance_copy_node(Op* op) {
  StepLog* log = log_of(op->call, op->place.rank, op->place.step);
  if (!op->was_read) {
    op->data.resize(op->size);
    read_global(log, &op->place, op->source, op->data.data(), op->size);
    op->was_read = true;
    later(op, kStoreWrites);
    return;
  }
  write_global(log, &op->place, op->target, op->data.data(), op->size);
  finish_op(op);
}

// Half a packet, 8 bytes that arrive as a whole.
inline void advance_packet(Op* op) {
  write_global(log_of(op->call, op->place.rank, op->place.step), &op->place, op->target, op->data.data(), op->size);
  wake_counter(op->target + 4);
  finish_op(op);
}

// What the caller does is no step of the plan: it is logged under no step, and not checked against one.
inline void advance_caller(Op* op) {
  StepLog* log = log_of(op->call, op->place.rank, kNoStep);
  Node& node = *op->node;
  if (op->kind == kWriteNode) {
    write_global(log, &op->place, op->target, node.data.data(), node.data.size());
  } else {
    node.data.resize(op->size);
    read_global(log, &op->place, op->source, node.data.data(), op->size);
  }
  finish_op(op);
}

inline bool copies_landed(const Fiber& fiber, u64 groups) {
  for (u64 g = fiber.copies_base; g < groups; ++g)
    if (fiber.copies[g - fiber.copies_base].flying) return false;
  return true;
}

inline void read_copy(Op* op, const ThreadCopy& copy, u8* to) {
  if (copy.bytes) read_global(log_of(op->call, op->place.rank, op->place.step), &op->place, copy.source, to, copy.bytes);
}

// All copies of a group of a thread: read together, and landed together later.
inline void advance_thread_copies(Op* op) {
  CopyGroup& group = op->issuer->copies[op->group - op->issuer->copies_base];
  if (!op->was_read) {
    op->data.assign(group.items.size() * 16, 0);
    for (size_t i = 0; i < group.items.size(); ++i) read_copy(op, group.items[i], op->data.data() + i * 16);
    op->was_read = true;
    later(op, kLoadWrites);
    return;
  }
  for (size_t i = 0; i < group.items.size(); ++i)
    memcpy(reinterpret_cast<void*>(group.items[i].target), op->data.data() + i * 16, 16);
  group.flying = false;
  Fiber* issuer = op->issuer;
  if (issuer->waits == kCopiesDone && copies_landed(*issuer, issuer->wanted)) wake(issuer);
  finish_op(op);
}

void advance_op(Op* op) {
  switch (op->kind) {
    case kThreadCopies: return advance_thread_copies(op);
    case kTensorLoad:
    case kBulkLoad: return advance_load(op);
    case kBulkStore:
    case kTensorStore: return advance_store(op);
    case kMultiply: run_group(op->warpgroup); return finish_op(op);
    case kCopyNode: return advance_copy_node(op);
    case kGemmNode:
      run_library(op->node->gemm, op->place, log_of(op->call, op->place.rank, op->place.step));
      return finish_op(op);
    case kPacketHalf: return advance_packet(op);
    default: return advance_caller(op);
  }
}

// `block`: whose shared memory it touches; null: the issuer's.
inline Op* new_op(OpKind kind, Cta* block = nullptr) {
  Fiber* fiber = machine->me;
  Op* op = new Op;
  op->kind = kind;
  op->issuer = fiber;
  op->block = block ? block : fiber->block;
  op->place = here();
  op->call = fiber->block->node->call;
  ++op->block->smem_ops;
  ++fiber->block->node->ops;
  return op;
}

inline void start_load(Op* op, void* smem, u64* barrier, u64 bytes) {
  op->target = reinterpret_cast<u64>(smem);
  check_shared(op->block, op->place, op->target, bytes, "an asynchronous copy writes");
  op->phase = mbarrier_at(op->block, barrier, &op->barrier).phase;
  start_op(op, kLoadReads);
  maybe_yield(8);
}

inline void tensor_load(void* smem, const TensorMap* map, u64* barrier, u32 dims, int x, int y, int z, Cta* block = nullptr) {
  check_map(*map, dims, reinterpret_cast<u64>(smem));
  Op* op = new_op(kTensorLoad, block);
  op->map = *map;
  op->dims = dims;
  op->at[0] = x, op->at[1] = y, op->at[2] = z;
  start_load(op, smem, barrier, box_bytes(*map, dims));
}

inline void wait_groups(WaitKind kind, u32 youngest) {
  Fiber* fiber = machine->me;
  const u64 committed = fiber->bulk_committed;
  const u64 groups = committed > youngest ? committed - youngest : 0;
  while (!bulk_reached(*fiber, kind, groups)) block_fiber(kind, groups, groups);
  while (!fiber->bulk.empty() && fiber->bulk_base < committed && fiber->bulk.front().writes == 0) {
    fiber->bulk.erase(fiber->bulk.begin());
    ++fiber->bulk_base;
  }
}

// A store joins the open group of its thread.
inline void start_store(Op* op, const void* smem, u64 bytes) {
  Fiber* fiber = machine->me;
  op->source = reinterpret_cast<u64>(smem);
  op->size = bytes;
  op->group = fiber->bulk_committed;
  fiber->bulk.resize(fiber->bulk_committed - fiber->bulk_base + 1);
  ++fiber->bulk.back().reads;
  ++fiber->bulk.back().writes;
  start_op(op, kStoreReads);
}

void tensor_store(const TensorMap* map, const void* smem, u32 dims, int x, int y, int z, int format) {
  check_map(*map, dims, reinterpret_cast<u64>(smem));
  if (format >= 0 && map->element_bytes != format_bytes(static_cast<u32>(format)))
    fail(kUnsupported, here(), "a reduction adds elements of the map's type, %u bytes", map->element_bytes);
  check_shared(machine->me->block, here(), reinterpret_cast<u64>(smem), box_bytes(*map, dims), "an asynchronous copy reads");
  Op* op = new_op(kTensorStore);
  op->map = *map;
  op->dims = dims;
  op->at[0] = x, op->at[1] = y, op->at[2] = z;
  op->reduce = format;
  start_store(op, smem, box_bytes(*map, dims));
}

inline void linear_store(void* global, const void* smem, u32 bytes, int format) {
  check_aligned(bytes, 16, "the size of a bulk copy");
  check_aligned(reinterpret_cast<u64>(smem), 16, "the shared address of a bulk copy");
  check_aligned(reinterpret_cast<u64>(global), 16, "the global address of a bulk copy");
  find_memory(reinterpret_cast<u64>(global), bytes, nullptr, "writes");
  check_shared(machine->me->block, here(), reinterpret_cast<u64>(smem), bytes, "an asynchronous copy reads");
  Op* op = new_op(kBulkStore);
  op->target = reinterpret_cast<u64>(global);
  op->reduce = format;
  start_store(op, smem, bytes);
}

void bulk_reduce_add(void* global, const void* smem, u32 bytes, u32 format) {
  linear_store(global, smem, bytes, static_cast<int>(format));
}

constexpr u32 kPacketPolls = 4096;

void packet_half(u32* p, u32 data, u32 mark) {
  check_aligned(reinterpret_cast<u64>(p), 8, "the address of half a packet");
  find_memory(reinterpret_cast<u64>(p), 8, nullptr, "writes");
  Op* op = new Op;
  op->kind = kPacketHalf;
  op->place = here();
  op->call = machine->me->block->node->call;
  op->node = machine->me->block->node;
  op->target = reinterpret_cast<u64>(p);
  op->size = 8;
  op->data.resize(8);
  memcpy(op->data.data(), &data, 4);
  memcpy(op->data.data() + 4, &mark, 4);
  ++op->node->ops;
  start_op(op, kStoreWrites);
  maybe_yield(64);
}

void packet_load(U128* value, const U128* p) {
  check_aligned(reinterpret_cast<u64>(p), 16, "the address of a packet");
  if (machine->adversary == kRandom) maybe_yield(64);
  if (machine->me->polls++ >= kPacketPolls) note_poll(reinterpret_cast<u64>(p));  // a thread looks at many packets in turn
  read_global(machine->me->log, nullptr, reinterpret_cast<u64>(p), value, sizeof *value);
}

inline u64 unit_of(const Cta* block, u64 target) { return (target - reinterpret_cast<u64>(block->smem)) / 16; }

// What a thread has waited for is no longer marked as arriving.
void copy_async_wait(u32 youngest) {
  Fiber* fiber = machine->me;
  const u64 committed = fiber->copies_committed, groups = committed > youngest ? committed - youngest : 0;
  while (!copies_landed(*fiber, groups)) block_fiber(kCopiesDone, groups, groups);
  while (fiber->copies_base < groups) {
    for (const ThreadCopy& copy : fiber->copies.front().items) --fiber->block->arriving[unit_of(fiber->block, copy.target)];
    fiber->copies.pop_front();
    ++fiber->copies_base;
  }
}

void bulk_wait(u32 groups) { wait_groups(kBulkDone, groups); }
void bulk_wait_read(u32 groups) { wait_groups(kBulkRead, groups); }

}  // namespace ts::host

namespace ts {

void tma_load_2d(void* smem, const TensorMap* map, u64* barrier, int x, int y, u64) {
  host::tensor_load(smem, map, barrier, 2, x, y, 0);
}
void tma_load_3d(void* smem, const TensorMap* map, u64* barrier, int x, int y, int z, u64) {
  host::tensor_load(smem, map, barrier, 3, x, y, z);
}

void bulk_load(void* smem, const void* global, u32 bytes, u64* barrier) {
  using namespace host;
  check_aligned(bytes, 16, "the size of a bulk copy");
  check_aligned(reinterpret_cast<u64>(smem), 16, "the shared address of a bulk copy");
  check_aligned(reinterpret_cast<u64>(global), 16, "the global address of a bulk copy");
  find_memory(reinterpret_cast<u64>(global), bytes, nullptr, "reads");
  Op* op = new_op(kBulkLoad);
  op->source = reinterpret_cast<u64>(global);
  op->size = bytes;
  start_load(op, smem, barrier, bytes);
}

void bulk_store(void* global, const void* smem, u32 bytes) { host::linear_store(global, smem, bytes, -1); }

void bulk_commit() {
  host::Fiber* fiber = host::machine->me;
  fiber->bulk.resize(++fiber->bulk_committed - fiber->bulk_base);
  host::maybe_yield(4);
}

// Blocks until both halves bear the mark, or until its time is over.
void packet_pause(const U128* p, u32 mark) {
  using namespace host;
  Fiber* fiber = machine->me;
  while (!fiber->expired && (p->y != mark || p->w != mark)) {
    const u32* missing = p->y != mark ? &p->y : &p->w;
    machine->counter_waiters[reinterpret_cast<u64>(missing)].push_back(fiber);
    block_fiber(kCounter, reinterpret_cast<u64>(missing), mark);
  }
  fiber->expired = false;
}

void copy_async(void* smem, const void* global, u32 bytes) {
  using namespace host;
  const u64 target = reinterpret_cast<u64>(smem);
  check_aligned(target, 16, "the shared address of a copy");
  check_aligned(reinterpret_cast<u64>(global), 16, "the global address of a copy");
  if (bytes != 0 && bytes != 16) fail(kUnsupported, here(), "a copy takes 16 bytes from memory, or none, not %u", bytes);
  Fiber* fiber = machine->me;
  Cta* block = fiber->block;
  check_shared(block, here(), target, 16, "an asynchronous copy writes");
  if (bytes) find_memory(reinterpret_cast<u64>(global), bytes, nullptr, "reads");
  fiber->copies.resize(fiber->copies_committed - fiber->copies_base + 1);
  if (block->arriving.empty()) block->arriving.resize(block->smem_size / 16 + 1);
  ++block->arriving[unit_of(block, target)];
  fiber->copies.back().items.push_back({reinterpret_cast<u64>(global), target, bytes});
  if (machine->adversary != kEager) return;
  u8 data[16] = {};
  if (bytes) read_global(fiber->log, nullptr, reinterpret_cast<u64>(global), data, bytes);
  memcpy(smem, data, 16);
}

// The copies of a group begin together.
void copy_async_commit() {
  using namespace host;
  Fiber* fiber = machine->me;
  const u64 group = fiber->copies_committed++;
  fiber->copies.resize(fiber->copies_committed - fiber->copies_base);
  if (fiber->copies.back().items.empty()) return;
  if (machine->adversary != kEager) {
    Op* op = new_op(kThreadCopies);
    op->group = group;
    fiber->copies.back().flying = true;
    start_op(op, kLoadReads);
  }
  maybe_yield(16);
}

void fence_async_smem() {}
void fence_async_global() {}

}  // namespace ts
