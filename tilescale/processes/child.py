"""The parent's end of one worker process."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from tilescale.errors import RunnerError
from tilescale.processes.frames import BadFrame, Message, Reader, pack

_EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b")
_STDERR_TAIL_BYTES = 2000
_KILL_LIMIT_S = 10.0
_ROOT = Path(__file__).resolve().parents[2]  # the folder that holds the package


class WorkerLost(Exception):
    """A worker died, wrote something that is no message, or does not take messages any more."""


class _Spawner:
    """One thread that starts all workers and lives as long as the process.

    The parent-death signal is sent when the *thread* that made the child ends, so the thread of a caller will not do.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # a forked child has no threads

    def _reset(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tilescale-spawner")

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        def popen() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which decides
            )

        return self._thread.submit(popen).result()


_spawner = _Spawner()


class Child:
    """A worker `python -m MODULE --parent PID ARGUMENTS`, in a session of its own, with messages over its pipes.

    The module's `main` makes a `ParentLink` first. `environment` is added to this process's own. The worker finds this
    very tilescale, whatever the directory, and never imports the caller's main module.
    """

    def __init__(
        self, module: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})}
        command = [sys.executable, "-P", "-m", module, "--parent", str(os.getpid()), *arguments]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by release()
        self._process = _spawner.start(command, variables, self._stderr)
        self._stdin, self._stdout = _pipes(self._process)
        self._reader = Reader()
        self._tail = ""
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fileno(self) -> int:
        """For select: readable when a message, or the end, has arrived."""
        return self._stdout.fileno()

    def send(self, header: Mapping[str, Any], blob: bytes = b"", limit_s: float = 10.0) -> None:
        """Send one message; raises WorkerLost when the worker is gone or does not read for `limit_s` seconds."""
        view = memoryview(pack(header, blob))
        deadline = time.monotonic() + limit_s
        while view:
            try:
                view = view[os.write(self._stdin.fileno(), view) :]
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WorkerLost(f"does not read its messages (waited {limit_s:g} s)") from None
                select.select([], [self._stdin], [], left)
            except (BrokenPipeError, ValueError):
                raise WorkerLost(self.ending()) from None

    def receive(self) -> list[Message]:
        """The messages that have arrived, without waiting; raises WorkerLost when the worker has ended or garbles."""
        try:
            data = os.read(self._stdout.fileno(), 1 << 20)
        except BlockingIOError:
            return []
        if not data:
            raise WorkerLost(self.ending())
        try:
            return list(self._reader.feed(data))
        except BadFrame as error:
            raise WorkerLost(f"wrote to the pipe of its messages: {error}") from None

    def ending(self) -> str:
        """How the process ended, with the last lines of its stderr."""
        try:
            code = self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            return "closed the pipe of its messages"
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"
        tail = self.stderr_tail()
        return f"{how}: {tail}" if tail else how

    def stderr_tail(self) -> str:
        """What the worker wrote to stderr last, on one line: from the line that names an exception where there is one."""
        if not self._stderr.closed:
            self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _STDERR_TAIL_BYTES))
            lines = self._stderr.read().decode(errors="replace").splitlines()
            named = [number for number, line in enumerate(lines) if _EXCEPTION.match(line)]
            lines = lines[named[-1] :][:4] if named else lines[-4:]
            self._tail = " | ".join(line.strip() for line in lines if line.strip())
        return self._tail

    def wait(self, limit_s: float) -> bool:
        """Whether the worker has ended, at the latest after `limit_s` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=max(0.0, limit_s))
        return not self.alive

    def kill(self) -> None:
        """Send SIGKILL to the worker and all that it started; `release` must follow."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def release(self) -> None:
        """Wait for a killed worker to be gone and close its pipes; may be called twice."""
        if not self.wait(_KILL_LIMIT_S):
            raise RunnerError(
                f"a killed worker ends within {_KILL_LIMIT_S:g} s",
                f"process {self.pid}",
                "it hangs in a driver: see the kernel log, and restart the machine's driver",
            )
        self.stderr_tail()
        for stream in (self._stdin, self._stdout, self._stderr):
            with contextlib.suppress(OSError):
                stream.close()


def kill_all(children: Iterable[Child]) -> None:
    """End workers now, together; may be called twice. Raises RunnerError for one that even SIGKILL does not end."""
    doomed = list(children)
    for child in doomed:
        child.kill()
    for child in doomed:
        child.release()


def stop_all(children: Iterable[Child], grace_s: float = 1.0) -> None:
    """Ask workers to end, and end those that are left after `grace_s` seconds."""
    asked = list(children)
    for child in asked:
        with contextlib.suppress(WorkerLost):
            child.send({"kind": "stop"}, limit_s=0.1)
    deadline = time.monotonic() + grace_s
    for child in asked:
        child.wait(deadline - time.monotonic())
    kill_all(asked)


def wait_ready(children: Sequence[Child], limit_s: float) -> list[Child]:
    """Those of `children` that `receive` has something for; waits at most `limit_s` seconds."""
    poll = select.poll()
    by_descriptor = {child.fileno(): child for child in children}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[found] for found, _ in poll.poll(max(0.0, limit_s) * 1000)]


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise WorkerLost("has no pipes")
    return process.stdin, process.stdout


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
