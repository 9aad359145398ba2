"""Which candidate to measure next, by number: the arithmetic of the strategy `learned`, apart from schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilescale.costmodel.gaussian import Floats, Gaussian

# The best candidate of a family is measured first where it is expected within this factor of the best of all.
OPENING_FACTOR = 1.5
OPENINGS = 6
# Every so many choices one is made for what it teaches, not for what it promises.
EXPLORE_EVERY = 8
# The bound lies a random number of standard deviations below the mean, at most this many.
MOST_DEVIATIONS = 1.0
EXPLORE_DEVIATIONS = 3.0
# Hyperparameters are refitted after so many measurements, and then less and less often; this many are looked at.
REFIT_EVERY = 4
KEPT = 256
# The reach of a failure, in mean distances, and how many successes elsewhere speak against it.
FAILURE_REACH = 0.5
FAILURE_PRIOR = 0.3


@dataclass(frozen=True)
class Candidates:
    """What is known before anything is measured of n candidates.

    `log_us`: logarithm of the expected time, microseconds. `distance` (n, n): see gaussian.distances. `families`: of
    candidates that a wrong expectation is wrong about together; `kinds`: of families that are alike. `failure`:
    probability that it fails.
    """

    log_us: Floats
    distance: Floats
    families: tuple[object, ...]
    kinds: tuple[object, ...]
    failure: Floats


class Chooser:
    """Chooses candidates by the lower bound of their time: expected, corrected by what was measured.

    First the best of each promising family, then the smallest bound among those neither chosen nor told of; from time
    to time one with a wide interval. A candidate near failures is put off. The seed and what was told decide alone.
    """

    def __init__(self, candidates: Candidates, seed: int) -> None:
        self._all = candidates
        self._random = np.random.default_rng(seed)
        self._open = np.ones(len(candidates.log_us), dtype=bool)
        self._good: list[int] = []
        self._residuals: list[float] = []
        self._failed: list[int] = []
        self._model: Gaussian | None = None
        self._fitted = 0
        self._asked = 0
        self._openings = _openings(candidates)

    def ask(self) -> int | None:
        """The number of the next candidate; None once there is none left."""
        for at in self._openings:
            if self._open[at]:
                return self._choose(at)
        if not self._open.any():
            return None
        self._asked += 1
        bound = np.round(self._bound(), 9)  # so that the last bits of a sum decide nothing
        bound[~self._open] = np.inf
        return self._choose(int(bound.argmin()))

    def tell(self, at: int, log_us: float | None) -> None:
        """The logarithm of the measured time of a candidate, chosen here or not; None for a failure."""
        self._open[at] = False
        if log_us is None:
            self._failed.append(at)
            return
        self._good.append(at)
        self._residuals.append(log_us - float(self._all.log_us[at]))

    def _choose(self, at: int) -> int:
        self._open[at] = False
        return at

    def _bound(self) -> Floats:
        explore = self._asked % EXPLORE_EVERY == 0
        deviations = EXPLORE_DEVIATIONS if explore else float(self._random.uniform(0.0, MOST_DEVIATIONS))
        put_off = -np.log1p(-np.minimum(0.95, self._failures()))
        if len(self._good) < 2:
            # Nothing to correct by: the order of expectations, shaken.
            return np.asarray(self._all.log_us + put_off + self._random.normal(0.0, 0.02, len(put_off)))
        good = np.array(self._kept(), dtype=np.intp)
        places = np.array(self._good, dtype=np.intp)[good]
        values = np.array(self._residuals)[good]
        between = self._all.distance[np.ix_(places, places)]
        if self._model is None or len(self._good) >= self._fitted + max(REFIT_EVERY, self._fitted // 4):
            self._model, self._fitted = Gaussian.fit(between, values), len(self._good)
        mean, deviation = self._model.predict(between, values, self._all.distance[:, places])
        return np.asarray(self._all.log_us + mean - deviations * deviation + put_off)

    def _kept(self) -> list[int]:
        """Places in what was measured: all, or the fastest where there are too many."""
        if len(self._good) <= KEPT:
            return list(range(len(self._good)))
        times = [float(self._all.log_us[at]) + r for at, r in zip(self._good, self._residuals, strict=True)]
        return sorted(range(len(times)), key=lambda at: (times[at], at))[:KEPT]

    def _failures(self) -> Floats:
        """Probability of failing: what was expected, and the share of failures among measured ones nearby."""
        if not self._failed:
            return self._all.failure
        bad = _weights(self._all.distance[:, self._failed])
        good = _weights(self._all.distance[:, self._good]) if self._good else 0.0
        return np.asarray((bad + FAILURE_PRIOR * self._all.failure) / (bad + good + FAILURE_PRIOR))


def _weights(distance: Floats) -> Floats:
    return np.asarray(np.exp(-((distance / FAILURE_REACH) ** 2)).sum(axis=1))


def _openings(candidates: Candidates) -> Sequence[int]:
    """The best of each family that is expected near the best of all, the best first: of every kind of families one, before
    a kind has another."""
    expected = candidates.log_us - np.log1p(-np.minimum(0.95, candidates.failure))
    order = np.argsort(expected, kind="stable")
    opened: dict[object, int] = {}
    for at in order.tolist():
        if expected[at] > expected[order[0]] + np.log(OPENING_FACTOR):
            break
        opened.setdefault(candidates.families[at], at)
    kinds = {candidates.kinds[at]: at for at in reversed(opened.values())}
    first = [at for at in opened.values() if kinds[candidates.kinds[at]] == at]
    return [*first, *(at for at in opened.values() if at not in first)][:OPENINGS]
