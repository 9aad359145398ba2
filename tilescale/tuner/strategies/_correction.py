"""What the trials of a search teach about its prior."""

from __future__ import annotations

import math

from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.tuner.prior import Prior
from tilescale.tuner.trial import Trial

Family = tuple[str, str, str, str, str]
# A neighbour of a failure is expected to fail more often: for each it must be that much faster to be tried as early.
FAILURE_FACTOR = 1.5


def family(schedule: Schedule) -> Family:
    """Schedules that a wrong prior is wrong about in the same way."""
    return schedule.transport, schedule.direction, schedule.overlap, schedule.compute, schedule.protocol


class Correction:
    """The prior, times the mean ratio of measured to predicted of a schedule's family, times a factor a failure nearby.

    A family without trials takes the mean of all; one with n trials takes its own mean with weight n / (n + 1).
    """

    def __init__(self, prior: Prior, space: Space) -> None:
        self._prior, self._space = prior, space
        self._logs: dict[Family, list[float]] = {}
        self._all: list[float] = []
        self._failures: dict[Schedule, int] = {}

    def tell(self, trial: Trial) -> None:
        """Learn from a good trial or from a failure."""
        if trial.value_us is None:
            for neighbour in self._space.neighbours(trial.schedule):
                self._failures[neighbour] = self._failures.get(neighbour, 0) + 1
            return
        log = math.log(trial.value_us / self._prior.us(trial.schedule))
        self._logs.setdefault(family(trial.schedule), []).append(log)
        self._all.append(log)

    def ratios(self) -> dict[Family, float]:
        """The correction of every family with trials, relative to the mean of all."""
        if not self._all:
            return {}
        mean = math.fsum(self._all) / len(self._all)
        return {
            name: math.exp(math.fsum(log - mean for log in logs) / (len(logs) + 1)) for name, logs in self._logs.items()
        }

    def scores_us(self) -> list[float]:
        """A score for every schedule of the prior, in its order; smaller is better."""
        ratios = self.ratios()
        scores = []
        for schedule, time_us in zip(self._prior.schedules, self._prior.times_us, strict=True):
            score = time_us * ratios.get(family(schedule), 1.0)
            failures = self._failures.get(schedule)
            scores.append(score * FAILURE_FACTOR**failures if failures else score)
        return scores
