"""Mann and Whitney's rank test of the last 8 runs against the 16 before them, at p < 0.002."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from perfdb.detecting import Change, Floats, normal_tail, one_by_one

BEFORE, AFTER = 16, 8
LEVEL = 0.002


@dataclass(frozen=True)
class MannWhitney:
    """The detector; see the module."""

    name: str = "mannwhitney"
    shortest: int = BEFORE + AFTER

    def find(self, times: Floats) -> list[list[Change]]:
        """See detecting.Detector."""
        return one_by_one(times, _find)


def _find(values: Floats) -> list[Change]:
    if len(values) < BEFORE + AFTER:
        return []
    windows = sliding_window_view(values, BEFORE + AFTER)
    before, after = windows[:, :BEFORE], windows[:, BEFORE:]
    above = (after[:, :, None] > before[:, None, :]).sum(axis=(1, 2))
    equal = (after[:, :, None] == before[:, None, :]).sum(axis=(1, 2))
    mean, noise = BEFORE * AFTER / 2, math.sqrt(BEFORE * AFTER * (BEFORE + AFTER + 1) / 12)
    # The normal approximation with its correction for steps of one: at 16 against 8 it is close enough.
    z = np.maximum(np.abs(above + equal / 2 - mean) - 0.5, 0) / noise
    changes: list[Change] = []
    for start in np.flatnonzero([normal_tail(float(value)) < LEVEL for value in z]):
        at = int(start) + BEFORE
        if changes and at < changes[-1].index + BEFORE + AFTER:
            continue  # the same step, seen again
        p_value = min(1.0, normal_tail(float(z[start])) * len(z))
        levels = float(np.median(before[start])), float(np.median(after[start]))
        changes.append(Change(at, at + AFTER, *levels, p_value))
    return changes


DETECTOR = MannWhitney()
