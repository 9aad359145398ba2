"""Ranks of the GPU runner as threads on the fake machine of the deploy tests: its worker runs whole, without a GPU."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch
from deploy.fake_device import FakeDriver, FakeLibrary, Machine

from tilescale.deploy.driver import Grid, Matrix
from tilescale.deploy.tensors import Local
from tilescale.runtime.gpu_contestant import Device
from tilescale.runtime.gpu_rank import GpuRank
from tilescale.runtime.rank import Exchanged, RankContext, RankReport

SETTINGS = {"share_sms": 64, "arena_bytes": 0, "flush_bytes": 4096, "time_limit_s": 2.0, "seed": 7}
TIME_US = 200.0  # of every replay, a call


class Snapshot:
    """Kernel parameters as they were when a launch was captured."""

    def __init__(self, values: tuple[bytes, bytes]) -> None:
        self.values = values


class FakeRankDriver(FakeDriver):
    """The deploy tests' driver with what RankDriver adds. `synchronize` runs the machine once all ranks wait in it."""

    sms = 64
    peer_memory = "ipc"
    share = SimpleNamespace(groups=2)

    def __init__(self, machine: Machine, rank: int, barrier: threading.Barrier) -> None:
        super().__init__(machine, rank)
        self._barrier = barrier
        self._tape: list[Callable[[], None]] | None = None
        self._graphs: dict[int, list[Callable[[], None]]] = {}
        self.replays = 0
        self.fits = 1
        self.lacks = ""

    def synchronize(self, stream: int) -> None:
        self._barrier.wait()

    def function(self, module: int, entry: str) -> int:
        if not entry.startswith(("tilescale_meet", "tilescale_spin")):
            return super().function(module, entry)
        handle = self._handle()
        self.functions[handle] = (b"", entry)
        return handle

    def reach(self, uuids: Sequence[str]) -> list[str]:
        return [self.lacks for _ in uuids]

    def blocks_per_sm(self, function: int, threads: int, shared_bytes: int) -> int:
        return self.fits

    def resident_blocks(self, function: int, grid: Grid, stream: int) -> int:
        return self.fits * self.sms

    def launch_struct(self, function: int, blocks: int, threads: int, shared: int, stream: int, argument: Any) -> None:
        values = type(argument).from_buffer_copy(argument)
        spins = self.functions[function][1].endswith("spin")
        agent = self._spin if spins else self._meet
        self.enqueue(stream, ("meet",), start=lambda: [agent(values) for _ in range(blocks)])

    def _meet(self, values: Any) -> Iterator[bool]:
        machine, own = self.machine, values.meetings[values.rank]
        epoch = machine.u32(own) + 1
        for peer in range(values.world):
            machine.add_u32(values.meetings[peer] + 16 + 4 * values.rank, 1)
        while any(machine.u32(own + 16 + 4 * peer) < epoch for peer in range(values.world)):
            yield False
        machine.add_u32(own, 1)
        yield True

    def _spin(self, values: Any) -> Iterator[bool]:
        machine = self.machine
        for peer in range(values.world):
            machine.add_u32(values.meetings[peer] + 8, 1)
        while machine.u32(values.meetings[values.rank] + 8) < values.target:
            yield False
        yield True

    def fill(self, address: int, value: int, size: int, stream: int) -> None:
        def act() -> None:
            self.machine.at(address, size)[:] = bytes([value]) * size

        self.enqueue(stream, ("fill",), act)

    def timer_event(self) -> int:
        return self.create_event()

    def elapsed_us(self, start: int, end: int) -> float:
        return 2 * TIME_US + self.rank

    # graphs: a tape of what is called, played again
    def capture(self, stream: int, record: Callable[[], None]) -> int:
        self._tape, self.captured = [], stream
        try:
            record()
            graph = self._handle()
            self._graphs[graph] = self._tape
        finally:
            self._tape = None
        return graph

    def replay(self, graph: int, stream: int) -> None:
        self.replays += 1
        for act in self._graphs[graph]:
            act()

    def drop_graph(self, graph: int) -> None:
        del self._graphs[graph]

    def capturing(self, stream: int) -> bool:
        return self._tape is not None

    def keep(self, act: Callable[[], None]) -> None:
        """Do `act` now, or put it on the tape."""
        if self._tape is None:
            act()
        else:
            self._tape.append(act)

    def record(self, event: int, stream: int) -> None:
        self.keep(lambda: super(FakeRankDriver, self).record(event, stream))

    def wait(self, stream: int, event: int) -> None:
        self.keep(lambda: super(FakeRankDriver, self).wait(stream, event))

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        self.keep(lambda: super(FakeRankDriver, self).copy(target, source, size, stream))

    def launch(self, function: int, grid: Grid, stream: int, parameters: Any) -> None:
        snapshot: Any = Snapshot(parameters.values)
        self.keep(lambda: super(FakeRankDriver, self).launch(function, grid, stream, snapshot))


