"""The search loop: ask a strategy, look the candidate up or measure it, commit, tell."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilescale.errors import RunnerError
from tilescale.runtime.measure import Measurement
from tilescale.runtime.runner import Runner
from tilescale.schedules.schedule import Schedule
from tilescale.tuner.baselines import first_candidates
from tilescale.tuner.interrupt import Guard
from tilescale.tuner.progress import Progress, Report
from tilescale.tuner.store import Store
from tilescale.tuner.strategy import Context, Strategy
from tilescale.tuner.trial import Trial


@dataclass(frozen=True)
class Budget:
    """At most `trials` candidates, stored ones included, and no new one after `deadline` (of time.monotonic)."""

    trials: int
    deadline: float

    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


@dataclass
class Search:
    """One search. After `run`, `trials` holds what was tried, in order, and `status` how it ended.

    The baselines come first, then what the strategy asks for. A candidate that the store knows costs no measurement.
    Each measurement is committed before the next candidate is chosen.
    """

    name: str
    context: Context
    runner: Runner
    store: Store
    strategy: Strategy
    budget: Budget
    guard: Guard
    report: Report
    trials: list[Trial] = field(default_factory=list)
    measured: int = 0
    status: str = "complete"
    _best: Trial | None = None

    def run(self) -> None:
        """Search until the budget is spent, the space is exhausted or the user interrupts."""
        try:
            for schedule in self._candidates():
                self._try(schedule)
                self._say()
        except KeyboardInterrupt:
            self.status = "interrupted"

    def _candidates(self) -> Iterator[Schedule]:
        tried: set[Schedule] = set()
        for schedule in first_candidates(self.context.spec, self.context.prior):
            if self._spent():
                return
            tried.add(schedule)
            yield schedule
        while True:
            # Exhaustion is looked at first: a space as large as the budget was exhausted by it.
            if len(tried) >= self.context.space.feasible:
                self.status = "exhausted"
                return
            if self._spent():
                return
            proposal = self.strategy.ask()
            if proposal is None:
                self.status = "exhausted"
                return
            if proposal not in tried:
                tried.add(proposal)
                yield proposal

    def _spent(self) -> bool:
        # One candidate is always tried, however short the time: an answer needs a trial.
        return len(self.trials) >= self.budget.trials or (bool(self.trials) and self.budget.seconds_left() <= 0)

    def _try(self, schedule: Schedule) -> None:
        number, predicted_us = len(self.trials), self.context.prior.us(schedule)
        trial = self.store.recall(schedule, number, predicted_us)
        if trial is not None:
            self._finish(trial)
            return
        measurement = self._measure(schedule)
        with self.guard.held():
            self.measured += 1
            self._finish(self.store.keep(measurement, number, predicted_us))

    def _finish(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.strategy.tell(trial)
        if trial.ok and (self._best is None or trial.time_us < self._best.time_us):
            self._best = trial

    def _measure(self, schedule: Schedule) -> Measurement:
        measurements = self.runner.measure(self.context.spec, [schedule])
        if [measurement.schedule for measurement in measurements] != [schedule]:
            given = [measurement.schedule.label for measurement in measurements]
            raise RunnerError("a runner returns one measurement a schedule, of that schedule", given, schedule.label)
        return measurements[0]

    def _say(self) -> None:
        best = self._best
        failed = sum(1 for trial in self.trials if not trial.ok)
        total = min(self.budget.trials, self.context.space.feasible)
        self.report(
            Progress(
                self.name,
                "search",
                len(self.trials),
                total,
                self.budget.seconds_left(),
                best.value_us if best else None,
                best.schedule.label if best else "",
                failed,
                self.measured,
            )
        )
