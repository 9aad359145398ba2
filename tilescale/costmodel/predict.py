"""The public prediction: the user's learned model where it covers the spec, else the analytic prior."""

from __future__ import annotations

import warnings
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tilescale.arguments import check_schedule, check_spec
from tilescale.costmodel import analytic
from tilescale.costmodel.analytic import Prediction
from tilescale.costmodel.costs import DEFAULT, Parameters
from tilescale.costmodel.paths import user_path
from tilescale.errors import TilescaleError
from tilescale.schedules.plan import Plan
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

if TYPE_CHECKING:
    from tilescale.costmodel.learned import LearnedModel


def predict(spec: Spec, schedule: Schedule, plan: Plan | None = None, parameters: Parameters = DEFAULT) -> Prediction:
    """Predict the time of `schedule`, with an interval. `plan`: its plan, where the caller has it already.

    The model that `tilescale model fit` wrote for the measurements of this kind of topology answers, where there is one
    that was fitted on this operation and GPU model; else, and for `parameters` of the caller's own, the analytic model.
    A model that cannot be loaded is said once, as a warning, and left out. Raises ScheduleError where the spec has no
    kernels, SpecError or ScheduleError for an argument that is no spec or no schedule.
    """
    check_spec(spec)
    check_schedule(schedule)
    prior = analytic.predict(spec, schedule, plan, parameters)
    model = model_for(spec) if parameters == DEFAULT else None
    return prior if model is None else model.predict(spec, schedule, prior)


def model_for(spec: Spec) -> LearnedModel | None:
    """The user's model that covers a spec, or None."""
    try:
        path = user_path(spec.topology.source)
        stat = path.stat()
    except (OSError, ImportError):  # no model, or an installation that can make none
        return None
    model = _loaded(path, stat.st_mtime_ns, stat.st_size)
    return model if model is not None and model.covers(spec) else None


@lru_cache(maxsize=8)
def _loaded(path: Path, written_ns: int, size: int) -> LearnedModel | None:
    """The model in a file as it was written then; None, and one warning, where it cannot be used."""
    from tilescale.costmodel.model_file import load

    try:
        return load(path)
    except TilescaleError as error:
        warnings.warn(f"predictions are the analytic model's: {error}", RuntimeWarning, stacklevel=4)
        return None
