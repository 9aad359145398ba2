"""Series that were recorded on machines (`record_series.py`), and how detectors are judged on them.

What is certain of a recorded series is what was put into it. Shuffled, its runs have the noise of the machine and no
change: an alarm is a false one. Two variants of a workload, one followed by the other, are a real change of a known
size. As they were recorded, sessions differ (a slower host, other clocks), and nobody knows which differences are
changes: there, alarms are only counted.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

from perfdb.detecting import Detector, Floats

FILES = ("recorded.json", "recorded_gpu.json.gz")
STEP_AT, WITHIN, SHUFFLES = 40, 10, 20
# A change that can be found in ten runs at all: this large, and this many times the spread of single runs.
SMALLEST, CLEAR = 0.02, 3.0


@dataclass(frozen=True)
class Series:
    """One kernel, run after run; NaN where a run is missing."""

    workload: str
    variant: str
    times_us: Floats

    @property
    def median_us(self) -> float:
        return float(np.nanmedian(self.times_us))

    @property
    def spread(self) -> float:
        """A robust standard deviation of single runs, as a fraction."""
        return float(1.4826 * np.nanmedian(np.abs(self.times_us - self.median_us)) / self.median_us)


def load() -> list[Series]:
    """Every recorded series that is shipped."""
    found = []
    for name in FILES:
        data = (Path(__file__).parent / name).read_bytes()
        text = gzip.decompress(data) if name.endswith(".gz") else data
        for row in json.loads(text)["series"]:
            times = np.array(row["times_us"], dtype=np.float64)
            found.append(Series(row.get("workload") or row["name"], row.get("variant", ""), times))
    return found


def shuffled(series: Series, chance: np.random.Generator) -> Floats:
    """Its runs in another order, gaps where they were."""
    times = series.times_us.copy()
    there = ~np.isnan(times)
    times[there] = chance.permutation(times[there])
    return times


def real_changes(all_series: list[Series], chance: np.random.Generator) -> tuple[Floats, list[bool]]:
    """Series that go from one variant of a workload to another at `STEP_AT`, and whether each became slower."""
    rows, slower = [], []
    for one, other in permutations(all_series, 2):
        if one.workload != other.workload or min(np.isfinite(s.times_us).sum() for s in (one, other)) < STEP_AT:
            continue
        ratio = other.median_us / one.median_us
        size = abs(np.log(ratio))
        if size >= max(SMALLEST, CLEAR * max(one.spread, other.spread)):
            for _ in range(SHUFFLES):
                before, after = shuffled(one, chance), shuffled(other, chance)
                rows.append(np.concatenate([before[:STEP_AT], after[STEP_AT:]]))
                slower.append(ratio > 1)
    return np.array(rows), slower


def _share(detector: Detector, times: Floats, right: Callable[[int, float], bool]) -> float:
    """Share of rows with an alarm within `WITHIN` runs of the step that goes the right way: `right(row, ratio)`."""
    hits = 0
    for row, changes in enumerate(detector.find(times)):
        hits += any(STEP_AT < c.found <= STEP_AT + WITHIN and right(row, c.ratio) for c in changes)
    return round(hits / len(times), 4)


def scores(detector: Detector, seed: int = 5) -> dict[str, float]:
    """False alarms on shuffled runs; a step of 5 % and real changes that were found; alarms as recorded."""
    all_series, chance = load(), np.random.default_rng(seed)
    still = np.array([shuffled(series, chance) for series in all_series for _ in range(SHUFFLES)])
    stepped = still.copy()
    stepped[:, STEP_AT:] *= 1.05
    quiet_enough = np.repeat([CLEAR * series.spread <= 0.05 for series in all_series], SHUFFLES)
    changed, slower = real_changes(all_series, chance)
    as_recorded = np.array([series.times_us for series in all_series])
    return {
        "recorded_false_alarm_rate": round(sum(map(bool, detector.find(still))) / len(still), 4),
        "recorded_found_5pct": _share(detector, stepped[quiet_enough], lambda _, ratio: ratio > 1),
        "recorded_found_real": _share(detector, changed, lambda row, ratio: (ratio > 1) == slower[row]),
        "recorded_alarms_as_they_were": sum(map(bool, detector.find(as_recorded))),
    }
