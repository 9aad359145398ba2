// Clusters of blocks, multicast addresses over ranks, and products of a warp.
#pragma once
#include "wgmma.hpp"

namespace ts::host {

// ---- clusters ------------------------------------------------------------------------------------------------------

inline u32 live_threads(const Cluster& cluster) {
  u32 live = 0;
  for (const Cta* block : cluster.blocks) live += block->live;
  return live;
}

// A thread has exited: the barrier of its cluster no longer counts it.
void leave_cluster(Cta* block) {
  Cluster& cluster = *block->cluster;
  if (cluster.arrived == 0 || cluster.arrived != live_threads(cluster)) return;
  cluster.arrived = 0;
  wake_all(cluster.waiters);
}

// Block `rank` of the cluster of the running thread, which must still be there.
inline Cta* peer_block(u32 rank, const char* what) {
  Cluster& cluster = *machine->me->block->cluster;
  if (rank >= cluster.blocks.size())
    fail(kCollective, here(), "%s block %u of a cluster of %zu", what, rank, cluster.blocks.size());
  if (cluster.blocks[rank]->live == 0) fail(kInFlight, here(), "%s block %u of the cluster, which has exited", what, rank);
  return cluster.blocks[rank];
}

// The same place in the shared memory of another block.
inline u8* in_block(Cta* block, const void* own) {
  return block->smem + (static_cast<const u8*>(own) - machine->me->block->smem);
}

void* cluster_at(const void* p, u32 rank, const char* what) { return in_block(peer_block(rank, what), p); }

inline void multicast_load(void* smem, const TensorMap* map, u64* barrier, u32 dims, int x, int y, int z, u32 mask) {
  if (mask == 0) fail(kCollective, here(), "a multicast load goes to at least one block");
  for (u32 rank = 0; rank < 16; ++rank) {
    if (!(mask >> rank & 1)) continue;
    Cta* block = peer_block(rank, "a multicast load goes to");
    tensor_load(in_block(block, smem), map, reinterpret_cast<u64*>(in_block(block, barrier)), dims, x, y, z, block);
  }
}

// ---- multicast addresses -------------------------------------------------------------------------------------------

// Addresses of the same byte in every member.
inline std::vector<u64> members_of(const void* p, u64 bytes, const char* what) {
  const u64 address = reinterpret_cast<u64>(p);
  check_aligned(address, bytes, "a multicast address");
  for (const Multicast& range : machine->multicasts) {
    if (address < range.base || address + bytes > range.base + range.size) continue;
    std::vector<u64> found;
    for (u64 member : range.members) found.push_back(member + (address - range.base));
    return found;
  }
  fail(kOutOfBounds, here(), "%s 0x%llx, which is no multicast address", what, address);
}

// The order of the sum is not specified: it starts anywhere.
void multimem_load_add(U128* value, const void* p, u32 format) {
  const auto members = members_of(p, 16, "sums from");
  float sums[8] = {};
  const u32 size = format_bytes(format), first = machine->random.below(members.size());
  for (u32 m = 0; m < members.size(); ++m) {
    u8 raw[16];
    read_global(machine->me->log, nullptr, members[(first + m) % members.size()], raw, 16);
    for (u32 i = 0; i * size < 16; ++i) sums[i] += element_at(raw + i * size, format);
  }
  for (u32 i = 0; i * size < 16; ++i) put_element(reinterpret_cast<u8*>(value) + i * size, sums[i], format);
}

void multimem_store(void* p, const U128* value) {
  for (u64 member : members_of(p, 16, "stores to")) {
    write_global(machine->me->log, nullptr, member, value, 16);
    if (machine->adversary == kRandom) maybe_yield(8);
  }
}

void multimem_red_add(void* p, const U128* value, u32 format) {
  for (u64 member : members_of(p, 16, "adds to")) {
    add_global(machine->me->log, nullptr, member, reinterpret_cast<const u8*>(value), 16, format);
    if (machine->adversary == kRandom) maybe_yield(8);
  }
}

// ---- mma.sync ------------------------------------------------------------------------------------------------------

// The instruction of row `at` and column `of`.
inline void multiply_warp(WarpProduct& warp, u32 at, u32 of) {
  float a[16][16], b[16][8], c[16][8];
  auto pair = [&](u32 packed, float* first, float* second) {
    u8 raw[4];
    memcpy(raw, &packed, 4);
    *first = element_at(raw, warp.format), *second = element_at(raw + 2, warp.format);
  };
  for (u32 t = 0; t < 32; ++t) {
    const u32 g = t / 4, k = t % 4 * 2;
    for (u32 i = 0; i < 4; ++i) pair(warp.a[t][at * 4 + i], &a[g + i % 2 * 8][k + i / 2 * 8], &a[g + i % 2 * 8][k + i / 2 * 8 + 1]);
    for (u32 i = 0; i < 2; ++i) pair(warp.b[t][of * 2 + i], &b[k + i * 8][g], &b[k + i * 8 + 1][g]);
    for (u32 i = 0; i < 4; ++i) c[g + i / 2 * 8][k + i % 2] = warp.d[t][(at * warp.columns + of) * 4 + i];
  }
  for (u32 row = 0; row < 16; ++row)
    for (u32 column = 0; column < 8; ++column)
      for (u32 k = 0; k < 16; ++k) c[row][column] += a[row][k] * b[k][column];
  for (u32 t = 0; t < 32; ++t)
    for (u32 i = 0; i < 4; ++i) warp.d[t][(at * warp.columns + of) * 4 + i] = c[t / 4 + i / 2 * 8][t % 4 * 2 + i % 2];
}

// The threads of a warp come together; the last one multiplies for all.
void mma(float* d, const u32* a, const u32* b, u32 format, u32 rows, u32 columns) {
  Fiber* fiber = machine->me;
  Cta* block = fiber->block;
  if (block->node->threads < fiber->thread / 32 * 32 + 32) fail(kCollective, here(), "mma.sync needs a whole warp of 32 threads");
  WarpProduct& warp = block->warps[fiber->thread / 32];
  if (warp.arrived && (warp.format != format || warp.rows != rows || warp.columns != columns)) fail(kCollective, here(), "the threads of the warp multiply different types");
  const u32 lane = fiber->thread % 32;
  warp.format = format, warp.rows = rows, warp.columns = columns;
  warp.d[lane] = d, warp.a[lane] = a, warp.b[lane] = b;
  if (++warp.arrived < 32) {
    warp.waiters.push_back(fiber);
    block_fiber(kWarp, fiber->thread / 32, 32);
    return;
  }
  for (u32 at = 0; at < rows; ++at)
    for (u32 of = 0; of < columns; ++of) multiply_warp(warp, at, of);
  warp.arrived = 0;
  wake_all(warp.waiters);
}

// ---- ldmatrix ------------------------------------------------------------------------------------------------------

inline void check_row(Cta* block, const void* row) {
  const u64 address = reinterpret_cast<u64>(row);
  check_aligned(address, 16, "the address of a row of a matrix");
  check_shared(block, here(), address, 16, "ldmatrix reads");
  const u64 unit = (address - reinterpret_cast<u64>(block->smem)) / 16;
  if (unit < block->arriving.size() && block->arriving[unit])
    fail(kUninitialised, here(), "ldmatrix reads shared memory that a copy fills, which its thread has not waited for");
}

inline void load_warp(WarpLoad& warp) {
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 i = 0; i < 4 * warp.count; ++i) {
      u16 found[2];
      for (u32 e = 0; e < 2; ++e) {
        const u32 row = warp.turned ? lane % 4 * 2 + e : lane / 4, column = warp.turned ? lane / 4 : lane % 4 * 2 + e;
        memcpy(&found[e], warp.rows[i % 4 * 8 + row][i / 4] + column * 2, 2);
      }
      warp.r[lane][i] = found[0] | static_cast<u32>(found[1]) << 16;
    }
  }
}

