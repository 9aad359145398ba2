"""multimem: stores and sums through multicast addresses, which a switch carries out for all ranks at once."""

from __future__ import annotations

from tilescale.schedules.transports import TRANSPORTS, Transport
from tilescale.schedules.transports.peer_copy import UNROLL

TRANSPORTS.register(Transport(
    "multimem", "stores to and sums of all ranks at once, by the switch between them", "blocks", 16, ("sm_9", "sm_10"),
    (("copy_unroll", UNROLL),), multicast=True))
