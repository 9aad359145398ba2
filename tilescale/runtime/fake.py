"""A runner that needs no GPU: given times, given noise, given faults, in rank and compiler processes of its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from tilescale.errors import RunnerError, nearest
from tilescale.processes.pool import Job, Lost, Pool
from tilescale.runtime import fake_compiler, fake_rank
from tilescale.runtime.group import Group
from tilescale.runtime.measure import SOURCES, Measurement, Samples
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

Timer = Callable[[Spec, Schedule], float]
_ILLEGAL = "no time is given for this schedule"

# What each kind of fault is reported as.
FAULTS = {
    "compile_error": "compile_error",  # the compiler refuses the text
    "compile_crash": "compile_error",  # the compiler's process aborts
    "compile_hang": "compile_timeout",  # the compiler never ends
    "hang": "timeout",  # the rank never ends
    "exit": "launch_error",  # the rank leaves by os._exit
    "segv": "launch_error",  # the rank is ended by a signal
    "garble": "launch_error",  # the rank writes rubbish where its messages go
    "disagree": "launch_error",  # the rank would run something else than the others
    "exception": "launch_error",  # Python code of the rank raises
    "launch_error": "launch_error",  # the driver refuses the launch
    "wrong_result": "wrong_result",  # the check finds a wrong element
    "slow": "ok",  # the rank takes `seconds` longer, on the clock; its samples are right
}
_COMPILING = ("compile_error", "compile_crash", "compile_hang")


@dataclass(frozen=True)
class Fault:
    """`kind` (one of FAULTS) strikes at call number `run` (from 0) of rank `rank`. `seconds`: of a "slow" one."""

    kind: str
    rank: int = 0
    run: int = 0
    seconds: float = 0.2

    def __post_init__(self) -> None:
        if self.kind not in FAULTS:
            raise RunnerError("a fault is of a known kind", self.kind, nearest(self.kind, FAULTS))


Faults = Mapping[str, Fault | str] | Callable[[Schedule], Fault | str | None]


class FakeRunner:
    """Gives the times of a timer, as a real runner would: compile, then run on every rank behind barriers.

    `timer`: a function (spec, schedule) -> microseconds, its import path "module:function", or a mapping from schedule
    digests; a schedule without a time is "illegal". It is called in this process.
    `noise`: relative standard deviation of a sample. Samples depend on (`seed`, schedule digest, rank) alone, whatever
    the order, the number of `workers` (of the compiler) or the faults of other schedules.
    `faults`: a mapping from schedule digests, or a function of the schedule, to a Fault or the name of its kind.
    `limit_s`, `compile_limit_s`: what one candidate may take. `samples`: calls a measurement.
    `processes=False` gives the same measurements without any process and without waiting (messages differ).
    `source` labels the measurements; given times are a model's, so "predicted" unless a test wants another label.
    `measured` counts the schedules that were attempted, failures included, and `digests` lists them in order.
    """

    def __init__(
        self,
        timer: Timer | str | Mapping[str, float],
        *,
        noise: float = 0.0,
        seed: int = 0,
        faults: Faults | None = None,
        samples: int = 5,
        workers: int = 1,
        limit_s: float = 5.0,
        compile_limit_s: float = 5.0,
        processes: bool = True,
        source: str = "predicted",
    ) -> None:
        if source not in SOURCES:
            raise RunnerError("a runner's source is one of " + ", ".join(SOURCES), source)
        if samples < 1 or noise < 0:
            raise RunnerError("a fake runner takes at least one sample, with noise >= 0", (samples, noise))
        self._source = source
        self._timer = _timer(timer)
        self._faults = faults
        self._noise, self._seed, self._samples = float(noise), seed, samples
        self._limit_s = limit_s
        self._processes = processes
        self._pool = Pool(fake_compiler.MODULE, workers, compile_limit_s)
        self._group: Group | None = None
        self._restarts = 0
        self._closed = False
        self.digests: list[str] = []

    @property
    def source(self) -> str:
        return self._source

    @property
    def measured(self) -> int:
        """How many measurements were attempted."""
        return len(self.digests)

    @property
    def restarts(self) -> int:
        """How many times a group of ranks was started anew."""
        return self._restarts + (self._group.restarts if self._group else 0)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of all processes that run now."""
        return (*self._pool.pids, *(self._group.pids if self._group else ()))

    def measure(self, spec: Spec, schedules: Sequence[Schedule]) -> list[Measurement]:
        """See runner.Runner."""
        if self._closed:
            raise RunnerError("a closed runner measures nothing", remedy="make a new one")
        faults = [self._fault(schedule) for schedule in schedules]
        failures = self._compile(faults)
        results = []
        for number, (schedule, fault) in enumerate(zip(schedules, faults, strict=True)):
            self.digests.append(schedule.digest)
            failed = failures.get(number)
            results.append(self._result(schedule, *failed) if failed else self._run(spec, schedule, fault))
        return results

    def close(self) -> None:
        self._closed = True
        self._pool.close()
        self._drop_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _fault(self, schedule: Schedule) -> Fault | None:
        if self._faults is None:
            return None
        found = self._faults(schedule) if callable(self._faults) else self._faults.get(schedule.digest)
        return Fault(found) if isinstance(found, str) else found

    def _compile(self, faults: Sequence[Fault | None]) -> dict[int, tuple[str, str]]:
        """(status, message) of the schedules that do not compile, by position."""
        kinds = [fault.kind if fault and fault.kind in _COMPILING else "" for fault in faults]
        if not any(kinds):
            return {}
        if not self._processes:
            return {number: (FAULTS[kind], f"fake: {kind}") for number, kind in enumerate(kinds) if kind}
        failures = {}
        for number, answer in enumerate(self._pool.run([Job({"kind": "compile", "fault": kind}) for kind in kinds])):
            if isinstance(answer, Lost):
                status = "compile_timeout" if answer.timed_out else "compile_error"
                failures[number] = (status, f"compiling: {answer.message}")
            elif answer.header["error"]:
                failures[number] = ("compile_error", answer.header["error"])
        return failures

    def _run(self, spec: Spec, schedule: Schedule, fault: Fault | None) -> Measurement:
        time_us = self._timer(spec, schedule)
        if time_us is None:
            return self._result(schedule, "illegal", _ILLEGAL)
        if self._processes:
            return self._run_in_ranks(spec.world, schedule, float(time_us), fault)
        if fault and (status := self._simulated(fault)) != "ok":
            return self._result(schedule, status, f"rank {fault.rank} fake: {fault.kind}")
        samples = tuple(
            fake_rank.fake_samples(float(time_us), self._noise, self._seed, schedule.digest, rank, self._samples)
            for rank in range(spec.world)
        )
        return self._result(schedule, "ok", "", samples)

    def _simulated(self, fault: Fault) -> str:
        return "timeout" if fault.kind == "slow" and fault.seconds > self._limit_s else FAULTS[fault.kind]

    def _run_in_ranks(self, world: int, schedule: Schedule, time_us: float, fault: Fault | None) -> Measurement:
        if self._group is None or self._group.world != world:
            self._drop_group()
            self._group = Group(world, fake_rank.WORKER)
        job: dict[str, Any] = {
            "digest": schedule.digest,
            "time_us": time_us,
            "noise": self._noise,
            "seed": self._seed,
            "samples": self._samples,
            "fault": asdict(fault) if fault else None,
        }
        outcome = self._group.run(job, schedule.digest, limit_s=self._limit_s)
        return self._result(schedule, outcome.status, outcome.message, outcome.samples_us)

    def _drop_group(self) -> None:
        if self._group:
            self._restarts += self._group.restarts
            self._group.close()
            self._group = None

    def _result(self, schedule: Schedule, status: str, message: str, samples: Samples = ()) -> Measurement:
        facts = (("noise", repr(self._noise)), ("runner", "fake"), ("seed", str(self._seed)))
        return Measurement(schedule, status, self._source, samples, message, environment=facts)


def _timer(timer: Timer | str | Mapping[str, float]) -> Callable[[Spec, Schedule], float | None]:
    if isinstance(timer, str):
        module, _, name = timer.partition(":")
        try:
            found: Timer = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise RunnerError('a timer is named "module:function"', f"{timer}: {error}") from None
        return found
    if isinstance(timer, Mapping):
        times = dict(timer)
        return lambda spec, schedule: times.get(schedule.digest)
    return timer
