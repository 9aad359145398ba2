"""One measuring session a GPU at a time, across processes, with nothing to clean up.

A lock is a name in Linux's abstract socket namespace: the kernel frees it when its process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable

from tilescale.errors import RunnerError


class DeviceLock:
    """Held from `acquire` to `release`, on every GPU of `uuids`."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def acquire(self, uuids: Iterable[str], limit_s: float = 60.0) -> None:
        """Raises RunnerError where another process holds one for longer than `limit_s`."""
        deadline = time.monotonic() + limit_s
        for uuid in sorted(set(uuids)):  # one order for all: no deadlock
            while not self._take(uuid):
                if time.monotonic() >= deadline:
                    self.release()
                    raise RunnerError("one session measures on a GPU at a time", f"GPU {uuid} is taken by another",
                                      "wait for it to end, or end it")
                time.sleep(0.1)

    def _take(self, uuid: str) -> bool:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            found.bind(lock_name(uuid))
        except OSError:
            found.close()
            return False
        self._sockets.append(found)
        return True

    def release(self) -> None:
        """May be called twice."""
        while self._sockets:
            with contextlib.suppress(OSError):
                self._sockets.pop().close()


def lock_name(uuid: str) -> str:
    """The address of a GPU's lock; it begins with a zero, so it is in no file system."""
    return f"\0tilescale-gpu-{uuid}"
