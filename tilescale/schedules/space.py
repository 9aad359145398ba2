"""The schedule space of a spec: crossed knobs, feasible points in canonical order, rejections counted by constraint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from tilescale.errors import ScheduleError
from tilescale.schedules.constraints import CONSTRAINTS, first_broken
from tilescale.schedules.knob import BY_NAME, Value, canonical, check_restriction, points
from tilescale.schedules.legal import require_spec
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.transports import TRANSPORTS
from tilescale.spec.op import Spec

NOT_RECORDED = "not_recorded"


class Space:
    """All schedules of a spec, optionally narrowed by `restrict` (knob name to allowed values) and to those in `only`
    (such as the recorded ones).

    Iteration yields the feasible schedules in canonical order, each once. `size` counts the crossed points, `feasible`
    the schedules, `rejected` the points by the first constraint that they break; size == feasible + sum(rejected).
    """

    def __init__(self, spec: Spec, restrict: dict[str, Sequence[Value]] | None = None,
                 only: Iterable[Schedule] | None = None) -> None:
        require_spec(spec).require_kernels()
        self.spec = spec
        self.only = None if only is None else frozenset(only)
        self.restrict = check_restriction(restrict or {})

    @cached_property
    def _enumerated(self) -> tuple[tuple[Schedule, ...], dict[str, int], int]:
        feasible: list[Schedule] = []
        rejected: Counter[str] = Counter()
        size = 0
        for chosen in points(self.spec, self.restrict):
            size += 1
            schedule = Schedule(**chosen)  # type: ignore[arg-type]
            broken = first_broken(self.spec, schedule)
            if broken is not None:
                rejected[broken.name] += 1
            elif self.only is not None and schedule not in self.only:
                rejected[NOT_RECORDED] += 1
            else:
                feasible.append(schedule)
        return tuple(feasible), dict(sorted(rejected.items())), size

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        return self._enumerated[0]

    @property
    def without_multicast(self) -> tuple[Schedule, ...]:
        """The feasible schedules that use no switch between the GPUs: what a runner that has not tried one can measure."""
        return tuple(schedule for schedule in self.schedules if not TRANSPORTS[schedule.transport].multicast)

    @property
    def feasible(self) -> int:
        return len(self.schedules)

    @property
    def rejected(self) -> dict[str, int]:
        return dict(self._enumerated[1])

    @property
    def size(self) -> int:
        return self._enumerated[2]

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self.schedules)

    def __len__(self) -> int:
        return self.feasible

    def __contains__(self, schedule: object) -> bool:
        return schedule in self._members

    @cached_property
    def _members(self) -> frozenset[Schedule]:
        return frozenset(self.schedules)

    def among(self, schedules: Iterable[Schedule]) -> Space:
        """This space without the schedules that are not in `schedules`."""
        return Space(self.spec, self.restrict, schedules)

    def neighbours(self, schedule: Schedule) -> tuple[Schedule, ...]:
        """Feasible schedules one knob step away, in canonical order."""
        found = []
        for name, knob in BY_NAME.items():
            for value in knob.neighbours(self.spec, getattr(schedule, name)):
                moved = Schedule(**{**schedule.as_dict(), name: value})
                try:
                    candidate = canonical(self.spec, moved)
                except ScheduleError:
                    continue
                if candidate in self and candidate != schedule:
                    found.append(candidate)
        return tuple(dict.fromkeys(found))

    def explain_empty(self) -> str:
        """Why nothing is feasible: rejections by constraint with their rules."""
        rules = {c.name: c.rule for c in CONSTRAINTS} | {NOT_RECORDED: "the schedule was recorded"}
        return "; ".join(f"{count} points break {name} ({rules[name]})" for name, count in self.rejected.items())


def space(spec: Spec, restrict: dict[str, Sequence[Value]] | None = None) -> Space:
    """The schedule space of `spec`; see Space. Raises SpecError for a spec without kernels."""
    return Space(spec, restrict)
