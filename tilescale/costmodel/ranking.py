"""Ranking schedules by predicted time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilescale.costmodel.analytic import Prediction, predict
from tilescale.costmodel.costs import DEFAULT, Parameters
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec


@dataclass(frozen=True)
class Ranked:
    """A schedule with its prediction."""

    schedule: Schedule
    prediction: Prediction


def rank(spec: Spec, schedules: Iterable[Schedule], parameters: Parameters = DEFAULT) -> tuple[Ranked, ...]:
    """Schedules, fastest predicted first, equal predictions by digest: the order of input does not matter."""
    ranked = [Ranked(schedule, predict(spec, schedule, parameters=parameters)) for schedule in schedules]
    return tuple(sorted(ranked, key=lambda r: (r.prediction.us, r.schedule.digest)))
