"""The seam between a search and whatever gives times: a GPU, a recording, a fake, another machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tilescale.runtime.measure import Measurement
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec


@runtime_checkable
class Runner(Protocol):
    """Measures schedules of a spec. What follows is the contract, and it is all that a search relies on.

    - `measure(spec, schedules)` returns one Measurement a schedule, in the same order, and every one of them carries
      its schedule and this runner's `source`. Equal schedules in one call give equal keys, never a shorter list.
    - A candidate that fails, whether it does not compile, hangs, crashes or is wrong, is a Measurement with a status
      other than "ok" and a message; it costs the candidate its own time limit and leaves the others untouched.
    - An exception means that the runner itself cannot go on (no machine, no recording of this spec): RunnerError or
      MissingDependency, or KeyboardInterrupt from the user. Nothing it started is left running then.
    - A time is never reported for a result that was not right.
    - The caller wants durable rows, so it may pass one schedule a call; state worth keeping (rank processes, compiled
      binaries) lives in the runner between calls.
    - `source` is one of measure.SOURCES and does not change.
    - `close()` ends every process and frees what the runner holds; it may be called twice, and is called even after an
      exception. A closed runner raises RunnerError when it is asked to measure.
    """

    @property
    def source(self) -> str: ...

    def measure(self, spec: Spec, schedules: Sequence[Schedule]) -> list[Measurement]: ...

    def close(self) -> None: ...
