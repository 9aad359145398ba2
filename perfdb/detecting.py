"""What a detector of changes is, and the arithmetic that detectors share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Change:
    """A step that a detector reports.

    `index`: the first run of the new level. `found`: the number of runs that had to be there before it was reported
    (the alarm is raised after run `found - 1`). `before`, `after`: the two levels. `p_value`: of a step as clear as
    this anywhere in the series if there were none, corrected for all the places looked at; NaN where a detector has
    none.
    """

    index: int
    found: int
    before: float
    after: float
    p_value: float = math.nan

    @property
    def ratio(self) -> float:
        """The new level in units of the old one: above 1 is slower."""
        return self.after / self.before


class Detector(Protocol):
    """Finds steps in series of times. A stateless value in a file of its own, named after the file."""

    @property
    def name(self) -> str:
        """What `--detector` calls it."""

    @property
    def shortest(self) -> int:
        """The number of runs below which it says nothing."""

    def find(self, times: Floats) -> list[list[Change]]:
        """The changes of each row of `times`, in the order of their `index`; NaN is a run that is missing.

        The answer is what asking after each run would have given: a change rests on no run after `found`.
        """


def packed(times: Floats) -> tuple[Floats, Ints]:
    """Each row without its gaps, NaN behind; and for each place the run it came from."""
    order = np.argsort(np.isnan(times), axis=1, kind="stable")
    return np.take_along_axis(times, order, axis=1), order


def one_by_one(times: Floats, find: Callable[[Floats], list[Change]]) -> list[list[Change]]:
    """Ask about each row without its gaps; indices come back as runs of the row."""
    found = []
    for row in times:
        places = np.flatnonzero(~np.isnan(row))
        changes = find(row[places])
        found.append(
            [Change(int(places[c.index]), int(places[c.found - 1]) + 1, c.before, c.after, c.p_value) for c in changes]
        )
    return found


def normal_tail(z: float) -> float:
    """P(|N(0, 1)| > |z|)."""
    return math.erfc(abs(z) / math.sqrt(2))


def student_z(t: Floats, freedom: Floats) -> Floats:
    """The normal deviate with the tail of Student's t (Wallace 1959, within 1 % of a deviate for 3 degrees and up)."""
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    deviate: Floats = scale * np.sqrt(freedom * np.log1p(t * t / freedom))
    return deviate


def false_discovery(p_values: Floats) -> Floats:
    """Benjamini and Hochberg's q-values: the expected share of false ones among all that are at most as large."""
    count = len(p_values)
    if count == 0:
        return p_values
    order = np.argsort(p_values)
    raised = p_values[order] * count / np.arange(1, count + 1)
    lowest = np.minimum.accumulate(raised[::-1])[::-1]
    result = np.empty(count)
    result[order] = np.minimum(lowest, 1.0)
    return result
