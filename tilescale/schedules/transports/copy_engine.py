"""copy_engine: copies recorded by the host, so that no SM moves data; signals and waits are one-block kernels.

One-block kernels rather than stream memory operations, because a wait on a stream has no time limit and bakes its value
into a captured graph, while a kernel reads the epoch from the device and gives up in time.
"""

from __future__ import annotations

from tilescale.schedules.transports import TRANSPORTS, Transport

TRANSPORTS.register(Transport("copy_engine", "copies recorded by the host, no SM moves data", "copy_engine", 1))
