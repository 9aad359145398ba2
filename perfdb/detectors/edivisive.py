"""E-divisive means, as Otava uses it: split where the energy distance is largest, keep a split that Student's t finds.

After Matteson and James (2014); as in Otava the permutation test is replaced by a t-test at p < 0.001, which makes the
answer the same each time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfdb.detecting import Change, Floats, normal_tail, one_by_one, student_z

LEVEL = 0.001
FEWEST = 10
SIDE = 3
WINDOW = 50


@dataclass(frozen=True)
class EDivisive:
    """The detector; see the module."""

    name: str = "edivisive"
    shortest: int = FEWEST

    def find(self, times: Floats) -> list[list[Change]]:
        """See detecting.Detector."""
        return one_by_one(times, _find)


def _find(values: Floats) -> list[Change]:
    changes: list[Change] = []
    distances = np.abs(values[:, None] - values[None, :])
    sums = np.zeros((len(values) + 1, len(values) + 1))
    sums[1:, 1:] = distances.cumsum(axis=0).cumsum(axis=1)
    for end in range(FEWEST, len(values) + 1):
        start = max(changes[-1].index if changes else 0, end - WINDOW)
        if end - start < 2 * SIDE:
            continue
        at = _split(sums, start, end)
        before, after = values[start:at], values[at:end]
        z = _deviate(before, after)
        if normal_tail(z) < LEVEL:
            p_value = min(1.0, normal_tail(z) * len(values))
            changes.append(Change(at, end, float(before.mean()), float(after.mean()), p_value))
    return changes


def _split(sums: Floats, start: int, end: int) -> int:
    """Where the runs [start, end) fall apart most, at least `SIDE` from both ends."""
    places = np.arange(start + SIDE, end - SIDE + 1)
    left, right = places - start, end - places

    def block(a: Any, b: Any, c: Any, d: Any) -> Floats:
        result: Floats = sums[b, d] - sums[a, d] - sums[b, c] + sums[a, c]
        return result

    between = block(start, places, places, end) * 2 / (left * right)
    within = block(start, places, start, places) / (left * (left - 1))
    within = within + block(places, end, places, end) / (right * (right - 1))
    return int(places[np.argmax(left * right / (left + right) * (between - within))])


def _deviate(before: Floats, after: Floats) -> float:
    freedom = len(before) + len(after) - 2
    pooled = (before.var() * len(before) + after.var() * len(after)) / freedom
    error = math.sqrt(max(float(pooled), 1e-24) * (1 / len(before) + 1 / len(after)))
    t = (float(after.mean()) - float(before.mean())) / error
    return float(student_z(np.array(t), np.array(float(max(freedom, 3)))))


DETECTOR = EDivisive()
