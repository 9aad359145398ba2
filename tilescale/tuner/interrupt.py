"""Ctrl-C and SIGTERM during a search: neither loses a finished measurement."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Guard:
    """Turns SIGINT and SIGTERM into KeyboardInterrupt, except inside `held`, at whose end it comes instead.

    Signals reach Python in the main thread alone; elsewhere a guard changes nothing.
    """

    def __init__(self) -> None:
        self._held = False
        self._pending = False

    @contextmanager
    def installed(self) -> Iterator[Guard]:
        """Handle the signals inside the block; the handlers before it are put back at its end."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, self._strike)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Finish the block first: a measurement is on its way to the disk."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _strike(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._pending = True
            return
        raise KeyboardInterrupt
