"""The learned cost model: the analytic prior times a factor learned from measurements, with an interval.

The factor's logarithm is an average over randomised trees (scikit-learn), which extrapolate to the factor of the most
similar schedules that were measured. Intervals are conformal: errors of predictions held out in cross-validation, in
units of the spread of the trees, give the width that covers COVERAGE of them. Held out are rows for workloads that were
measured, and whole workloads for those that were not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilescale.costmodel.analytic import Prediction
from tilescale.costmodel.feasibility import Feasibility
from tilescale.costmodel.memo import prior as analytic_prior
from tilescale.costmodel.rows import Floats, ModelError, Row, matrix
from tilescale.errors import MissingDependency
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

TREES = 100
LEAF = 2
SHARE = 0.5  # of the features that a split looks at
COVERAGE = 0.9
FOLDS = 5
LEAST_ROWS = 20
# What is added to the spread of the trees: equal trees may all be wrong, and no timer is finer than this.
SPREAD = 0.005


@dataclass(frozen=True)
class Estimates:
    """Of n schedules: microseconds, an interval, and the probability of failing; each an array (n,)."""

    us: Floats
    low_us: Floats
    high_us: Floats
    failure: Floats


@dataclass(frozen=True)
class LearnedModel:
    """A fitted model of one source of measurements; see `fit`.

    `ops`, `gpus`: what it was fitted on, and what it answers for. `workloads`: digests of the specs among its rows.
    `known_width`, `new_width`: half-widths of intervals in spreads of the trees, for those specs and for others.
    `prior_error`, `known_error`, `new_error`: median relative errors of the prior, and of the model where rows, or
    whole workloads, are held out. What is of new workloads is None where there was but one to learn from.
    `rows`, `failures`: how many good and failed rows.
    """

    source: str
    ops: tuple[str, ...]
    gpus: tuple[str, ...]
    workloads: tuple[str, ...]
    columns: tuple[str, ...]
    known_width: float
    new_width: float | None
    prior_error: float
    known_error: float
    new_error: float | None
    rows: int
    failures: int
    feasibility: Feasibility
    trees: Any = field(repr=False)

    def covers(self, spec: Spec) -> bool:
        """Whether rows of this operation, GPU model and kind of topology were learned from."""
        here = spec.topology
        return spec.op in self.ops and here.gpu.model in self.gpus and here.source == self.source

    def predict(self, spec: Spec, schedule: Schedule, prior: Prediction | None = None) -> Prediction:
        """The time of one schedule; its parts are those of the prior, in the same proportion.

        Raises ModelError for a spec that the model does not cover.
        """
        prior = prior or analytic_prior(spec, schedule)
        found = self.predict_many(spec, [schedule], [prior])
        us = float(found.us[0])
        parts = tuple((name, part * us / prior.us) for name, part in prior.parts)
        return Prediction(us, float(found.low_us[0]), float(found.high_us[0]), parts)

    def predict_many(
        self, spec: Spec, schedules: Sequence[Schedule], priors: Sequence[Prediction] | None = None
    ) -> Estimates:
        """The times of many schedules of a spec. `priors`: their analytic predictions, where the caller has them."""
        if not self.covers(spec):
            here = f"{spec.op} on {spec.topology.gpu.model} ({spec.topology.source})"
            known = f"{', '.join(self.ops)} on {', '.join(self.gpus)} ({self.source})"
            raise ModelError(f"the model was fitted on such rows: {known}", here, "fit it again, or use the prior")
        if priors is None:
            priors = [analytic_prior(spec, schedule) for schedule in schedules]
        values, _ = matrix([spec] * len(schedules), schedules, priors, self.columns)
        mean, spread = _average(self.trees, values)
        us = np.array([prior.us for prior in priors], dtype=np.float64) * np.exp(mean)
        half = self._half_widths(spec, spread, priors)
        failure = np.array(self.feasibility.failure(schedules), dtype=np.float64)
        return Estimates(us, us * np.exp(-half), us * np.exp(half), failure)

    def _half_widths(self, spec: Spec, spread: Floats, priors: Sequence[Prediction]) -> Floats:
        known = spread * self.known_width
        if spec.digest in self.workloads:
            return known
        if self.new_width is not None:
            return np.maximum(known, spread * self.new_width)
        # Nothing says how wrong it is about another workload: no surer than the prior is.
        own = np.array([math.log(prior.high_us / prior.us) for prior in priors], dtype=np.float64)
        return np.maximum(known, own)


def fit(rows: Sequence[Row], seed: int = 0, calibrated: bool = True) -> LearnedModel:
    """Fit a model on rows of one source, in any order; equal rows and seeds give equal models.

    `calibrated=False` leaves the cross-validation out, which takes most of the time: intervals are unbounded then, and
    the errors of the model nan.
    Raises ModelError for rows of several sources and for fewer than LEAST_ROWS good ones, MissingDependency without
    scikit-learn.
    """
    sources = sorted({row.source for row in rows})
    if len(sources) > 1:
        raise ModelError("a model is fitted on one source: times of several are never mixed", sources, "choose one")
    digests = {spec: spec.digest for spec in {row.spec for row in rows}}
    ordered = sorted(rows, key=lambda row: (digests[row.spec], row.schedule, row.us or 0.0))
    good = [row for row in ordered if row.us is not None]
    if len(good) < LEAST_ROWS:
        raise ModelError(f"a model is fitted on at least {LEAST_ROWS} good rows", len(good), "measure more: tune")
    priors = [row.predicted for row in good]
    values, columns = matrix([row.spec for row in good], [row.schedule for row in good], priors)
    logs = np.array([math.log((row.us or 0.0) / prior.us) for row, prior in zip(good, priors, strict=True)])
    groups = np.unique([digests[row.spec] for row in good], return_inverse=True)[1]
    scattered = np.random.default_rng(seed).permutation(len(good)) % FOLDS
    known_width, known_error = _held_out(values, logs, scattered, seed) if calibrated else (math.inf, math.nan)
    several = calibrated and groups.max() > 0
    new_width, new_error = _held_out(values, logs, _folded(groups), seed) if several else (None, None)
    return LearnedModel(
        source=sources[0],
        ops=tuple(sorted({row.spec.op for row in good})),
        gpus=tuple(sorted({row.spec.topology.gpu.model for row in good})),
        workloads=tuple(sorted({digests[row.spec] for row in good})),
        columns=columns,
        known_width=known_width,
        new_width=new_width,
        prior_error=_error(logs),
        known_error=known_error,
        new_error=new_error,
        rows=len(good),
        failures=len(ordered) - len(good),
        feasibility=Feasibility.fit((row.schedule, row.us is not None) for row in ordered),
        trees=_trees(values, logs, seed),
    )


def _folded(groups: Any) -> Any:
    """Workloads in at most FOLDS folds of about as many rows: the largest first, each to the smallest fold."""
    sizes = Counter(groups.tolist())
    folds = [0] * min(FOLDS, len(sizes))
    place = {}
    for group, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        place[group] = folds.index(min(folds))
        folds[place[group]] += size
    return np.array([place[group] for group in groups.tolist()])


def _trees(values: Floats, logs: Floats, seed: int) -> Any:
    try:
        from sklearn.ensemble import ExtraTreesRegressor
    except ImportError:
        raise MissingDependency("a learned model needs scikit-learn", "none", "pip install 'tilescale[tune]'") from None
    trees = ExtraTreesRegressor(TREES, min_samples_leaf=LEAF, max_features=SHARE, random_state=seed, n_jobs=1)
    return trees.fit(values, logs)


def _average(trees: Any, values: Floats) -> tuple[Floats, Floats]:
    """Mean and spread over the trees, each (n,)."""
    single = values.astype(np.float32)  # what trees compare; converted once, not once a tree
    each = np.array([tree.predict(single, check_input=False) for tree in trees.estimators_])
    return each.mean(axis=0), each.std(axis=0) + SPREAD


def _held_out(values: Floats, logs: Floats, folds: Any, seed: int) -> tuple[float, float]:
    """The half-width, in spreads, that covers COVERAGE of the rows when their fold is held out; and their error."""
    errors, spreads = np.zeros(len(logs)), np.ones(len(logs))
    for fold in np.unique(folds):
        held = folds == fold
        mean, spread = _average(_trees(values[~held], logs[~held], seed), values[held])
        errors[held], spreads[held] = logs[held] - mean, spread
    rank = min(len(logs), math.ceil((len(logs) + 1) * COVERAGE))
    return float(np.sort(np.abs(errors) / spreads)[rank - 1]), _error(errors)


def _error(logs: Floats) -> float:
    """Logarithms of ratios as a median relative error."""
    return float(np.expm1(np.median(np.abs(logs))))
