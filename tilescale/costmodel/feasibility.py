"""What failures teach: how likely a schedule is to fail, from the values of its knobs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilescale.schedules.schedule import Schedule

# Knobs whose values fail together are looked at together: registers and shared memory are used up by all of these.
_GROUPS = (
    ("transport", "overlap"),
    ("transport", "num_stages", "block_m", "block_n"),
    ("overlap", "chunk_rows", "depth"),
    ("transport", "num_comm_blocks"),
    ("direction", "chunk_order"),
)
MOST = 0.95

Key = tuple[int, tuple[str | int, ...]]


@dataclass(frozen=True)
class Feasibility:
    """A naive Bayes classifier over groups of knobs. `log_odds`: of a failure, for every value that was seen.

    `base`: share of failures among all; 0 without any, and then nothing is expected to fail.
    """

    base: float
    log_odds: tuple[tuple[Key, float], ...]

    @staticmethod
    def fit(outcomes: Iterable[tuple[Schedule, bool]]) -> Feasibility:
        """From schedules and whether each was good."""
        good: Counter[Key] = Counter()
        bad: Counter[Key] = Counter()
        total = [0, 0]
        for schedule, ok in outcomes:
            total[ok] += 1
            (good if ok else bad).update(_keys(schedule))
        failed, passed = total
        base = failed / max(1, failed + passed)
        if not failed or not passed:  # nothing tells one value from another
            return Feasibility(base, ())
        odds = {}
        for key in sorted({*good, *bad}):
            # One trial more of every value, failed as often as all are: what was seen once proves little.
            wrong = (bad[key] + base) / (failed + base)
            right = (good[key] + 1 - base) / (passed + 1 - base)
            odds[key] = math.log(wrong / right)
        return Feasibility(base, tuple(odds.items()))

    def failure(self, schedules: Sequence[Schedule]) -> list[float]:
        """The probability of failing of each schedule, at most MOST."""
        if not self.base:
            return [0.0] * len(schedules)
        odds = dict(self.log_odds)
        start = math.log(min(self.base, MOST) / (1 - min(self.base, MOST)))
        found = []
        for schedule in schedules:
            # The groups overlap, so that their evidence is not independent: the strongest for and against counts.
            known = [odds.get(key, 0.0) for key in _keys(schedule)]
            total = start + max(0.0, *known) + min(0.0, *known)
            found.append(min(MOST, 1 / (1 + math.exp(-total))))
        return found


def _keys(schedule: Schedule) -> list[Key]:
    return [(at, tuple(getattr(schedule, name) for name in names)) for at, names in enumerate(_GROUPS)]