class FakeRankLibrary(FakeLibrary):
    def multiply(self, a: Matrix, b: Matrix, out: Matrix, stream: int) -> None:
        driver: Any = self.driver
        driver.keep(lambda: super(FakeRankLibrary, self).multiply(a, b, out, stream))


class Ranks:
    """`world` workers on one machine; `run` does a job on all of them as the group does. The machine and the exchanges
    break after `limit_s` seconds where a rank does not come."""

    def __init__(self, world: int, seed: int = 0, limit_s: float = 20.0) -> None:
        self.world, self.machine = world, Machine(seed)
        self._values: dict[int, tuple[str, Any, bytes]] = {}
        self._exchange = threading.Barrier(world, timeout=limit_s)
        barrier = threading.Barrier(world, action=self.machine.run, timeout=limit_s)
        self.drivers = [FakeRankDriver(self.machine, rank, barrier) for rank in range(world)]
        self.workers = [GpuRank(self._context(rank), self._open) for rank in range(world)]

    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(report.message) for report in self.run({"do": "facts"}, b"image", "facts")]

    def run(self, job: Mapping[str, Any], blob: bytes, digest: str) -> list[RankReport]:
        def one(rank: int) -> RankReport:
            assert self.workers[rank].prepare(json.loads(json.dumps(job)), blob) == digest
            return self.workers[rank].run(job, blob)

        with ThreadPoolExecutor(self.world) as pool:
            return [future.result() for future in [pool.submit(one, rank) for rank in range(self.world)]]

    def _context(self, rank: int) -> RankContext:
        def exchange(tag: str, value: Any = None, blob: bytes = b"") -> Exchanged:
            self._values[rank] = (tag, json.loads(json.dumps(value)), blob)
            self._exchange.wait()
            found = [self._values[each] for each in range(self.world)]
            self._exchange.wait()
            assert len({each[0] for each in found}) == 1, f"ranks meet in different exchanges: {found}"
            return Exchanged(tuple(each[1] for each in found), tuple(each[2] for each in found))

        context: Any = RankContext(rank, self.world, SETTINGS, SimpleNamespace())  # type: ignore[arg-type]
        context.exchange = exchange
        context.barrier = lambda tag="barrier": exchange(tag)
        return context

    def _open(self, context: RankContext) -> Device:
        driver: Any = self.drivers[context.rank]
        places: dict[int, int] = {}

        def place(local: Local) -> torch.Tensor:
            dtype = getattr(torch, local.dtype)
            address = self.machine.allocate(max(1, math.prod(local.shape)) * dtype.itemsize)
            flat = torch.frombuffer(self.machine.memory[address], dtype=dtype)
            places[flat.data_ptr()] = address
            return flat.as_strided(local.shape, local.strides)

        return Device(torch, driver, FakeRankLibrary(driver), driver.create_stream(), contextlib.nullcontext, place,
                      lambda tensor: places[tensor.data_ptr()] if tensor.numel() else 0, shared=True)
