"""What a long job reports while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """One report. `stage`: "predict" (schedules predicted), "wait" (another search has the turn),
    "search" (candidates tried) or "race" (rounds of the finalists); `done` of at most `total`.

    `seconds_left`: what the budget in time still allows. `best_us`, `best`: time and label of the fastest so far.
    `measured`: candidates that the runner was asked for; the others were answered by the database.
    """

    name: str
    stage: str
    done: int
    total: int
    seconds_left: float = 0.0
    best_us: float | None = None
    best: str = ""
    failed: int = 0
    measured: int = 0


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Report nothing."""
