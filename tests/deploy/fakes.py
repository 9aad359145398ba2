"""What the tests of deployment share: specs, one schedule of each kind, results, groups of ranks in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from deploy.fake_device import FakeDriver, FakeLibrary, Machine

import tilescale as ts
from tilescale.codegen.emit import emit
from tilescale.codegen.program import Program
from tilescale.deploy.launch import PreparedOperation
from tilescale.deploy.modules import Modules
from tilescale.deploy.turns import Turns
from tilescale.schedules.knob import BY_NAME
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.spec.declaration import Spec
from tilescale.tuner.result import Result

T = TypeVar("T")


def topology(ranks: int) -> ts.Topology:
    return ts.Topology.scale_model("8xH200-NVSwitch", ranks=ranks)


def ag_gemm(ranks: int = 2, rows: int = 128, n: int = 64, k: int = 64, order: str = "col", inputs: str = "ordinary",
            out_dtype: str | None = None) -> Spec:
    """`rows` rows and `n` columns a rank."""
    a = ts.Tensor((rows * ranks, k), "bfloat16", ts.FullRow)
    b = ts.Tensor((k, n * ranks), "bfloat16", ts.FullCol, order=order)
    return ts.matmul(a, b, out=ts.FullCol, topology=topology(ranks), inputs=inputs, out_dtype=out_dtype)


def all_gather(ranks: int = 2, rows: int = 128, columns: int = 64, inputs: str = "ordinary") -> Spec:
    tensor = ts.Tensor((rows * ranks, columns), "bfloat16", ts.FullRow)
    return ts.redistribute(tensor, to=ts.Replicate, topology=topology(ranks), inputs=inputs)


# One tile and the smallest chunks: these tests are about what travels and when, not about the product.
_FIRST = ("chunk_rows", "num_comm_blocks", "block_m", "block_n", "block_k", "num_stages", "raster_group")
_TAKEN = {"num_comm_blocks": 2}


@lru_cache(maxsize=64)
def schedules(spec: Spec) -> tuple[Schedule, ...]:
    """The space, narrowed to the first values of the knobs that only size things."""
    return space(spec, {name: BY_NAME[name].allowed(spec)[: _TAKEN.get(name, 1)] for name in _FIRST}).schedules


def kinds(spec: Spec) -> list[Schedule]:
    """One schedule of every combination of transport, direction, overlap and compute, the most chunked of each."""
    found: dict[tuple[str, ...], Schedule] = {}
    for schedule in schedules(spec):
        key = (schedule.transport, schedule.direction, schedule.overlap, schedule.compute)
        best = found.get(key)
        if best is None or (-schedule.chunk_rows, schedule.depth) > (-best.chunk_rows, best.depth):
            found[key] = schedule
    return list(found.values())


def one_schedule(spec: Spec, **knobs: object) -> Schedule:
    return next(s for s in schedules(spec) if all(getattr(s, name) == value for name, value in knobs.items()))


def result_of(name: str, spec: Spec, schedule: Schedule, best_us: float = 12.5) -> Result:
    return Result(name, spec, schedule, best_us, {"unfused": 20.0}, (), "the fastest", "replayed", "complete", 1, 0, 3, ())


def images(program: Program) -> dict[str, bytes]:
    """What the fake driver loads as binaries."""
    return {kernel.digest: kernel.text.encode() for kernel in program.kernels}


class Meeting:
    """An exchange between ranks that are threads of this process."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._barrier = threading.Barrier(world, timeout=20)
        self._values: dict[int, bytes] = {}

    def exchange(self, rank: int) -> Callable[[bytes], list[bytes]]:
        def meet(blob: bytes) -> list[bytes]:
            self._values[rank] = blob
            self._barrier.wait()
            answers = [self._values[r] for r in range(self._world)]
            self._barrier.wait()
            return answers

        return meet


def on_all_ranks(world: int, act: Callable[[int], T]) -> list[T]:
    """What `act` returns on each rank; ranks are threads. The first exception is raised, after all have ended."""
    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(act, rank) for rank in range(world)]
    return [future.result() for future in futures]


class Group:
    """A program, by default that of the schedule, prepared on all ranks of a fake machine, a new one unless given.
    `drivers`: of devices that are there already, by rank. `turns`: of those devices."""

    def __init__(self, spec: Spec, schedule: Schedule, seed: int = 0, program: Program | None = None,
                 machine: Machine | None = None, drivers: Sequence[FakeDriver] = (), turns: Sequence[Turns] = (),
                 **options: Any) -> None:
        self.spec, self.machine = spec, machine or Machine(seed)
        self.program = program or emit(spec, schedule)
        self.drivers = list(drivers) or [FakeDriver(self.machine, rank) for rank in range(spec.world)]
        self.meeting = Meeting(spec.world)
        self.modules = [Modules(driver, images(self.program)) for driver in self.drivers]

        def prepare(rank: int) -> PreparedOperation:
            driver = self.drivers[rank]
            return PreparedOperation(spec, self.program, rank, driver, self.meeting.exchange(rank), self.modules[rank],
                                     library=FakeLibrary(driver), turns=turns[rank] if turns else None, **options)

        self.ranks = on_all_ranks(spec.world, prepare)

    def all(self, act: Callable[[PreparedOperation], T]) -> Sequence[T]:
        return on_all_ranks(self.spec.world, lambda rank: act(self.ranks[rank]))
