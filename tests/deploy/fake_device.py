"""GPUs of a test: real bytes behind fake addresses, streams and events with CUDA's rules, and an interpreter of tables.

A kernel runs from its argument bytes alone: whatever a block reads, writes, signals or waits for is found through the
addresses in them, as on a device. Ranks share one `Machine`; each has a `FakeDriver`. Nothing runs until `Machine.run`.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from tilescale.codegen.program import TensorMapSpec
from tilescale.codegen.table import (
    ARGUMENTS,
    BLOCK,
    KIND_COPY,
    KIND_GEMM,
    KIND_MULTI_STORE,
    KIND_MULTI_SUM,
    KIND_PACE,
    KIND_RESERVE,
    KIND_SIGNAL,
    KIND_SOURCE,
    KIND_SUM,
    KIND_WAIT,
    MAX_RANKS,
    MAX_SLOTS,
    STATE,
    STEP,
)
from tilescale.deploy.driver import MAP_BYTES, Agree, DeviceFacts, DriverError, Grid, KernelParameters, Matrix
from tilescale.spec.tensor import ITEMSIZE

H200 = DeviceFacts("NVIDIA H200", "gpu-0", (9, 0), 132, 232448, 13000, "580.159.04")
_MAP = struct.Struct("<QQ5Q3Q")  # magic, address, three sizes and two strides, item size, rows of B are contiguous, spare
_MAGIC = 0x4D61705F
_SPACE = 1 << 32


@dataclass
class Token:
    """One record of an event."""

    done: bool = False


@dataclass
class Work:
    """Something enqueued: `what` for the log; `start` gives the agents that carry it out, none where it is instant."""

    what: tuple[object, ...]
    ready: Callable[[], bool]
    start: Callable[[], list[Iterator[bool]]]


@dataclass
class Machine:
    """Memory and streams of all ranks. `seed` decides who goes first."""

    seed: int = 0
    memory: dict[int, bytearray] = field(default_factory=dict)
    aliases: dict[int, int] = field(default_factory=dict)
    multicast: dict[int, tuple[int, ...]] = field(default_factory=dict)
    queues: dict[tuple[int, int], list[Work]] = field(default_factory=dict)
    next_base: int = _SPACE
    log: list[tuple[object, ...]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def allocate(self, size: int) -> int:
        base, self.next_base = self.next_base, self.next_base + _SPACE
        self.memory[base] = bytearray(b"\xcd" * size)
        return base

    def at(self, address: int, size: int) -> memoryview:
        """The bytes at an address; KeyError or AssertionError for one that is nowhere, or past the end."""
        base = address // _SPACE * _SPACE
        memory = self.memory[self.aliases.get(base, base)]
        assert address - base + size <= len(memory), f"{size} bytes at {address:#x} end behind the allocation"
        return memoryview(memory)[address - base : address - base + size]

    def members(self, address: int) -> list[int]:
        """Addresses that a multicast address stands for."""
        base = address // _SPACE * _SPACE
        return [member + address - base for member in self.multicast[base]]

    def real(self, address: int) -> int:
        """The address that its owner would use."""
        base = address // _SPACE * _SPACE
        return self.aliases.get(base, base) + address - base

    def u32(self, address: int) -> int:
        return int(struct.unpack("<I", self.at(address, 4))[0])

    def add_u32(self, address: int, value: int) -> int:
        old = self.u32(address)
        self.at(address, 4)[:] = struct.pack("<I", (old + value) & 0xFFFFFFFF)
        return old

    def tensor(self, matrix: Matrix) -> torch.Tensor:
        dtype = getattr(torch, matrix.dtype)
        size = matrix.rows * matrix.columns * ITEMSIZE[matrix.dtype]
        flat = torch.frombuffer(self.at(matrix.address, size), dtype=dtype)
        return flat.as_strided((matrix.rows, matrix.columns), matrix.strides)

    def run(self) -> None:
        """Carry out everything that is enqueued, in an order that the seed chooses; AssertionError on a deadlock."""
        chance = random.Random(self.seed)
        running: dict[tuple[int, int], list[Iterator[bool]]] = {}
        while any(self.queues.values()):
            moved = False
            for key in chance.sample(sorted(k for k, queue in self.queues.items() if queue), k=self._waiting()):
                if key not in running:
                    if not self.queues[key][0].ready():
                        continue
                    running[key] = self.queues[key][0].start()
                    moved = True
                moved |= self._advance(running[key], chance)
                if not running[key]:
                    self.log.append((*key, *self.queues[key].pop(0).what))
                    del running[key]
                    moved = True
            stuck = {key: queue[0].what[:2] for key, queue in self.queues.items() if queue}
            assert moved, f"deadlock: {stuck}"

    def _waiting(self) -> int:
        return sum(1 for queue in self.queues.values() if queue)

    @staticmethod
    def _advance(agents: list[Iterator[bool]], chance: random.Random) -> bool:
        """One step of each agent, in random order; whether any moved."""
        moved = False
        for agent in chance.sample(agents, k=len(agents)):
            step = next(agent, None)
            if step is None:
                agents.remove(agent)
            moved |= step is not False
        return moved


class FakeDriver:
    """The driver protocol on a Machine. `launches` and `calls` record what was asked, `limits` shared memory allowed."""

    def __init__(self, machine: Machine, rank: int = 0, facts: DeviceFacts = H200) -> None:
        self.machine, self.rank, self._facts = machine, rank, facts
        self.events: dict[int, Token | None] = {}
        self.modules: dict[int, bytes] = {}
        self.functions: dict[int, tuple[bytes, str]] = {}
        self.limits: dict[int, int] = {}
        self.streams: set[int] = set()
        self.calls: list[tuple[object, ...]] = []
        self.opened: set[int] = set()
        self.captures: set[int] = set()
        self.failing = ""
        self._next = 1000

    def _handle(self) -> int:
        self._next += 1
        return self._next

    def _fail(self, name: str) -> None:
        if self.failing == name:
            raise DriverError("a CUDA driver call succeeds", f"{name} was told to fail")

    def facts(self) -> DeviceFacts:
        return self._facts

    def activate(self) -> None:
        pass

    # memory
    def allocate(self, size: int) -> int:
        self._fail("allocate")
        return self.machine.allocate(size)

    def free(self, address: int) -> None:
        assert address not in self.machine.aliases.values(), "freed while a peer has it open"
        del self.machine.memory[address]

    def zero(self, address: int, size: int) -> None:
        self.machine.at(address, size)[:] = bytes(size)

    def upload(self, address: int, data: bytes) -> None:
        self.machine.at(address, len(data))[:] = data

    def download(self, address: int, size: int) -> bytes:
        return bytes(self.machine.at(address, size))

    def export_memory(self, address: int) -> bytes:
        return struct.pack("<Q", address).ljust(64, b"\0")

    def open_memory(self, handle: bytes) -> int:
        self._fail("open_memory")
        alias, self.machine.next_base = self.machine.next_base, self.machine.next_base + _SPACE
        self.machine.aliases[alias] = struct.unpack_from("<Q", handle)[0]
        self.opened.add(alias)
        return alias

    def close_memory(self, address: int) -> None:
        self.opened.remove(address)
        del self.machine.aliases[address]

    def bind_multicast(self, address: int, rank: int, world: int, agree: Agree) -> int:
        def told() -> bytes:
            self._fail("bind_multicast")
            return struct.pack("<Q", address)

        members = [struct.unpack("<Q", each)[0] for each in agree(told)]
        found, self.machine.next_base = self.machine.next_base, self.machine.next_base + _SPACE
        self.machine.multicast[found] = tuple(members)
        return found

    def unbind_multicast(self, address: int) -> None:
        del self.machine.multicast[address]

    def pinned(self, size: int) -> int:
        address = self.machine.allocate(size)
        self.zero(address, size)
        return address

    def free_pinned(self, address: int) -> None:
        del self.machine.memory[address]

    def read_pinned(self, address: int, size: int) -> bytes:
        return self.download(address, size)

    # binaries: the text of a kernel, which can be run, or a real cubin, which goes no further than the launch
    def load_module(self, image: bytes) -> int:
        module = self._handle()
        self.modules[module] = image
        return module

    def unload_module(self, module: int) -> None:
        del self.modules[module]

    def function(self, module: int, entry: str) -> int:
        assert entry.encode() in self.modules[module]
        function = self._handle()
        self.functions[function] = (self.modules[module], entry)
        return function

    def set_shared_bytes(self, function: int, size: int) -> None:
        self.limits[function] = size

    def encode_map(self, spec: TensorMapSpec, address: int) -> bytes:
        assert address % 16 == 0
        sizes = (*spec.sizes, 1)[:3]
        strides = (*spec.strides_bytes, 0)[:2]
        data = _MAP.pack(_MAGIC, address, *sizes, *strides, ITEMSIZE[spec.element], 0, 0)
        return data.ljust(MAP_BYTES, b"\0")

    # order and work
    def create_stream(self) -> int:
        stream = self._handle()
        self.streams.add(stream)
        return stream

    def destroy_stream(self, stream: int) -> None:
        self.streams.remove(stream)

    def create_event(self) -> int:
        event = self._handle()
        self.events[event] = None
        return event

    def destroy_event(self, event: int) -> None:
        del self.events[event]

    def enqueue(self, stream: int, what: tuple[object, ...], act: Callable[[], None] | None = None,
                ready: Callable[[], bool] = lambda: True,
                start: Callable[[], list[Iterator[bool]]] | None = None) -> None:
        def instant() -> list[Iterator[bool]]:
            if act is not None:
                act()
            return []

        self.calls.append((stream, *what))
        work = Work(what, ready, start or instant)
        if stream not in self.captures:
            self.machine.queues.setdefault((self.rank, stream), []).append(work)

    def record(self, event: int, stream: int) -> None:
        token = self.events[event] = Token()
        self.enqueue(stream, ("record", event), lambda: setattr(token, "done", True))

    def wait(self, stream: int, event: int) -> None:
        token = self.events[event]
        self.enqueue(stream, ("wait", event), ready=lambda: token is None or token.done)

    def capturing(self, stream: int) -> bool:
        return stream in self.captures

    def synchronize(self, stream: int) -> None:
        with self.machine.lock:
            if self.machine.queues.get((self.rank, stream)):
                self.machine.run()

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        def act() -> None:
            self.machine.at(target, size)[:] = bytes(self.machine.at(source, size))

        self.enqueue(stream, ("copy", target, source, size), act)

    def copy_to_pinned(self, pinned: int, source: int, size: int, stream: int) -> None:
        self.copy(pinned, source, size, stream)

    def launch(self, function: int, grid: Grid, stream: int, parameters: KernelParameters) -> None:
        self._fail("launch")
        assert grid.shared_bytes <= self.limits.get(function, 0)
        image, entry = self.functions[function]
        values = parameters.values
        self.enqueue(stream, ("launch", entry, grid, values),
                     start=lambda: _blocks(self.machine, image.decode(), grid, values))


class FakeLibrary:
    """Products on the Machine, enqueued like cuBLAS would."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver

    def multiply(self, a: Matrix, b: Matrix, out: Matrix, stream: int) -> None:
        tensor = self.driver.machine.tensor
        self.driver.enqueue(stream, ("product", a, b, out),
                            lambda: _multiply(tensor(a), tensor(b), tensor(out)))


