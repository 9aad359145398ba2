"""Checks of what a caller passes, shared by the functions of the public namespace."""

from __future__ import annotations

import os
from typing import TypeVar

from tilescale.errors import RunnerError, ScheduleError, SpecError, TilescaleError

T = TypeVar("T")


def required(value: object, kind: type[T], rule: str, remedy: str, error: type[TilescaleError]) -> T:
    """`value` where it is of that kind; else raises `error` with the rule, the value and the remedy."""
    if not isinstance(value, kind):
        raise error(rule, shown(value), remedy)
    return value


def shown(value: object) -> str:
    """A value of the wrong kind, for a message: its type, and its text where that is short."""
    if value is None:
        return "None"
    text = repr(value)
    return f"a {type(value).__name__}" + (f", {text}" if len(text) <= 60 and "\n" not in text else "")


def check_spec(value: object) -> None:
    """Raises SpecError for anything but a Spec."""
    from tilescale.spec.declaration import Spec

    required(value, Spec, "a spec is what a declaration returns", "declare one, such as ts.matmul(...)", SpecError)


def check_schedule(value: object) -> None:
    """Raises ScheduleError for anything but a Schedule."""
    from tilescale.schedules.schedule import Schedule

    required(value, Schedule, "a schedule is a member of a space",
             "take one of ts.space(spec), result.best, or make a ts.Schedule(...)", ScheduleError)


def check_runner(value: object) -> None:
    """Raises RunnerError for what cannot measure: a runner has `source`, `measure` and `close`."""
    missing = [name for name in ("source", "measure", "close") if not hasattr(value, name)]
    if missing:
        raise RunnerError("a runner has source, measure and close", f"{shown(value)}, without {', '.join(missing)}",
                          "leave runner out: the GPU at hand measures, else a recorded space is replayed")


def check_path(value: object, what: str, error: type[TilescaleError]) -> None:
    """Raises `error` for what is no path: a text or an os.PathLike, and not empty."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise error(f"{what} is a path", shown(value), "give a text or a pathlib.Path")
