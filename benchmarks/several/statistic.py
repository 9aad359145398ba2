"""Ranks and their correlation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def ranks(values: Sequence[float]) -> list[float]:
    """From 1; equal values share the mean of their places."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for place in order[at:end]:
            found[place] = (at + 1 + end) / 2
        at = end
    return found


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """The rank correlation; nan for fewer than three pairs, or where one side is constant."""
    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return math.nan
    return statistics.correlation(ranks(first), ranks(second))


def finite(value: float) -> float | None:
    """For JSON."""
    return round(value, 4) if math.isfinite(value) else None
