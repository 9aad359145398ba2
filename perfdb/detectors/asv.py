"""As in asv: the series as a step function with least absolute error, and a regression if its last step is above 5 %.

The number of steps is bought with a penalty, chosen by an information criterion as in asv's `step_detect`: for each of
a row of penalties the best step function is found by dynamic programming, and that with the least
`n log(error) + 4 (steps) log(n)` is taken. A step of a single run is not reported.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass

import numpy as np

from perfdb.detecting import Change, Floats, one_by_one

FLOOR = 0.05
FEWEST = 8
SMALLEST = 2
PENALTIES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@dataclass(frozen=True)
class Asv:
    """The detector; see the module."""

    name: str = "asv"
    shortest: int = FEWEST

    def find(self, times: Floats) -> list[list[Change]]:
        """See detecting.Detector."""
        return one_by_one(times, _find)


def _find(values: Floats) -> list[Change]:
    if len(values) < FEWEST:
        return []
    errors = _errors(values)
    # In units of the noise between neighbours, so that one row of penalties serves all series.
    unit = max(float(np.median(np.abs(np.diff(values)))), 1e-9 * float(values.mean()))
    tables = [_best(errors, penalty * unit) for penalty in PENALTIES]
    changes: list[Change] = []
    for end in range(FEWEST, len(values) + 1):
        cuts = min((_cuts(table[1], end) for table in tables), key=lambda cuts: _criterion(errors, cuts, end))
        start = cuts[-1]
        if len(cuts) < 2 or end - start < SMALLEST:
            continue
        before, after = (float(np.median(values[a:b])) for a, b in ((cuts[-2], start), (start, end)))
        known = bool(changes) and start - changes[-1].index <= 3
        if abs(after / before - 1) > FLOOR and not known:
            changes.append(Change(start, end, before, after))
    return changes


def _errors(values: Floats) -> Floats:
    """errors[a, b]: the sum of distances of values[a:b] to their median."""
    count = len(values)
    errors = np.zeros((count + 1, count + 1))
    for start in range(count):
        ordered: list[float] = []
        low = high = 0.0
        for end in range(start, count):
            insort(ordered, float(values[end]))
            half = len(ordered) // 2
            low, high = sum(ordered[:half]), sum(ordered[-half:]) if half else 0.0
            errors[start, end + 1] = high - low
    return errors


def _best(errors: Floats, penalty: float) -> tuple[Floats, list[int]]:
    """Cost of the best step function of each beginning of the series, and where its last step starts."""
    count = len(errors) - 1
    cost, last = np.zeros(count + 1), [0] * (count + 1)
    cost[0] = -penalty
    for end in range(1, count + 1):
        options = cost[:end] + penalty + errors[:end, end]
        last[end] = int(np.argmin(options))
        cost[end] = options[last[end]]
    return cost, last


def _cuts(last: list[int], end: int) -> list[int]:
    cuts = []
    while end > 0:
        end = last[end]
        cuts.append(end)
    return cuts[::-1]


def _criterion(errors: Floats, cuts: list[int], end: int) -> float:
    error = sum(float(errors[a, b]) for a, b in zip(cuts, [*cuts[1:], end], strict=True))
    return end * math.log(max(error / end, 1e-12)) + 4 * len(cuts) * math.log(end)


DETECTOR = Asv()
