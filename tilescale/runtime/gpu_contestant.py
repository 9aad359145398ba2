"""A program on one rank, from the first call to a graph that is replayed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tilescale.codegen.product import factors
from tilescale.codegen.program import Program
from tilescale.deploy.driver import Library, Matrix
from tilescale.deploy.launch import PreparedOperation
from tilescale.deploy.modules import Modules
from tilescale.deploy.symmetric import Exchange
from tilescale.deploy.tensors import Local
from tilescale.errors import RunnerError
from tilescale.runtime.gpu_check import CALLS, TIMED_CALLS, Place, Workload
from tilescale.runtime.gpu_driver import RankDriver
from tilescale.runtime.gpu_meeting import Meeting


@dataclass(frozen=True)
class Recording:
    """A graph of `calls` calls: `launch` enqueues a replay on the rank's stream, `drop` frees it."""

    launch: Callable[[], None]
    calls: int
    drop: Callable[[], None]


class Timed(Protocol):
    """What a rank can check and time. `prepare`, `verify`, `record` and `close` are collective."""

    name: str

    def verify(self) -> None:
        """Right on all calls, or WrongResult or OperationFailed."""
        ...

    def record(self, calls: int) -> Recording: ...

    def conclude(self) -> None:
        """After the replays: still right, or as `verify`."""
        ...

    def close(self) -> None: ...


@dataclass
class Device:
    """A rank's GPU or share. `stream`: the main one; `scope()` makes torch use it. `place` makes tensors where kernels
    reach them, at `address(tensor)`. `shared`: other ranks are on the same GPU."""

    torch: Any
    driver: RankDriver
    library: Library
    stream: int
    scope: Callable[[], AbstractContextManager[Any]]
    place: Place
    address: Callable[[Any], int]
    shared: bool


@dataclass
class Rank:
    """What contestants share on one rank."""

    device: Device
    meeting: Meeting
    rank: int
    world: int
    exchange: Exchange


class ProgramContestant:
    """A program. Making one is collective; BundleError on all ranks where it cannot be prepared on one."""

    def __init__(self, rank: Rank, name: str, program: Program, modules: Modules, work: Workload,
                 time_limit_s: float, warm: set[tuple[Any, ...]]) -> None:
        self.name = name
        self._rank, self._work, self._program = rank, work, program
        self._operation = PreparedOperation(
            work.spec, program, rank.rank, rank.device.driver, rank.exchange, modules, library=rank.device.library,
            time_limit_s=time_limit_s, watch=False)
        self._names = tuple(operand.name for operand in work.spec.operands)
        self._symmetric = {name: self._operation.operand(name) for name in self._names}
        self._warm_up(warm)

    def _warm_up(self, warm: set[tuple[Any, ...]]) -> None:
        """Load what library products need on every stream: loading waits for kernels that spin, and these for it."""
        device, inputs = self._rank.device, dict(zip(self._names, self._work.calls[0].inputs, strict=False))
        driver, address = device.driver, device.address
        for launch in self._program.ranks[self._rank.rank]:
            call = launch.gemm
            if call is None:
                continue
            matrices = factors(self._work.spec, call)
            kind = tuple((f.rows, f.columns, f.strides, f.dtype) for f in matrices)
            cold = [stream for stream in dict.fromkeys((device.stream, *driver.streams)) if (stream, *kind) not in warm]
            if not cold:
                continue
            places = [inputs[f.buffer] if f.buffer in inputs and not f.offset and f is matrices[1] else
                      device.place(Local(f.buffer, (f.rows, f.columns), f.strides, f.dtype)) for f in matrices]
            a, b, out = (Matrix(address(place), f.rows, f.columns, f.strides, f.dtype)
                         for place, f in zip(places, matrices, strict=True))
            for stream in cold:
                device.library.multiply(a, b, out, stream)
                driver.synchronize(stream)
                warm.add((stream, *kind))

    @property
    def operation(self) -> PreparedOperation:
        return self._operation

    def verify(self) -> None:
        self._work.poison()
        self._rank.exchange(b"")  # no rank starts to wait for one that still prepares
        for call in range(CALLS):
            self.enqueue(call)
        self._operation.check(self._rank.device.stream)
        for call in range(CALLS):
            self._work.check(call)

    def enqueue(self, call: int) -> None:
        """One call. Where peers read an operand in place it is written between meetings: nobody reads it then."""
        data, rank, device = self._work.calls[call], self._rank, self._rank.device
        staged = [(self._symmetric[name], tensor) for name, tensor in zip(self._names, data.inputs, strict=True)
                  if self._symmetric[name] is not None]
        for place, tensor in staged:
            assert place is not None
            size = tensor.numel() * tensor.element_size()
            device.driver.copy(place, device.address(tensor), size, device.stream)
        if staged:
            rank.meeting.enqueue(device.stream)
        self._operation(self._operands(call), device.stream)
        if staged:
            rank.meeting.enqueue(device.stream)

    def _operands(self, call: int) -> dict[str, int]:
        data, address = self._work.calls[call], self._rank.device.address
        found = {"out": address(data.out), **{name: address(tensor) for name, tensor, _ in data.beside}}
        for name, tensor in zip(self._names, data.inputs, strict=True):
            place = self._symmetric[name]
            found[name] = address(tensor) if place is None else place
        return found

    def record(self, calls: int) -> Recording:
        """Calls on the inputs of TIMED_CALLS in turn; symmetric operands hold what they were given last."""
        if calls % 2 and self._operation.alternates:
            raise RunnerError("a graph of this schedule holds an even number of calls", calls, "set Bounds.calls to 2")
        driver, stream = self._rank.device.driver, self._rank.device.stream

        def enqueue() -> None:
            for number in range(calls):
                self._operation(self._operands(TIMED_CALLS[number % len(TIMED_CALLS)]), stream)

        with self._operation.recording():
            graph = driver.capture(stream, enqueue)
        return Recording(lambda: driver.replay(graph, stream), calls, lambda: driver.drop_graph(graph))

    def conclude(self) -> None:
        self._operation.check(self._rank.device.stream)
        if not any(place is not None for place in self._symmetric.values()):
            for call in TIMED_CALLS:
                self._work.check(call)

    def close(self) -> None:
        self._operation.close()
