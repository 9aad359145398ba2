// A flag that two ranks hand to and fro: what a signal over a link takes. Part of no bundle; runtime/gpu_links.py runs it.
//
//   base[0], base[1]: the own flag and the peer's, which only grow; base[2]: where the result goes, a u64
//   n: round trips; k: the flags before the first; last: 1 for the rank that serves
#pragma once
#include "kernels.cuh"

namespace ts {

// One thread a rank. The result is nanoseconds from the end of the first round trip to the end of the last, so that when
// the ranks have started does not count; 0 where the peer did not answer within the time limit.
TS_DEV void ping(const Arguments& args) {
  if (thread() != 0u) return;
  const u32* own = (const u32*)args.base[0];
  u32* peer = (u32*)args.base[1];
  u64* result = (u64*)args.base[2];
  const bool serves = args.last != 0u;
  const u64 begun = time_ns();
  u64 start = begun;
  for (u32 trip = 1; trip <= args.n; ++trip) {
    const u32 target = args.k + trip;
    if (serves) signal_add(peer, 1u);
    while ((int)(load_acquire(own) - target) < 0) {
      if (time_ns() - begun > args.time_limit_ns) {
        store(result, (u64)0);
        return;
      }
      pause_until(own, target);
    }
    if (!serves) signal_add(peer, 1u);
    if (trip == 1u) start = time_ns();
  }
  const u64 end = time_ns();
  store(result, end > start ? end - start : (u64)1);
}

}  // namespace ts

#define TILESCALE_PING                                                                               \
  TS_KERNEL(tilescale_ping, 32)(TS_GRID_CONST ts::Arguments args, TS_GRID_CONST ts::Maps) { ts::ping(args); }
