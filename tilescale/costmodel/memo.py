"""Analytic predictions, kept: a search, its model and an evaluation ask for the same ones."""

from __future__ import annotations

from functools import lru_cache

from tilescale.costmodel.analytic import Prediction, predict
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec


@lru_cache(maxsize=16384)
def prior(spec: Spec, schedule: Schedule) -> Prediction:
    """The analytic prediction with default parameters; see analytic.predict."""
    return predict(spec, schedule)
