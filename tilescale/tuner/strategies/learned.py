"""A model of the measurements, refitted as they come, says what to measure next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tilescale.costmodel.gaussian import distances
from tilescale.costmodel.learned import LEAST_ROWS, LearnedModel, fit
from tilescale.costmodel.memo import ahead, save
from tilescale.costmodel.memo import prior as analytic_prior
from tilescale.costmodel.rows import Row, matrix
from tilescale.schedules.schedule import Schedule
from tilescale.tuner.prior import Prior
from tilescale.tuner.strategies._chooser import Candidates, Chooser
from tilescale.tuner.strategies._correction import family
from tilescale.tuner.strategy import STRATEGIES, Context, Strategy
from tilescale.tuner.trial import Trial

# Of a large space, so many that the prior expects to be the fastest are looked at, and so many of every family.
SHORTLIST = 1000
OF_A_FAMILY = 40


@STRATEGIES.register
class Learned(Strategy):
    """Expected times are those of the prior, corrected by a model fitted on what the database holds of other workloads
    (`context.experience`), corrected by a Gaussian process over what this search has measured; see _chooser.Chooser.

    What is beyond the shortlist follows in the prior's order once the shortlist is used up.
    """

    name = "learned"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._schedules = shortlist(context.prior)
        self._place = {schedule: at for at, schedule in enumerate(self._schedules)}
        self._chooser = Chooser(candidates(context, self._schedules, context.experience), context.seed)
        self._rest: Iterator[Schedule] = iter(context.prior.ranked)

    def ask(self) -> Schedule | None:
        at = self._chooser.ask()
        if at is not None:
            self.seen.add(self._schedules[at])
            return self._schedules[at]
        for schedule in self._rest:
            if schedule not in self.seen:
                self.seen.add(schedule)
                return schedule
        return None

    def tell(self, trial: Trial) -> None:
        super().tell(trial)
        at = self._place.get(trial.schedule)
        if at is not None:
            self._chooser.tell(at, None if trial.value_us is None else math.log(trial.value_us))


def shortlist(prior: Prior) -> tuple[Schedule, ...]:
    """The schedules that are worth a closer look, in the prior's order."""
    opened: Counter[object] = Counter()
    found: list[Schedule] = []
    for schedule in prior.ranked:
        name = family(schedule)
        if len(found) < SHORTLIST or opened[name] < OF_A_FAMILY:
            opened[name] += 1
            found.append(schedule)
    return tuple(found)


def candidates(context: Context, schedules: Sequence[Schedule], experience: Sequence[Row] = ()) -> Candidates:
    """What is known of schedules before any is measured: from the prior and from rows of other workloads."""
    spec = context.spec
    ahead(spec, schedules)
    priors = [analytic_prior(spec, schedule) for schedule in schedules]
    save(spec)
    log_us = np.array([math.log(context.prior.us(schedule)) for schedule in schedules])
    values, _ = matrix([spec] * len(schedules), schedules, priors)
    failure = np.zeros(len(schedules))
    model = transfer(context, experience)
    if model is not None:
        found = model.predict_many(spec, schedules, priors)
        factor = found.us / np.array([prior.us for prior in priors])
        log_us, failure = log_us + np.log(factor), found.failure
    features = np.column_stack([values, log_us])
    return Candidates(log_us, distances(features), tuple(family(schedule) for schedule in schedules),
                      tuple((s.overlap, s.compute, s.algorithm) for s in schedules), failure)


def transfer(context: Context, experience: Sequence[Row]) -> LearnedModel | None:
    """A model of other workloads, or None where too little is known of this operation on such a machine."""
    rows = [row for row in experience if row.spec.op == context.spec.op]
    if sum(1 for row in rows if row.us is not None) < LEAST_ROWS:
        return None
    model = fit(rows, calibrated=False)
    return model if model.covers(context.spec) else None
