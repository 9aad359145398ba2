"""two_shot: every rank adds up its share of the rows, then fetches the sums of the others: two steps, the fewest bytes."""

from __future__ import annotations

from tilescale.schedules.algorithms import ALGORITHMS, Algorithm
from tilescale.schedules.algorithms.direct import incoming, outgoing

ALGORITHMS.register(Algorithm(
    "two_shot", "parts to the owner of their rows, sums to every rank", ("all_reduce",), outgoing, incoming))