def _multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(torch.mm(a.float(), b.float()))


@dataclass(frozen=True)
class Arguments:
    """Unpacked kernel arguments."""

    base: tuple[int, ...]
    stride: tuple[int, ...]
    counters: tuple[int, ...]
    state: int
    steps: int
    blocks: int
    time_limit_ns: int
    rank: int
    last: int
    n: int
    k: int
    link_fs_per_byte: int
    first: bytes

    @classmethod
    def unpack(cls, data: bytes) -> Arguments:
        values = ARGUMENTS.unpack(data)
        counters = 2 * MAX_SLOTS
        rest = counters + MAX_RANKS
        return cls(values[:MAX_SLOTS], values[MAX_SLOTS:counters], values[counters:rest], *values[rest:])


def _blocks(machine: Machine, text: str, grid: Grid, values: tuple[bytes, bytes]) -> list[Iterator[bool]]:
    arguments = Arguments.unpack(values[0])
    return [_Block(machine, text, grid, arguments, values[1], index).walk() for index in range(grid.blocks)]


class _Block:
    """One block of a launch, from its tables. Yields True after a step, False while it waits."""

    def __init__(self, machine: Machine, text: str, grid: Grid, arguments: Arguments, maps: bytes, index: int) -> None:
        self.machine, self.text, self.arguments, self.maps = machine, text, arguments, maps
        row = machine.at(arguments.blocks + index * BLOCK.size, BLOCK.size)
        self.role, self.first, self.count, self.index, self.gang, *_ = BLOCK.unpack(row)

    def walk(self) -> Iterator[bool]:
        arguments, machine = self.arguments, self.machine
        calls = machine.u32(arguments.state)
        for i in range(self.first, self.first + self.count):
            kind, _, source, target, counter, value, per_call, rows, source_offset, target_offset, size, _, _ = STEP.unpack(
                machine.at(arguments.steps + i * STEP.size, STEP.size))
            if kind == KIND_COPY:
                self.copy(self.slot(source, calls) + source_offset, self.slot(target, calls) + target_offset, size)
            elif kind == KIND_SIGNAL:
                machine.add_u32(arguments.counters[source] + 4 * counter, value)
            elif kind == KIND_WAIT:
                wanted = calls * per_call + value
                while machine.u32(arguments.counters[arguments.rank] + 4 * counter) < wanted:
                    yield False
            elif kind in (KIND_RESERVE, KIND_PACE, KIND_SOURCE):
                pass  # the scale model's clock takes time alone; sources are read by the sum before them
            elif kind == KIND_SUM:
                self.add_up(i + 1, rows, self.slot(target, calls) + target_offset, size, calls)
            elif kind == KIND_MULTI_STORE:
                for base in machine.members(self.slot(target, calls)):
                    self.copy(self.slot(source, calls) + source_offset, base + target_offset, size, unit=16)
            elif kind == KIND_MULTI_SUM:
                parts = [base + source_offset for base in machine.members(self.slot(source, calls))]
                self.total(parts, self.slot(target, calls) + target_offset, size, unit=16)
            elif kind == KIND_GEMM and self.index == 0:  # the first block of a gang does the products of all
                operand = source + (calls & 1 if value & 255 == 2 else 0)  # above, how many are walked as one
                self.multiply(operand, size, source_offset, rows, self.slot(target, calls) + target_offset)
            yield True
        self.finish(calls)

    def slot(self, slot: int, calls: int) -> int:
        base = self.arguments.base[slot]
        assert base, f"slot {slot} has no address"
        return base + (self.arguments.stride[slot] if calls & 1 else 0)

    def copy(self, source: int, target: int, size: int, unit: int = 1) -> None:
        each = -(-(size // unit) // self.gang) * unit
        begin = min(size, each * self.index)
        share = min(size, begin + each) - begin
        if share:
            self.machine.at(target + begin, share)[:] = bytes(self.machine.at(source + begin, share))

    def add_up(self, first: int, sources: int, target: int, size: int, calls: int) -> None:
        """This block's share of the elements, in fp32, rounded once."""
        machine = self.machine
        unit = int(self.text.split("copy_unit = ")[1].split(";")[0])
        parts = []
        for i in range(first, first + sources):
            _, _, slot, _, _, _, _, _, offset, *_ = STEP.unpack(
                machine.at(self.arguments.steps + i * STEP.size, STEP.size))
            parts.append(self.slot(slot, calls) + offset)
        self.total(parts, target, size, unit)

    def total(self, parts: list[int], target: int, size: int, unit: int) -> None:
        machine, part, out = self.machine, self.type_named("Part"), self.type_named("Out")
        each = -(-(size // unit) // self.gang) * unit
        begin, end = min(size, each * self.index), min(size, each * (self.index + 1))
        if begin == end:
            return
        count = (end - begin) // ITEMSIZE[part]
        total = torch.zeros(1, count)
        for address in parts:
            total += machine.tensor(Matrix(address + begin, 1, count, (count, 1), part))
        to = target + begin // ITEMSIZE[part] * ITEMSIZE[out]
        machine.tensor(Matrix(to, 1, count, (count, 1), out)).copy_(total)

    def type_named(self, name: str) -> str:
        """The element type that the text of the kernel calls so."""
        return {"ts::Bf16": "bfloat16", "ts::Fp16": "float16", "ts::Fp32": "float32"}[
            self.text.split(f"using {name} = ")[1].split(";")[0]]

    def multiply(self, operand: int, shard: int, row: int, rows: int, out: int) -> None:
        arguments, machine = self.arguments, self.machine
        magic, address, columns, _, _, pitch, per_shard, item, _, _ = _MAP.unpack_from(self.maps, operand * MAP_BYTES)
        magic_b, address_b, *_ = _MAP.unpack_from(self.maps, 3 * MAP_BYTES)
        assert (magic, magic_b, columns) == (_MAGIC, _MAGIC, arguments.k)
        dtype, out_dtype = self.type_named("Element"), self.type_named("Out")
        strides = (arguments.n, 1) if "b_row_major = true" in self.text else (1, arguments.k)
        a = Matrix(address + shard * per_shard + row * pitch, rows, arguments.k, (pitch // item, 1), dtype)
        b = Matrix(address_b, arguments.k, arguments.n, strides, dtype)
        _multiply(machine.tensor(a), machine.tensor(b),
                  machine.tensor(Matrix(out, rows, arguments.n, (arguments.n, 1), out_dtype)))

    def finish(self, calls: int) -> None:
        arguments, machine = self.arguments, self.machine
        if not arguments.last:
            return
        done = machine.add_u32(arguments.state + 4, 1) + 1
        assert done <= arguments.last, "more participants than the last launch says"
        if done == arguments.last:
            machine.at(arguments.state, STATE.size)[:8] = struct.pack("<II", calls + 1, 0)
