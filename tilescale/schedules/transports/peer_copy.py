"""peer_copy: blocks load and store 16 bytes a thread through peer-mapped memory."""

from __future__ import annotations

from tilescale.schedules.transports import TRANSPORTS, Transport

# One access in flight a thread reaches a quarter of the bandwidth of four.
UNROLL = 4

TRANSPORTS.register(Transport("peer_copy", "loads and stores of copy blocks", "blocks", 1, (), (("copy_unroll", UNROLL),)))
