"""Schedules named on a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilescale.commands.output import UsageError
from tilescale.errors import ScheduleError, nearest

if TYPE_CHECKING:
    from tilescale.commands.bar import Bar
    from tilescale.commands.target import Target
    from tilescale.schedules.schedule import Schedule


def select(target: Target, text: str | None) -> tuple[Schedule, ...]:
    """The feasible schedules that `text` means, in canonical order: all of them for None.

    Raises UsageError for a malformed text, an unknown digest or a knob without that value,
    ScheduleError where nothing feasible is meant.
    """
    if text is None:
        found = target.space.schedules
    elif "=" in text:
        found = _matching(target, restriction(text))
    else:
        found = tuple(schedule for schedule in target.space if schedule.digest.startswith(text))
        if not found:
            raise UsageError(
                f"--schedule: a schedule of {target.name} has a digest that starts so", repr(text),
                "`tilescale space --list` shows them",
            )
    if not found:
        raise ScheduleError(
            f"{target.name} has a feasible schedule",
            f"none of {target.space.size} points: " + target.space.explain_empty(),
            "widen the [space] of the recipe" if target.restrict else "change the declaration or the topology",
        )
    return found


def restriction(text: str) -> dict[str, str | int]:
    """Knob values from ``knob=value,knob=value``."""
    from tilescale.schedules.knob import BY_NAME

    chosen: dict[str, str | int] = {}
    for pair in text.split(","):
        name, _, value = pair.strip().partition("=")
        if name not in BY_NAME:
            raise UsageError("--schedule names knobs", repr(name), nearest(name, BY_NAME))
        if name in chosen:
            raise UsageError("--schedule names a knob once", f"{name}={chosen[name]} and {name}={value}", "give one value")
        knob = BY_NAME[name]
        known = {str(one): one for one in (*knob.domain, knob.neutral)}
        if value not in known:
            raise UsageError(f"{name} is one of {', '.join(known)}", repr(value), nearest(value, known))
        chosen[name] = known[value]
    return chosen


def _matching(target: Target, chosen: dict[str, str | int]) -> tuple[Schedule, ...]:
    found = tuple(s for s in target.space if all(getattr(s, name) == value for name, value in chosen.items()))
    if not found:
        why = rejections(target, chosen)
        raise ScheduleError(f"{target.name} has a feasible schedule with these knobs", why, "change one of the values")
    return found


def rejections(target: Target, chosen: dict[str, str | int]) -> str:
    """How many points with these knob values each constraint rejects, with its rule."""
    from collections import Counter

    from tilescale.schedules.constraints import first_broken
    from tilescale.schedules.knob import points
    from tilescale.schedules.schedule import Schedule

    broken: Counter[tuple[str, str]] = Counter()
    for point in points(target.spec, target.restrict):
        if all(point[name] == value for name, value in chosen.items()):
            constraint = first_broken(target.spec, Schedule(**point))  # type: ignore[arg-type]
            if constraint is not None:
                broken[constraint.name, constraint.rule] += 1
    if not broken:
        return "no point of the space has these knobs (a knob that does not apply holds its neutral value)"
    return "; ".join(f"{count} points break {name} ({rule})" for (name, rule), count in sorted(broken.items()))


def best_predicted(target: Target, schedules: Sequence[Schedule], bar: Bar) -> Schedule:
    """The schedule that the analytic model expects to be the fastest, the first of equals."""
    from tilescale.tuner.prior import Prior

    if len(schedules) == 1:
        return schedules[0]
    prior = Prior(target.spec, schedules, progress=lambda done, total: bar.update("predicting", done, total))
    return prior.ranked[0]


def spread(schedules: Sequence[Schedule], limit: int | None) -> tuple[Schedule, ...]:
    """At most `limit` of them, evenly spread over their order."""
    if limit is None or limit >= len(schedules):
        return tuple(schedules)
    return tuple(schedules[at * len(schedules) // limit] for at in range(limit))
