"""Jobs for worker processes that may crash or hang: each such job costs its own limit and one worker."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tilescale.errors import RunnerError
from tilescale.processes.child import Child, WorkerLost, kill_all, stop_all, wait_ready
from tilescale.processes.frames import Message


@dataclass(frozen=True)
class Job:
    header: Mapping[str, Any]
    blob: bytes = b""


@dataclass(frozen=True)
class Lost:
    """A job without an answer. `timed_out`: it passed its limit; otherwise its worker died, as `message` says."""

    message: str
    timed_out: bool = False


OnAnswer = Callable[[int, Message | Lost], None]


class Pool:
    """At most `workers` processes `python -m module`, started when there are jobs and kept between calls.

    A worker sends {"kind": "hello"} once it can work, then answers every job with one message. A job has `limit_s`
    seconds from the moment it is given to a worker; a worker that dies, garbles its messages or passes the limit is
    killed and replaced. After an exception (Ctrl-C is one) or `close` no process is left. One `run` at a time: a second
    thread waits.
    """

    def __init__(
        self, module: str, workers: int, limit_s: float, arguments: Sequence[str] = (), start_limit_s: float = 60.0
    ) -> None:
        if workers < 1 or limit_s <= 0:
            raise RunnerError("a pool has at least one worker and a positive time limit", (workers, limit_s))
        self._module = module
        self._arguments = tuple(arguments)
        self._workers = workers
        self._limit_s = limit_s
        self._start_limit_s = start_limit_s
        self._idle: list[Child] = []
        self._busy: dict[Child, tuple[int, float]] = {}  # job, deadline
        self._starting: dict[Child, float] = {}  # deadline
        self._lock = threading.Lock()
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Of all worker processes."""
        return tuple(sorted(child.pid for child in (*self._idle, *self._busy, *self._starting)))

    def run(self, jobs: Sequence[Job], on_answer: OnAnswer | None = None) -> list[Message | Lost]:
        """One answer a job, in order; `on_answer(index, answer)` is called with each as it comes.

        Raises RunnerError when workers cannot be started, or after `close`.
        """
        with self._lock:
            if self._closed:
                raise RunnerError("a closed pool takes no jobs", self._module, "make a new one")
            results: dict[int, Message | Lost] = {}
            pending = deque(range(len(jobs)))
            try:
                while pending or self._busy:
                    self._hand_out(jobs, pending)
                    for index, answer in self._collect():
                        results[index] = answer
                        if on_answer:
                            on_answer(index, answer)
            except BaseException:
                self._kill_all()
                raise
            return [results[index] for index in range(len(jobs))]

    def _hand_out(self, jobs: Sequence[Job], pending: deque[int]) -> None:
        while pending and self._idle:
            child = self._idle.pop()
            try:
                child.send(jobs[pending[0]].header, jobs[pending[0]].blob)
            except WorkerLost:  # it died while it was idle: no fault of this job
                kill_all([child])
                continue
            self._busy[child] = (pending.popleft(), time.monotonic() + self._limit_s)
        count = len(self._busy) + len(self._starting)
        for _ in range(min(len(pending) - len(self._starting), self._workers - count)):
            self._starting[Child(self._module, self._arguments)] = time.monotonic() + self._start_limit_s

    def _collect(self) -> Iterator[tuple[int, Message | Lost]]:
        """Wait for the next answer, start or deadline; yields the jobs that are settled by it."""
        watched = {**self._starting, **{child: deadline for child, (_, deadline) in self._busy.items()}}
        if not watched:
            return
        for child in wait_ready(list(watched), min(watched.values()) - time.monotonic()):
            try:
                messages = child.receive()
            except WorkerLost as lost:
                yield from self._lose(child, Lost(f"the worker {lost}"))
                continue
            for message in messages:
                yield from self._settle(child, message)
        now = time.monotonic()
        for child in [child for child, deadline in self._starting.items() if deadline <= now]:
            yield from self._lose(child, Lost(f"did not start in {self._start_limit_s:g} s"))
        for child in [child for child, (_, deadline) in self._busy.items() if deadline <= now]:
            late = Lost(f"took longer than the limit of {self._limit_s:g} s", timed_out=True)
            yield from self._lose(child, late)

    def _settle(self, child: Child, message: Message) -> Iterator[tuple[int, Message]]:
        self._idle.append(child)
        if self._starting.pop(child, None) is None:
            yield self._busy.pop(child)[0], message

    def _lose(self, child: Child, lost: Lost) -> Iterator[tuple[int, Lost]]:
        kill_all([child])
        if child in self._busy:
            yield self._busy.pop(child)[0], lost
        elif self._starting.pop(child, None) is not None:
            raise RunnerError(
                f"worker processes of {self._module} start", lost.message, f"try: python -m {self._module} --help"
            )
        else:
            self._idle.remove(child)

    def _kill_all(self) -> None:
        kill_all((*self._idle, *self._busy, *self._starting))
        self._idle.clear()
        self._busy.clear()
        self._starting.clear()

    def close(self) -> None:
        """End every worker; may be called twice."""
        self._closed = True
        stop_all(self._idle)
        self._kill_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
