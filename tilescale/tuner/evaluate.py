"""How good the learned model is: at workloads it has not seen, and at choosing what to measure in recorded spaces."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tilescale.costmodel.learned import LEAST_ROWS, fit
from tilescale.costmodel.memo import prior as analytic_prior
from tilescale.costmodel.rows import Floats, Row
from tilescale.runtime.replay import RecordedSpace
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.tuner.baselines import first_candidates
from tilescale.tuner.experience import from_spaces
from tilescale.tuner.prior import Prior
from tilescale.tuner.strategies._chooser import Candidates, Chooser
from tilescale.tuner.strategies.learned import candidates, shortlist
from tilescale.tuner.strategy import STRATEGIES, Context
from tilescale.tuner.trial import Trial

MEASUREMENTS = 24
SEEDS = 100
TOP = (1, 8)
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Accuracy:
    """Predictions of one workload, compared with its measurements.

    `rank`: Spearman's correlation. `error`: median relative error. `regret`: for each k of TOP, how much slower the
    fastest of the k best predicted is than the fastest of all, as a fraction.
    """

    rank: float
    error: float
    regret: tuple[float, ...]


@dataclass(frozen=True)
class Held:
    """A workload of `rows` good rows that was left out: the prior, and a model of the `learned_from` rows of others.

    `covered`: share of the rows inside the model's interval. `model` is None where the others teach too little.
    """

    label: str
    rows: int
    learned_from: int
    prior: Accuracy
    model: Accuracy | None
    covered: float | None


@dataclass(frozen=True)
class Quality:
    """The fastest schedule found in a recorded space, as the share best / found, by a way of choosing.

    `mean`, `least`, `tenth`: mean, minimum and 10th percentile over the seeds. `reached`: the share of the seeds that
    found 0.98 or more. `failed`: measurements spent on failures, on average.
    """

    way: str
    mean: float
    least: float
    tenth: float
    reached: float
    failed: float


@dataclass(frozen=True)
class SpaceQuality:
    """What every way of choosing found in one space of `rows` schedules, `failures` of them failed."""

    label: str
    spec: str
    rows: int
    failures: int
    best_us: float
    ways: tuple[Quality, ...]


def leave_one_out(rows: Sequence[Row], progress: Progress | None = None) -> tuple[Held, ...]:
    """Each workload predicted by a model of the others of its operation. Raises ModelError for mixed sources."""
    rows = [replace(row, prior=row.predicted) for row in rows]
    specs = sorted({row.spec for row in rows}, key=lambda spec: (spec.label, spec.digest))
    found = []
    for number, spec in enumerate(specs):
        if progress:
            progress("leaving one workload out", number, len(specs))
        own = [row for row in rows if row.spec == spec and row.us is not None]
        others = [row for row in rows if row.spec != spec and row.spec.op == spec.op]
        if len(own) > 1:
            found.append(_held(spec, own, others))
    return tuple(found)


def _held(spec: Spec, own: Sequence[Row], others: Sequence[Row]) -> Held:
    priors = [row.predicted for row in own]
    measured = np.array([row.us for row in own], dtype=np.float64)
    prior = accuracy(measured, np.array([prior.us for prior in priors]))
    good = sum(1 for row in others if row.us is not None)
    if good < LEAST_ROWS:
        return Held(spec.label, len(own), good, prior, None, None)
    model = fit(others)
    if not model.covers(spec):
        return Held(spec.label, len(own), good, prior, None, None)
    estimates = model.predict_many(spec, [row.schedule for row in own], priors)
    covered = float(((estimates.low_us <= measured) & (measured <= estimates.high_us)).mean())
    return Held(spec.label, len(own), good, prior, accuracy(measured, estimates.us), covered)


def accuracy(measured_us: Floats, predicted_us: Floats) -> Accuracy:
    """Of two arrays (n,), n > 1."""
    first, second = (np.argsort(np.argsort(us, kind="stable")).astype(np.float64) for us in (measured_us, predicted_us))
    order = np.argsort(predicted_us, kind="stable")
    regret = tuple(float(measured_us[order[:top]].min() / measured_us.min() - 1) for top in TOP)
    error = float(np.median(np.abs(predicted_us / measured_us - 1)))
    return Accuracy(float(np.corrcoef(first, second)[0, 1]), error, regret)


class _Recorded(Space):
    """The recorded schedules as if they were the whole space."""

    def __init__(self, spec: Spec, schedules: Sequence[Schedule]) -> None:
        super().__init__(spec)
        self._recorded = tuple(schedules)

    @cached_property
    def _enumerated(self) -> tuple[tuple[Schedule, ...], dict[str, int], int]:
        return self._recorded, {}, len(self._recorded)


def search_quality(
    spaces: Sequence[RecordedSpace],
    measurements: int = MEASUREMENTS,
    seeds: int = SEEDS,
    strategies: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[SpaceQuality, ...]:
    """What `measurements` find in each space, over seeds 0 to `seeds` - 1.

    Ways: "random"; "prior" (in the order of the analytic model: one order, whatever the seed); "learned" (as `tune`
    does without a database: the baselines first); "learned+transfer" (with the rows of the other spaces of the same
    operation and source); and the `strategies` of the registry named, likewise after the baselines.
    """
    found = []
    for number, space in enumerate(spaces):
        others = [o for o in spaces if o.source == space.source and o.spec.op == space.spec.op and o is not space]
        if progress:
            progress("searching recorded spaces", number, len(spaces))
        found.append(_Player(space, measurements).quality(others, seeds, strategies))
    return tuple(found)


class _Player:
    """Searches one recorded space by looking times up in an array."""

    def __init__(self, space: RecordedSpace, measurements: int) -> None:
        self.space, self.measurements = space, measurements
        rows = {row.schedule: row for row in space.rows if row.status != "interrupted"}
        self.schedules = tuple(sorted(rows))
        self.us = np.array([rows[s].value_us if rows[s].ok else math.nan for s in self.schedules], dtype=np.float64)
        self.place = {schedule: at for at, schedule in enumerate(self.schedules)}
        self.prior = Prior(space.spec, self.schedules, analytic_prior, exact=len(self.schedules))
        self.first = [self.place[s] for s in first_candidates(space.spec, self.prior)][:measurements]

    def quality(self, others: Sequence[RecordedSpace], seeds: int, strategies: Sequence[str]) -> SpaceQuality:
        ways = [self._judge("random", [self._random(seed) for seed in range(seeds)])]
        ways.append(self._judge("prior", [[self.place[s] for s in self.prior.ranked[: self.measurements]]]))
        for name, experience in (("learned", ()), ("learned+transfer", from_spaces(others))):
            if name == "learned" or experience:
                ways.append(self._learned(name, experience, seeds))
        ways += [self._judge(name, [self._strategy(name, seed) for seed in range(seeds)]) for name in strategies]
        spec, failures = self.space.spec, int(np.isnan(self.us).sum())
        best = float(np.nanmin(self.us))
        return SpaceQuality(spec.label, spec.digest, len(self.us), failures, best, tuple(ways))

    def _judge(self, way: str, runs: Sequence[Sequence[int]]) -> Quality:
        best = np.nanmin(self.us)
        times = [np.where(np.isnan(self.us[list(run)]), np.inf, self.us[list(run)]) for run in runs]
        shares = np.array([best / time.min() for time in times])
        failed = float(np.mean([np.isinf(time).sum() for time in times]))
        least, tenth = float(shares.min()), float(np.quantile(shares, 0.1))
        return Quality(way, float(shares.mean()), least, tenth, float((shares >= 0.98).mean()), failed)

    def _random(self, seed: int) -> list[int]:
        drawn: list[int] = np.random.default_rng(seed).permutation(len(self.us))[: self.measurements].tolist()
        return drawn

    def _learned(self, way: str, experience: Sequence[Row], seeds: int) -> Quality:
        listed = shortlist(self.prior)
        known = candidates(self._context(0), listed, experience)
        places = [self.place[schedule] for schedule in listed]
        return self._judge(way, [self._choose(known, places, seed) for seed in range(seeds)])

    def _choose(self, known: Candidates, places: Sequence[int], seed: int) -> list[int]:
        """One search: what the strategy `learned` does, with places for schedules."""
        chooser = Chooser(known, seed)
        number = {place: at for at, place in enumerate(places)}
        run: list[int] = []
        for place in self.first:
            run.append(place)
            if place in number:
                self._tell(chooser, number[place], place)
        while len(run) < self.measurements and (at := chooser.ask()) is not None:
            run.append(places[at])
            self._tell(chooser, at, places[at])
        return run

    def _tell(self, chooser: Chooser, at: int, place: int) -> None:
        us = float(self.us[place])
        chooser.tell(at, None if math.isnan(us) else math.log(us))

    def _strategy(self, name: str, seed: int) -> list[int]:
        strategy = STRATEGIES[name](self._context(seed))
        run = list(self.first)
        for number, place in enumerate(run):
            strategy.tell(self._trial(number, place))
        while len(run) < self.measurements and (schedule := strategy.ask()) is not None:
            run.append(self.place[schedule])
            strategy.tell(self._trial(len(run), run[-1]))
        return run

    def _context(self, seed: int) -> Context:
        return Context(self.space.spec, _Recorded(self.space.spec, self.schedules), self.prior, seed)

    def _trial(self, number: int, place: int) -> Trial:
        us = float(self.us[place])
        good = not math.isnan(us)
        status = "ok" if good else "launch_error"
        return Trial(number, self.schedules[place], status, "replayed", "measured", 0, us if good else None)