void load_matrices(u32* r, const u8* const* rows, u32 count, bool turned) {
  Fiber* fiber = machine->me;
  Cta* block = fiber->block;
  if (block->node->threads < fiber->thread / 32 * 32 + 32) fail(kCollective, here(), "ldmatrix needs a whole warp of 32 threads");
  for (u32 i = 0; i < count; ++i) check_row(block, rows[i]);
  WarpLoad& warp = block->warp_loads[fiber->thread / 32];
  if (warp.arrived && (warp.turned != turned || warp.count != count)) fail(kCollective, here(), "the threads of the warp load different matrices");
  const u32 lane = fiber->thread % 32;
  warp.turned = turned, warp.count = count;
  warp.r[lane] = r, warp.rows[lane] = rows;
  if (++warp.arrived < 32) {
    warp.waiters.push_back(fiber);
    block_fiber(kWarp, fiber->thread / 32, 32);
    return;
  }
  load_warp(warp);
  warp.arrived = 0;
  wake_all(warp.waiters);
}

}  // namespace ts::host

namespace ts {

u32 cluster_rank() { return host::machine->me->block->index % host::machine->me->block->node->cluster; }
u32 cluster_size() { return host::machine->me->block->node->cluster; }

void cluster_sync() {
  using namespace host;
  Fiber* fiber = machine->me;
  Cluster& cluster = *fiber->block->cluster;
  if (++cluster.arrived == live_threads(cluster)) {
    cluster.arrived = 0;
    wake_all(cluster.waiters);
    return;
  }
  cluster.waiters.push_back(fiber);
  block_fiber(kClusterBarrier, 0, live_threads(cluster));
}

void cluster_mb_arrive(u64* barrier, u32 rank) {
  host::Cta* block = host::peer_block(rank, "arrives at");
  host::arrive(block, reinterpret_cast<u64*>(host::in_block(block, barrier)), 0);
}

void tma_load_2d_multicast(void* smem, const TensorMap* map, u64* barrier, int x, int y, u16 mask) {
  host::multicast_load(smem, map, barrier, 2, x, y, 0, mask);
}
void tma_load_3d_multicast(void* smem, const TensorMap* map, u64* barrier, int x, int y, int z, u16 mask) {
  host::multicast_load(smem, map, barrier, 3, x, y, z, mask);
}

void multimem_signal_add(u32* p, u32 value) {
  for (u64 member : host::members_of(p, 4, "signals")) signal_add(reinterpret_cast<u32*>(member), value);
}

}  // namespace ts
