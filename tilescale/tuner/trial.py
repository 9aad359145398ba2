"""A candidate of a search with its outcome: one row of `Result.trials`."""

from __future__ import annotations

from dataclasses import dataclass

from tilescale.runtime.measure import Samples
from tilescale.schedules.schedule import Schedule

# How a trial came about: evaluated in this search; stored earlier and proposed again; or stored earlier, not proposed
# again, and still the best that is known.
ORIGINS = ("evaluated", "resumed", "remembered")


@dataclass(frozen=True)
class Trial:
    """One candidate. `number`: its place in the search, from 0. `trial_id`: its row in the database.

    `value_us`: median over samples of the slowest rank, None unless `status` is "ok". `predicted_us`: what the prior
    expected. `samples_us`: one tuple a rank; empty in rows that were stored earlier (the database has them).
    """

    number: int
    schedule: Schedule
    status: str
    source: str
    origin: str
    trial_id: int
    value_us: float | None = None
    predicted_us: float | None = None
    message: str = ""
    samples_us: Samples = ()
    binary_digest: str = ""
    table_digest: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def time_us(self) -> float:
        """`value_us`, or infinity where there is none: what is smaller is better."""
        return float("inf") if self.value_us is None else self.value_us


def fastest(trials: list[Trial]) -> Trial | None:
    """The first of the fastest good trials; None where none is good."""
    return min((trial for trial in trials if trial.ok), key=lambda trial: (trial.time_us, trial.number), default=None)
