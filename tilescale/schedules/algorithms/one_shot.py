"""one_shot: every rank receives the parts of all others and adds them up itself: one step, the most bytes."""

from __future__ import annotations

from tilescale.schedules.algorithms import ALGORITHMS, Algorithm
from tilescale.schedules.algorithms.direct import incoming, outgoing

ALGORITHMS.register(Algorithm(
    "one_shot", "every part to every rank, which adds up for itself", ("all_reduce",), outgoing, incoming))
