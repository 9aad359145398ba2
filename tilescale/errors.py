"""Errors a user can act on: each states the rule that was broken, the actual values and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def printable(text: str) -> str:
    r"""The text with what a terminal would act on, or not show, as escapes.

    >>> printable("a\x1b[2J\n")
    'a\\x1b[2J\\n'
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class TilescaleError(Exception):
    """Base of all errors raised on purpose.

    ``str()`` is one line, "rule; got: actual; remedy"; the parts stay readable as attributes, so that a command line
    or a database can store them apart. ``actual`` None and an empty remedy are left out.
    """

    def __init__(self, rule: str, actual: object = None, remedy: str = "") -> None:
        super().__init__(rule, actual, remedy)
        self.rule = rule
        self.actual = actual
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [self.rule]
        if self.actual is not None:
            parts.append(f"got: {self.actual}")
        if self.remedy:
            parts.append(self.remedy)
        return printable(" ".join("; ".join(parts).split()))


class SpecError(TilescaleError):
    """A declaration that cannot be met: tensors, views, dtypes, shapes."""


class TopologyError(TilescaleError):
    """A machine description that is wrong, unknown or not at hand."""


class ScheduleError(TilescaleError):
    """A knob value or a schedule outside its space."""


class PlanError(TilescaleError):
    """A schedule that cannot be lowered, or a plan that is malformed."""


class CompileError(TilescaleError):
    """Kernel text that the compiler refused, or whose log holds a failure line."""


class EmulationError(TilescaleError):
    """The emulator cannot run: no C++ compiler, unsupported text, or a bound was exceeded."""


class RunnerError(TilescaleError):
    """A runner cannot measure at all; failures of single candidates are statuses instead."""


class RecipeError(TilescaleError):
    """A recipe file with a wrong key, value or workload."""


class BundleError(TilescaleError):
    """A bundle that is incomplete, altered, or does not fit the machine."""


class MissingDependency(TilescaleError):
    """An optional package or tool is not installed; the remedy names what to install."""


def nearest(value: object, known: Iterable[str]) -> str:
    """A remedy: the nearest known name where one is close, and always the whole sorted list.

    >>> nearest("FulRow", ["FullRow", "FullCol"])
    "did you mean 'FullRow'? known: FullCol, FullRow"
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(names) or '(none)'}"
