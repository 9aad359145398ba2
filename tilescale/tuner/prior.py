"""What the cost model says about a whole space, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec


class Estimate(Protocol):
    """What is used of a cost model's prediction."""

    @property
    def us(self) -> float: ...


Predictor = Callable[[Spec, Schedule], Estimate]


def analytic(spec: Spec, schedule: Schedule) -> Estimate:
    """The analytic model."""
    from tilescale.costmodel.analytic import predict

    estimate: Estimate = predict(spec, schedule)
    return estimate


class Prior:
    """Predicted times of the schedules of a space, microseconds; each is computed once, when it is first asked for.

    Schedules are predicted in canonical order, in which those that share the structure of their plan are neighbours,
    so that a plan is lowered once for all of them. `progress(done, total)` is called now and then.
    """

    def __init__(
        self,
        spec: Spec,
        schedules: Sequence[Schedule],
        predictor: Predictor = analytic,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.spec = spec
        self.schedules = tuple(schedules)
        self._predictor = predictor
        self._progress = progress
        self._known: dict[Schedule, float] = {}

    def us(self, schedule: Schedule) -> float:
        """The predicted time of one schedule."""
        value = self._known.get(schedule)
        if value is None:
            value = self._known[schedule] = float(self._predictor(self.spec, schedule).us)
        return value

    @cached_property
    def times_us(self) -> tuple[float, ...]:
        """The predicted time of every schedule, in the order of `schedules`."""
        total = len(self.schedules)
        times = []
        for done, schedule in enumerate(self.schedules):
            if self._progress and done % 64 == 0:
                self._progress(done, total)
            times.append(self.us(schedule))
        if self._progress:
            self._progress(total, total)
        return tuple(times)

    @cached_property
    def ranked(self) -> tuple[Schedule, ...]:
        """All schedules, the fastest predicted first; equals in canonical order."""
        order = sorted(range(len(self.schedules)), key=lambda at: (self.times_us[at], at))
        return tuple(self.schedules[at] for at in order)

    def best_of(self, holds: Callable[[Schedule], bool]) -> Schedule | None:
        """The fastest predicted schedule for which `holds`; None where there is none."""
        return next((schedule for schedule in self.ranked if holds(schedule)), None)
