"""tma: one thread a block drives bulk copies through a ring of shared-memory tiles."""

from __future__ import annotations

from tilescale.schedules.transports import TRANSPORTS, Transport

TILE_BYTES = 16384
STAGES = 4

TRANSPORTS.register(Transport(
    "tma", "bulk copies through shared memory, driven by one thread a block", "blocks", 16, ("sm_9", "sm_10"),
    (("copy_tile_bytes", TILE_BYTES), ("copy_stages", STAGES)), TILE_BYTES * STAGES + 8 * STAGES))
