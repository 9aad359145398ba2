"""Conbench's rule: a run more than five standard deviations from the mean of the hundred before it."""

from __future__ import annotations

from dataclasses import dataclass

from perfdb.detecting import Change, Floats, normal_tail, one_by_one

RUNS = 100
FEWEST = 10
DEVIATIONS = 5.0


@dataclass(frozen=True)
class Conbench:
    """The detector; see the module."""

    name: str = "conbench"
    shortest: int = FEWEST + 1

    def find(self, times: Floats) -> list[list[Change]]:
        """See detecting.Detector."""
        return one_by_one(times, _find)


def _find(values: Floats) -> list[Change]:
    changes = []
    for at in range(FEWEST, len(values)):
        before = values[max(0, at - RUNS) : at]
        mean, noise = float(before.mean()), float(before.std(ddof=1))
        z = (float(values[at]) - mean) / noise if noise > 0 else 0.0
        if abs(z) > DEVIATIONS:
            changes.append(Change(at, at + 1, mean, float(values[at]), min(1.0, normal_tail(z) * len(values))))
    return changes


DETECTOR = Conbench()
