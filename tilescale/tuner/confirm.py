"""What perfdb asks to confirm a suspected change: the old and the new schedule measured in turn, on the GPUs at hand."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tilescale import canon
from tilescale.errors import RunnerError
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.tuner.runners import Choice, choose

if TYPE_CHECKING:
    from perfdb.confirming import Request


def confirm(request: Request, chosen: Callable[[Spec], Choice] = choose) -> Sequence[tuple[float, float]]:
    """Pairs of times in microseconds, `request.rounds` of them, old first; a time is the median of a round's calls, each
    its slowest rank's.

    Raises RunnerError where nothing at hand can measure, or where both sides are one schedule: what has changed is then
    the machine or the toolchain, which cannot be gone back to here.
    """
    spec = canon.decode(Spec, json.loads(request.after.workload_document))
    before, after = (canon.decode(Schedule, json.loads(side.schedule_document)) for side in (request.before, request.after))
    if before == after:
        raise RunnerError("a change of schedule can be measured anew", f"both sides ran {before.label}",
                          "compare environments instead: perfdb compare --before driver=... --after driver=...")
    choice = chosen(spec)
    try:
        race = getattr(choice.runner, "race", None)
        if race is None:
            raise RunnerError("confirming needs a GPU of the topology", choice.note, "run it on the machine of the trials")
        rounds = race(spec, [before, after], rounds=request.rounds)
    finally:
        choice.runner.close()
    return [(_time_us(found[before.digest]), _time_us(found[after.digest])) for found in rounds]


def _time_us(samples: Any) -> float:
    return float(statistics.median(max(call) for call in zip(*samples, strict=True)))
