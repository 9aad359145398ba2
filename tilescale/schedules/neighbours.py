"""Copies of as many bytes that follow each other without anything between: kernels may take them together, which loads from
each of them before it stores what it loaded first. So none may read what one before it writes."""

from __future__ import annotations

from collections.abc import Sequence

from tilescale.schedules.boxes import Grids, meet
from tilescale.schedules.plan import Copy, Step

TOGETHER = 8  # kCopiesTogether of copy.cuh
RULE = "a copy reads what a copy right before it writes: kernels may take the two together"


def reads_a_neighbour(steps: Sequence[Step], grids: Grids) -> tuple[int, Copy] | None:
    """The first copy, with its number, that reads bytes which one that it may be taken together with writes; None where all
    are independent. Writing what one before it reads is allowed: loads come before stores."""
    before: list[Copy] = []
    for number, step in enumerate(steps):
        if not isinstance(step, Copy):
            before = []
            continue
        before = [] if before and step.src.size != before[0].src.size else before[1 - TOGETHER:]
        for other in before:
            same = (step.src.buffer, step.src.rank) == (other.dst.buffer, other.dst.rank)
            if same and meet(grids.box(step.src), grids.box(other.dst)) is not None:
                return number, step
        before.append(step)
    return None
