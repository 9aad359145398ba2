"""The analytic cost model: the time of a schedule, computed from its plan on a machine that need not be at hand."""

from __future__ import annotations

from dataclasses import dataclass

from tilescale.costmodel.costs import DEFAULT, Parameters, costs
from tilescale.costmodel.simulate import simulate
from tilescale.schedules.plan import Plan
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

SOURCE = "predicted"


@dataclass(frozen=True)
class Prediction:
    """Microseconds of one call, the slowest rank's, with an interval. `parts`: (kind of cost, microseconds) along the
    longest path; they add up to `us`. `source` is always "predicted"."""

    us: float
    low_us: float
    high_us: float
    parts: tuple[tuple[str, float], ...]
    source: str = SOURCE


def predict(spec: Spec, schedule: Schedule, plan: Plan | None = None, parameters: Parameters = DEFAULT) -> Prediction:
    """Predict the time of `schedule`. `plan`: its plan, where the caller has it already.

    Raises ScheduleError where the spec has no kernels.
    """
    if plan is None:
        from tilescale.schedules.lower import lower

        plan = lower(spec, schedule)
    timeline = simulate(plan, costs(spec, schedule, parameters))
    errors = {
        "launch": parameters.launch_error,
        "compute": parameters.compute_error,
        "copy": parameters.copy_error,
        "link": parameters.link_error,
        "sync": parameters.sync_error,
    }
    half = sum(us * errors[name] for name, us in timeline.parts)
    return Prediction(timeline.us, max(0.0, timeline.us - half), timeline.us + half, timeline.parts)
