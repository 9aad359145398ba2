// What measuring needs on the device: ranks meet before a sample, and prove that their blocks are resident together.
// Part of no bundle. runtime/gpu_meeting.py packs the same layouts.
#pragma once
#include "ptx.cuh"

namespace ts {

constexpr u32 kMeetRanks = 72;
constexpr u32 kMeetThreads = 96;  // a thread a peer
constexpr u32 kSpinThreads = 128;

// In memory that peers reach, one a rank; all zero at first.
struct Meeting {
  u32 met;       // meetings of this rank that are over
  u32 failed;    // 1 once a peer did not come within the time limit; later meetings return at once
  u32 resident;  // blocks of all ranks that have started to spin
  u32 absent;    // own blocks that waited in vain for all of them
  u32 arrived[kMeetRanks];   // meetings that each rank has come to
  u64 times[2][kMeetRanks];  // when, in even and odd meetings
};

// Kernel argument, by value.
struct MeetArguments {
  u64 meetings[kMeetRanks];  // address of each rank's
  u64 time_limit_ns;
  u64 delay_ns;      // from the meeting to the start: work behind this kernel is enqueued meanwhile
  u32 rank, world;
  u32 common_clock;  // 1: ranks share a GPU and so its timer; they start at one time, delay_ns after the last one came
  u32 target;        // spin: blocks that have started once all are resident
};

TS_DEV Meeting* meeting_of(const MeetArguments& args, u32 rank) { return (Meeting*)args.meetings[rank]; }

TS_DEV void meet(const MeetArguments& args) {
  Meeting* own = meeting_of(args, args.rank);
  const u32 epoch = load_relaxed(&own->met) + 1u;
  const u32 peer = thread();
  if (peer < args.world && load_relaxed(&own->failed) == 0u) {
    const u64 start = time_ns();
    store(&meeting_of(args, peer)->times[epoch & 1u][args.rank], start);
    fence_system();
    signal_add(&meeting_of(args, peer)->arrived[args.rank], 1u);
    while ((int)(load_acquire(&own->arrived[peer]) - epoch) < 0) {
      if (time_ns() - start > args.time_limit_ns) {
        store(&own->failed, 1u);
        break;
      }
      pause_until(&own->arrived[peer], epoch);
    }
  }
  sync();
  if (thread() != 0u) return;
  u64 start = time_ns();
  if (args.common_clock != 0u) {
    start = 0;
    for (u32 rank = 0; rank < args.world; ++rank) {
      const u64 came = load(&own->times[epoch & 1u][rank]);
      start = came > start ? came : start;
    }
  }
  store(&own->met, epoch);
  link_wait(start + args.delay_ns);
}

// One block an SM, by its shared memory: each waits until all blocks of all ranks have started.
TS_DEV void spin(const MeetArguments& args) {
  if (thread() != 0u) return;
  Meeting* own = meeting_of(args, args.rank);
  const u64 start = time_ns();
  fence_system();
  for (u32 rank = 0; rank < args.world; ++rank) signal_add(&meeting_of(args, rank)->resident, 1u);
  while ((int)(load_acquire(&own->resident) - args.target) < 0) {
    if (time_ns() - start > args.time_limit_ns) {
      atomic_add(&own->absent, 1u);
      return;
    }
    pause_until(&own->resident, args.target);
  }
}

// A plain read of memory, 16 bytes an access, to compare the rate of others with. Kernel argument, by value.
struct ReadArguments { u64 source, units, sink; };
constexpr u32 kReadThreads = 512, kReadUnroll = 8;

TS_DEV void plain_read(const ReadArguments& args) {
  const U128* source = (const U128*)args.source;
  const u64 stride = (u64)num_blocks() * kReadThreads;
  u32 seen = 0;
  u64 i = (u64)block() * kReadThreads + thread();
  for (; i + (kReadUnroll - 1) * stride < args.units; i += kReadUnroll * stride) {
    U128 held[kReadUnroll];
#pragma unroll
    for (u32 u = 0; u < kReadUnroll; ++u) held[u] = load(source + i + u * stride);
#pragma unroll
    for (u32 u = 0; u < kReadUnroll; ++u) seen ^= held[u].x ^ held[u].y ^ held[u].z ^ held[u].w;
  }
  for (; i < args.units; i += stride) seen ^= load(source + i).x;
  if (seen == 0x9E3779B9u) store((u32*)args.sink, seen);  // so that the reads are not for nothing
}

}  // namespace ts

#define TILESCALE_READ \
  TS_KERNEL(tilescale_read, ts::kReadThreads)(TS_GRID_CONST ts::ReadArguments args) { ts::plain_read(args); }

#define TILESCALE_MEETING                                                                   \
  TS_KERNEL(tilescale_meet, ts::kMeetThreads)(TS_GRID_CONST ts::MeetArguments args) { ts::meet(args); } \
  TS_KERNEL(tilescale_spin, ts::kSpinThreads)(TS_GRID_CONST ts::MeetArguments args) { ts::spin(args); }
