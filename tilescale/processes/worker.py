"""The worker's end: what a process started by `Child` does first, and how it talks to its parent."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

from tilescale.processes.frames import BadFrame, Message, Reader, pack

_PR_SET_PDEATHSIG = 1


class ParentLink:
    """Messages from and to the parent, over what were stdin and stdout.

    Made once, before anything else runs. From then on the process ends when its parent does, whatever it is doing: the
    kernel kills it (parent-death signal), and a thread that reads the pipe ends it where there is no such signal.
    `print` goes to stderr, so that nothing can disturb the messages.
    """

    def __init__(self, parent: int) -> None:
        # A parent that ignores SIGINT (a job started with `&` by a script) has handed that down, and what a worker
        # starts, a compiler say, would inherit it again.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        die_with(parent)
        self._in = os.dup(0)
        self._out = os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="parent", daemon=True).start()

    def _read(self) -> None:
        reader = Reader()
        try:
            while data := os.read(self._in, 1 << 16):
                for message in reader.feed(data):
                    self._messages.put(message)
        except BadFrame as error:
            print(f"a message of the parent is malformed: {error}", file=sys.stderr, flush=True)
            os._exit(70)
        os._exit(0)  # the parent is gone, or has closed the pipe: nothing is worth finishing

    def receive(self) -> Message:
        """The next message; blocks. (At the end of the pipe the process ends instead.)"""
        return self._messages.get()

    def send(self, header: Mapping[str, Any], blob: bytes = b"") -> None:
        self.write(pack(header, blob))

    def write(self, data: bytes) -> None:
        """Raw bytes on the pipe."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._out, view) :]


def die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; leave at once where it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
