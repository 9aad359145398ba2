"""Measures schedules on GPUs, across rank processes: of one GPU that they share, or with a GPU each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from tilescale.codegen.compile import CompileFailure, Compiler
from tilescale.codegen.nvrtc_worker import nvrtc_version
from tilescale.codegen.program import Program
from tilescale.deploy import peer_memory
from tilescale.deploy.multicast import refusal
from tilescale.errors import RunnerError
from tilescale.runtime import baselines, gpu_job, gpu_meeting, gpu_rank
from tilescale.runtime.baselines import Timing
from tilescale.runtime.clocks import power_cap_w
from tilescale.runtime.device_lock import DeviceLock
from tilescale.runtime.gpu_job import Contestant, Race
from tilescale.runtime.gpu_placement import WORKS, RankFacts, check_placement, place
from tilescale.runtime.gpu_rank import DRAINED
from tilescale.runtime.gpu_ready import Binaries, Ready
from tilescale.runtime.group import Group, Outcome
from tilescale.runtime.measure import Measurement
from tilescale.runtime.mps import MpsDaemon
from tilescale.runtime.sampling import Bounds
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

START_LIMIT_S = 60.0  # importing torch and making a context, on a machine that is busy
_AHEAD = 16  # schedules whose kernels are compiled together

_T = TypeVar("_T")
Round = baselines.Round  # of a contestant: a schedule's digest, or a baseline's name


@dataclass(frozen=True)
class Limits:
    """Seconds. `wait_s`: of a wait on the device, after which kernels drain. `candidate_s`: of preparing a candidate,
    and of checking and timing it, on the host. `first_s`: the same where inputs and references are made first."""

    wait_s: float = 2.0
    candidate_s: float = 30.0
    first_s: float = 120.0
    compile_s: float = 60.0


class GpuRunner:
    """A runner (see runner.Runner) for specs of `topology`. Ranks start with the first measurement.

    This process makes no CUDA context and imports no torch: ranks do. It compiles ahead, in worker processes, while
    they measure. `cache_dir`, `workers`: of the compiler. `arena_bytes`: peer-visible memory that each rank keeps.
    `gpus`: UUIDs, as nvidia-smi writes them, of the GPUs of a real topology's ranks; by default the first visible ones.
    Measuring holds a lock on the GPUs. Every candidate is checked on three calls before it is timed.
    """

    def __init__(self, topology: Topology, *, bounds: Bounds | None = None, limits: Limits | None = None, seed: int = 0,
                 workers: int | None = None, cache_dir: str | Path | None = None, arena_bytes: int = 1 << 30,
                 worker: str = gpu_rank.WORKER, gpus: Sequence[str] | None = None) -> None:
        self._topology = topology
        self._bounds, self._limits, self._seed = bounds or Bounds(), limits or Limits(), seed
        self._shared = topology.kind != "real"
        self._compiler = Compiler(workers, cache_dir, self._limits.compile_s)
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="tilescale-compile")
        self._binaries = Binaries(self._compiler)
        self._mps = MpsDaemon()
        self._lock = DeviceLock()
        self._worker, self._arena_bytes, self._gpus = worker, arena_bytes, gpus
        self._group: Group | None = None
        self._known: tuple[int, ...] = ()  # processes of the ranks whose facts are checked
        self._specs: set[str] = set()  # whose inputs these ranks have
        self._restarts = 0
        self._closed = False
        self.facts: tuple[RankFacts, ...] = ()

    @property
    def source(self) -> str:
        return self._topology.source

    @property
    def environment(self) -> dict[str, str]:
        """The machine that times belong to, as texts by the names of the database's columns. Starts the ranks."""
        first = (self.facts or self.start())[0]
        return {
            "gpu": first.gpu, "arch": self._topology.gpu.arch, "power_cap_w": f"{power_cap_w(first.uuid):.0f}",
            "driver": first.driver, "nvrtc": nvrtc_version(), "torch": first.torch, "clock_policy": "default",
            "gpu_count": str(len({facts.uuid for facts in self.facts})),
        }

    @property
    def pids(self) -> tuple[int, ...]:
        """Of all processes that run now."""
        ranks = self._group.pids if self._group else ()
        return (*ranks, *self._compiler.pids, *self._mps.pids)

    @property
    def restarts(self) -> int:
        """How often the ranks were started anew."""
        return self._restarts + (self._group.restarts if self._group else 0)

    def start(self) -> tuple[RankFacts, ...]:
        """Start the ranks now, and say what they are. RunnerError where they are not placed as the topology says."""
        if self._closed:
            raise RunnerError("a closed runner starts nothing", remedy="make a new one")
        self._guarded(self._started)
        return self.facts

    # -- measuring -----------------------------------------------------------------------------------------------------
    def measure(self, spec: Spec, schedules: Sequence[Schedule]) -> list[Measurement]:
        """See runner.Runner."""
        self._check(spec)
        parts = [list(schedules[at : at + _AHEAD]) for at in range(0, len(schedules), _AHEAD)]
        pending: list[Future[list[Ready]]] = [self._ahead.submit(self._binaries.of_schedules, spec, part) for part in parts]
        try:
            return [self._measure(spec, ready) for future in pending for ready in future.result()]
        except BaseException:
            for future in pending:
                future.cancel()
            self._halt()
            raise

    def measure_program(self, spec: Spec, schedule: Schedule, program: Program) -> Measurement:
        """As `measure`, of a program that was made otherwise, such as an edited or loaded one."""
        self._check(spec)
        return self._guarded(lambda: self._measure(spec, self._binaries.of_program(schedule, program)))

    def prefetch(self, spec: Spec, schedules: Sequence[Schedule]) -> None:
        """Compile what these will need, in the background: for callers that measure one schedule a call."""
        self._check(spec)
        self._ahead.submit(self._binaries.of_schedules, spec, list(schedules))

    def baselines(self, spec: Spec, names: Sequence[str] | None = None) -> dict[str, Timing]:
        """Baselines by name, all that make sense by default. One that cannot run here has a status and a message."""
        found = tuple(names) if names is not None else baselines.names_for(spec)
        rounds, facts, failed = self._raced(spec, (), found, 1, self._bounds)
        timings = {}
        for name in found:
            samples = rounds[0].get(name, ()) if rounds else ()
            status = "ok" if samples else "launch_error"
            timings[name] = Timing(name, status, self.source, samples, failed.get(name, ""), facts)
        return timings

    def race(self, spec: Spec, schedules: Sequence[Schedule], names: Sequence[str] = (), rounds: int = 5) -> list[Round]:
        """Finalists and baselines in turn: `rounds` rounds, each with samples of every rank by schedule digest or
        baseline name. Each is checked first; RunnerError where a schedule fails."""
        found, _, _ = self._raced(spec, tuple(schedules), tuple(names), rounds, self._bounds)
        return found

    def close(self) -> None:
        self._closed = True
        self._ahead.shutdown(wait=True, cancel_futures=True)
        self._compiler.close()
        self._halt()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check(self, spec: Spec) -> None:
        if self._closed:
            raise RunnerError("a closed runner measures nothing", remedy="make a new one")
        if spec.topology.digest != self._topology.digest:
            raise RunnerError(f"this runner measures on {self._topology.name}", spec.topology.name, "make one for it")

    def _guarded(self, act: Callable[[], _T]) -> _T:
        try:
            return act()
        except BaseException:
            self._halt()
            raise

    # -- ranks ---------------------------------------------------------------------------------------------------------
    def _measure(self, spec: Spec, ready: Ready) -> Measurement:
        schedule, program = ready.schedule, ready.program
        digests = (program.binary_digest, program.table_digest) if program else ("", "")
        if program is None or ready.binaries is None:
            return Measurement(schedule, ready.status, self.source, message=ready.message, binary_digest=digests[0],
                               table_digest=digests[1])
        race = Race(spec, (Contestant(schedule.digest, program),), 1, self._bounds)
        outcome = self._run(race, ready.binaries)
        if not outcome.ok:
            return Measurement(schedule, outcome.status, self.source, (), outcome.message, self._environment({}),
                               digests[0], digests[1])
        facts = json.loads(outcome.reports[0].message)
        return Measurement(schedule, "ok", self.source, outcome.samples_us, "", self._environment(facts), *digests)

    def _raced(self, spec: Spec, schedules: Sequence[Schedule], names: tuple[str, ...], rounds: int, bounds: Bounds
               ) -> tuple[list[Round], tuple[tuple[str, str], ...], Mapping[str, str]]:
        self._check(spec)
        baselines.check_names(spec, names)
        scheduled = "unfused" in names and not baselines.by_library(spec)
        plain = baselines.unfused_schedules(spec) if scheduled else ()
        aliases = {f"unfused {number}": schedule for number, schedule in enumerate(plain)}
        ready = self._binaries.of_schedules(spec, [*schedules, *aliases.values()])
        contestants: list[Contestant] = []
        binaries: dict[str, bytes] = {}
        for name, each in zip([*(s.digest for s in schedules), *aliases], ready, strict=True):
            if each.binaries is None:
                raise RunnerError(f"{each.schedule.label} compiles", each.message, "race schedules that were measured")
            contestants.append(Contestant(name, each.program))
            binaries.update(each.binaries)
        contestants += [Contestant(name) for name in names if name != "unfused" or not plain]
        if not contestants or rounds < 1:
            raise RunnerError("a race has contestants and rounds", f"{len(contestants)} and {rounds}")
        race = Race(spec, tuple(contestants), rounds, bounds)
        outcome = self._guarded(lambda: self._run(race, binaries))
        if not outcome.ok:
            raise RunnerError("every schedule of a race is right and ends", f"{outcome.status}: {outcome.message}",
                              "race schedules that were measured")
        said = [json.loads(report.message) for report in outcome.reports]
        found: list[Round] = [
            {name: tuple(tuple(rank["rounds"][number][name]) for rank in said) for name in said[0]["rounds"][number]}
            for number in range(rounds)]
        if plain:
            fastest = baselines.fastest_of(found, list(aliases))
            found = [{name: us for name, us in each.items() if name not in aliases} | {"unfused": each[fastest]}
                     for each in found]
        return found, self._environment(said[0]), said[0]["failed"]

    def _run(self, race: Race, binaries: Mapping[str, bytes]) -> Outcome:
        """One job on all ranks; those and the daemon are started anew where the last job left them down."""
        group = self._started()
        fresh = race.spec.digest not in self._specs
        job, blob = gpu_job.encode(race, binaries)
        limit = self._limits.first_s if fresh else self._limits.candidate_s
        work = len(race.contestants) * race.rounds
        outcome = group.run(job, race.digest, blob=blob, limit_s=limit + 2.0 * (work - 1))
        self._specs = {race.spec.digest} if group.pids else set()
        if not group.pids and not _drained(outcome):
            self._restarts += 1
            self._halt()  # the daemon too: a client that failed may have taken its server along
        return outcome

    def _started(self) -> Group:
        """Ranks that run and are placed as the topology says; RunnerError where that cannot be had."""
        if self._shared and not self._mps.running:
            self._drop_group()
            self._mps.start()
        if self._group is None:
            placed = self._mps.environment if self._shared else place(self._topology, self._gpus)
            variables = {**VARIABLES, **placed}
            if self._tries_multicast:
                variables = {**variables, **MULTICAST_VARIABLES}
            self._group = Group(self._topology.world, self._worker, settings=self._settings(), environment=variables,
                                start_limit_s=START_LIMIT_S)
        if self._group.pids and self._group.pids == self._known:
            return self._group
        (image,) = self._compiler.compile([gpu_meeting.source(self._topology.gpu.arch)])
        if isinstance(image, CompileFailure):
            raise RunnerError("the kernels of the meeting compile", image.message)
        outcome = self._group.run({"do": "facts"}, "facts", blob=image.cubin, limit_s=START_LIMIT_S)
        if not outcome.ok:
            raise RunnerError("ranks can be prepared", f"{outcome.status}: {outcome.message}",
                              "see the message; nvidia-smi shows what else uses the GPU")
        self.facts = tuple(RankFacts.read(report.message) for report in outcome.reports)
        check_placement(self._topology, self.facts)
        self._known, self._specs = self._group.pids, set()
        self._mps.watch(self._known)
        self._lock.release()
        self._lock.acquire(facts.uuid for facts in self.facts)
        return self._group

    @property
    def multicast(self) -> bool:
        """Whether multimem schedules can be measured here: the owner allows it (see deploy/multicast.py), the topology has
        a switch that does it, and every rank has tried it to the end. Starts the ranks where they must be asked."""
        return self._tries_multicast and all(facts.multicast == WORKS for facts in self.facts or self.start())

    @property
    def _tries_multicast(self) -> bool:
        return not self._shared and self._topology.link.multicast and not refusal()

    def _settings(self) -> dict[str, Any]:
        gpu, world = self._topology.gpu, self._topology.world
        flush = 2 * gpu.l2_bytes // (world if self._shared else 1)  # together ranks that share an L2 write it twice over
        return {
            "share_sms": self._topology.sm_share if self._shared else 0,
            # What multicast binds are whole allocations.
            "arena_bytes": 0 if self._tries_multicast else self._arena_bytes, "multicast": self._tries_multicast,
            "flush_bytes": flush, "time_limit_s": self._limits.wait_s, "seed": self._seed,
        }

    def _environment(self, report: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        first = self.facts[0] if self.facts else None
        known: dict[str, str] = {"calls_per_sample": str(self._bounds.calls), "cache": "cleared", "runner": "gpu"}
        if first is not None:
            known |= {"gpu": first.gpu, "driver": first.driver, "cuda": str(first.cuda), "torch": first.torch,
                      "uuids": ",".join(dict.fromkeys(facts.uuid for facts in self.facts)), "sm_share": str(first.sms),
                      "visible": first.visible, "peer_memory": first.peer_memory}
        known |= {str(name): str(value) for name, value in report.get("facts", {}).items()}
        if report.get("dropped"):
            known["dropped_samples"] = str(report["dropped"])
        return tuple(sorted(known.items()))

    def _drop_group(self) -> None:
        self._known, self._specs = (), set()
        if self._group:
            self._restarts += self._group.restarts
            self._group.close()
            self._group = None

    def _halt(self) -> None:
        """End the ranks, then the daemon; the next measurement starts them anew."""
        try:
            self._drop_group()
        finally:
            self._mps.stop()
            self._lock.release()


# What rank processes need beside the daemon's: streams that do not wait for each other, symmetric memory of torch on a
# shared GPU, and no multicast, which can put a host's GPUs out of service.
VARIABLES = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "8",  # with more, several clients of one MPS server run out of channels
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NCCL_NVLS_ENABLE": "0",
    "OMP_NUM_THREADS": "1",
}

# In their place where the owner of the machine allows multicast.
MULTICAST_VARIABLES = {
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "0", "NCCL_NVLS_ENABLE": "1", "NVSHMEM_DISABLE_NVLS": "0",
    peer_memory.VARIABLE: peer_memory.VMM,
}


def _drained(outcome: Outcome) -> bool:
    """Whether the GPU was left in order: kernels have returned, and no process was lost."""
    return outcome.status == "wrong_result" or (outcome.status == "timeout" and DRAINED in outcome.message)
