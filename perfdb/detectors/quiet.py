"""Ours: two windows, robust to outliers, corrected for correlation from run to run. Quiet and sensitive.

For each place a run could be the first of a new level, the runs before it (up to `WINDOW`) give a level, a noise and a
correlation without their outliers, and the 3 to 10 runs from it on give the new level. The difference of levels in
units of its own standard error, which grows with the correlation, is turned into a normal deviate by Student's t, so
that a short history has to show more. It is reported if the deviate passes a threshold and the step lasts: three
quarters of the new runs agree with each other within the noise, four fifths of these lie on the far side of the middle
between the levels, and the step is above a floor, both absolute and relative to the noise. Last, the runs before are
counted: where so many of them lie beyond that middle that chance brings the new ones together, it is no step.

The constants were chosen by `benchmarks/database/bench_regress.py --tune` on seeds that its report does not use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from perfdb.detecting import Change, Floats, Ints, normal_tail, packed, student_z

Bools = npt.NDArray[np.bool_]

# Runs before a step that are looked at, and the fewest that say anything.
WINDOW = 60
HISTORY = 20
# How many new runs a step needs, and at which number it is no longer waited for.
SIZES = (3, 4, 5, 6, 7, 8, 9, 10)
# A run further than this many standard deviations from the middle of its window is an outlier.
OUTLIER = 4.0
AGREEING = 0.74
BEYOND = 0.8
# The smallest step worth a report: a fraction of the time, and of the noise.
FLOOR = 0.005
FLOOR_NOISE = 1.5
# The correlation of one run with the next is known badly from 30 runs: it is drawn to a value usual on GPUs.
CORRELATION = 0.4
CORRELATION_WEIGHT = 100.0
# A degree of freedom a run is too many where runs are correlated.
FREEDOM = 0.7
THRESHOLD = 3.85
# The threshold rises for short windows and falls for long ones, by this much a factor e of their size.
SLOPE = 0.35
# A step is no news where the runs before it lie beyond its middle often enough for chance to bring so many in a row.
BY_CHANCE = 1e-3
# Places and window sizes overlap: a series of n runs is worth about this many independent looks a run.
LOOKS = 1.0


@dataclass(frozen=True)
class _Level:
    """For each series and place: number of runs before it, their level, noise and correlation (log times)."""

    count: Floats
    level: Floats
    noise: Floats
    correlation: Floats


@dataclass(frozen=True)
class Quiet:
    """The detector; see the module."""

    name: str = "quiet"
    shortest: int = HISTORY + SIZES[0]
    threshold: float = THRESHOLD

    def find(self, times: Floats) -> list[list[Change]]:
        """See detecting.Detector. After a change the history begins anew at it."""
        found: list[list[Change]] = [[] for _ in times]
        rows = np.arange(len(times))
        starts = np.zeros(len(times), dtype=np.int64)
        left = np.array(times, dtype=np.float64)
        while len(rows):
            firsts = self._firsts(left)
            again = []
            for at, change in enumerate(firsts):
                if change is not None:
                    row = int(rows[at])
                    found[row].append(change)
                    starts[row] = change.index
                    again.append(at)
            rows = rows[again]
            left = np.array(times[rows], dtype=np.float64)
            for at, start in enumerate(starts[rows]):
                left[at, :start] = np.nan
        return found

    def _firsts(self, times: Floats) -> list[Change | None]:
        """The earliest alarm of each series."""
        deviates, ends, steps, places = self.deviates(times)
        looks = LOOKS * np.maximum((~np.isnan(times)).sum(axis=1) - HISTORY, 1)
        alarms: list[Change | None] = []
        passing = deviates > self.threshold
        for row in range(len(times)):
            if not passing[row].any():
                alarms.append(None)
                continue
            # The first moment at which anything passes; of what passes then, the clearest.
            sizes, spots = np.nonzero(passing[row])
            when = ends[row][sizes, spots]
            now = np.flatnonzero(when == when.min())
            best = now[np.argmax(deviates[row][sizes[now], spots[now]])]
            size, spot = int(sizes[best]), int(spots[best])
            before, after = (math.exp(value) for value in steps[row][:, size, spot])
            p_value = min(1.0, normal_tail(float(deviates[row][size, spot])) * float(looks[row]))
            alarms.append(Change(int(places[row, spot]), int(when.min()) + 1, before, after, p_value))
        return alarms

    def deviates(self, times: Floats) -> tuple[Floats, Ints, Floats, Ints]:
        """For each series, window size and place: the deviate (0 where no step lasts), the last run it needs, levels.

        Shapes (series, sizes, places), the same, (series, 2, sizes, places); and the run of each place.
        """
        # All of it is about ratios: a step of 2 % is 0.02 whatever the time.
        with np.errstate(invalid="ignore", divide="ignore"):
            values, places = packed(np.log(times))
            before = _before(values)
            count = values.shape[1]
            shape = (len(values), len(SIZES), count)
            deviates, ends = np.zeros(shape), np.zeros(shape, dtype=np.int64)
            steps = np.zeros((len(values), 2, len(SIZES), count))
            for at, size in enumerate(SIZES):
                deviates[:, at], after, beyond = _step(values, before, size)
                known = _by_chance(values, before.level, after, beyond, size, deviates[:, at] > self.threshold)
                deviates[:, at][known] = 0.0
                ends[:, at] = places[:, np.minimum(np.arange(count) + size, count) - 1]
                steps[:, 0, at], steps[:, 1, at] = before.level, after
        return deviates, ends, steps, places


def _before(values: Floats) -> _Level:
    padded = np.concatenate([np.full((len(values), WINDOW), np.nan), values], axis=1)
    windows = sliding_window_view(padded, WINDOW, axis=1)[:, : values.shape[1]]
    there = ~np.isnan(windows)
    middle = _median(windows, there.sum(axis=2))
    apart = windows - middle[..., None]
    spread = np.maximum(1.4826 * _median(np.abs(apart), there.sum(axis=2)), 1e-6)
    kept = there & (np.abs(apart) <= OUTLIER * spread[..., None])
    count = kept.sum(axis=2).astype(np.float64)
    mean = np.where(kept, apart, 0.0).sum(axis=2) / count
    rest = np.where(kept, apart - mean[..., None], 0.0)
    squares = (rest**2).sum(axis=2)
    pairs = (kept[..., 1:] & kept[..., :-1]).sum(axis=2)
    raw = (rest[..., 1:] * rest[..., :-1]).sum(axis=2) / np.maximum(pairs, 1) / (squares / count)
    # The estimate of a short series is too small by about (1 + 3 phi) / n (Kendall 1954).
    raw = np.nan_to_num(raw) + (1 + 3 * np.nan_to_num(raw)) / np.maximum(count, 4)
    weighed = (count * raw + CORRELATION_WEIGHT * CORRELATION) / (count + CORRELATION_WEIGHT)
    correlation = np.clip(weighed, 0.0, 0.8)
    # So is the variance about a mean of the same correlated runs.
    shrink = np.maximum(1 - (1 + correlation) / (1 - correlation) / np.maximum(count, 1), 0.3)
    noise = np.maximum(np.sqrt(squares / np.maximum(count - 1, 1) / shrink), 1e-6)
    return _Level(count, middle + mean, noise, correlation)


def _median(windows: Floats, count: Ints) -> Floats:
    """The median of the last axis without its NaN, NaN where there is nothing else."""
    ordered = np.sort(windows, axis=-1)
    low, high = np.maximum(count - 1, 0) // 2, np.maximum(count, 1) // 2
    pick = [np.take_along_axis(ordered, at[..., None], axis=-1)[..., 0] for at in (low, np.minimum(high, low + 1))]
    result: Floats = (pick[0] + pick[1]) / 2
    return result


def _step(values: Floats, before: _Level, size: int) -> tuple[Floats, Floats, Ints]:
    """Deviates of a step whose new level has `size` runs, 0 where it does not last; the new levels; and how many of the
    new runs lie beyond the middle between the levels."""
    padded = np.concatenate([values, np.full((len(values), size), np.nan)], axis=1)
    windows = sliding_window_view(padded, size, axis=1)[:, : values.shape[1]]
    whole = ~np.isnan(windows[..., -1])
    middle = np.median(windows, axis=2)
    apart = windows - middle[..., None]
    kept = np.abs(apart) <= OUTLIER * before.noise[..., None]
    count = kept.sum(axis=2)
    after = middle + np.where(kept, apart, 0.0).sum(axis=2) / np.maximum(count, 1)
    step = after - before.level
    phi = before.correlation
    new = 1 + 2 * sum((1 - lag / size) * phi**lag for lag in range(1, size))
    old = (1 + phi) / (1 - phi)
    error = before.noise * np.sqrt(new / np.maximum(count, 1) + old / before.count)
    half = (before.level + step / 2)[..., None]
    far = kept & np.where(step[..., None] > 0, windows > half, windows < half)
    lasts = whole & (before.count >= HISTORY) & (count >= AGREEING * size) & (far.sum(axis=2) >= BEYOND * count)
    lasts &= (np.abs(step) >= FLOOR) & (np.abs(step) >= FLOOR_NOISE * before.noise)
    deviates = student_z(step / error, np.maximum(FREEDOM * before.count - 1, 3))
    return np.where(lasts, deviates + SLOPE * math.log(size / 5), 0.0), after, far.sum(axis=2)


def _by_chance(values: Floats, level: Floats, after: Floats, beyond: Ints, size: int, asked: Bools) -> Bools:
    """Of the places asked about, those where the runs before explain the new ones.

    On a machine that is slow now and then, a quarter of the runs say, a few slow ones in a row are no step. This part
    knows nothing of the shape of the noise: it counts runs, outliers too.
    """
    known = np.zeros(asked.shape, dtype=bool)
    for row, place in np.argwhere(asked):
        earlier = values[row, max(0, place - WINDOW) : place]
        middle = (level[row, place] + after[row, place]) / 2
        there = (earlier > middle) if after[row, place] > level[row, place] else (earlier < middle)
        share = (there.sum() + 1) / (len(earlier) + 2)
        least = int(beyond[row, place])
        tail = sum(math.comb(size, n) * share**n * (1 - share) ** (size - n) for n in range(least, size + 1))
        known[row, place] = tail > BY_CHANCE
    return known


DETECTOR = Quiet()
