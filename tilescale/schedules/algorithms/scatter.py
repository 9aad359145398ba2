"""scatter: a product is stored where its rows are added up, by the blocks that multiply: no copy of its own."""

from __future__ import annotations

from tilescale.schedules.algorithms import ALGORITHMS, Algorithm
from tilescale.schedules.algorithms.direct import incoming, outgoing

ALGORITHMS.register(Algorithm(
    "scatter", "products stored straight at the owner of their rows", ("reduce_scatter", "all_reduce"), outgoing, incoming,
    computes=True))
