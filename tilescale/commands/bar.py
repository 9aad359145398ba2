"""Progress of long jobs on stderr: a bar with the time left on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from tilescale.commands.output import say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")
LINE_EVERY_S = 5.0


class Bar:
    """One job at a time: `update` names it, how far it is, and what to say beside it."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._name = self._once = ""
        self.last = ""  # how far the last job was, in words
        self._started = self._said = time.monotonic()

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, name: str, done: int, total: int, note: str = "") -> None:
        """Show that `done` of `total` of the job `name` are done."""
        self.last = f"{name}: {done} of {total}"
        if self._quiet:
            return
        if name != self._name:
            self._name, self._started = name, time.monotonic()
            if self._progress is not None:
                if self._task is not None:
                    self._progress.remove_task(self._task)
                self._task = self._progress.add_task(name, total=total, note=note)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total, note=note)
        elif time.monotonic() - self._said >= LINE_EVERY_S:
            self._said = time.monotonic()
            say(f"{name}: {done} of {total}, {self._left(done, total)}" + (f", {note}" if note else ""))

    def say_once(self, text: str) -> None:
        """A line, unless it was the last one said so."""
        if not self._quiet and text != self._once:
            self._once = text
            say(text)

    def _left(self, done: int, total: int) -> str:
        if not done:
            return "time left unknown"
        seconds = (time.monotonic() - self._started) / done * (total - done)
        return f"about {seconds:.0f} s left"

    def each(self, name: str, items: Iterable[T], total: int) -> Iterator[T]:
        """The items, showing progress."""
        for done, item in enumerate(items):
            self.update(name, done, total)
            yield item
        self.update(name, total, total)
