"""The launches of one rank, made ready: tables uploaded, arguments packed, streams and events made, order kept."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tilescale.codegen.product import factors
from tilescale.codegen.program import Program, ProgramLaunch, Slot, TensorMapSpec
from tilescale.codegen.table import pack_arguments
from tilescale.deploy.driver import Driver, Grid, KernelParameters, Library, Matrix
from tilescale.deploy.modules import Modules
from tilescale.deploy.symmetric import Workspace
from tilescale.errors import BundleError
from tilescale.spec.declaration import Spec

_TABLE_ALIGNMENT = 64
_MAPS_KEPT = 1024

Start = Callable[[int, int], None]  # stream, parity of the call


@dataclass(frozen=True)
class _Item:
    """One launch: what it waits for, how it starts, and the event behind it where another stream waits for it."""

    stream: int
    waits: tuple[int, ...]
    start: Start
    event: int | None


class LaunchSequence:
    """What one rank enqueues in a call. `close` gives back all that making it took."""

    def __init__(
        self, spec: Spec, program: Program, workspace: Workspace, driver: Driver, modules: Modules,
        library: Library | None, time_limit_ns: int,
    ) -> None:
        self._spec, self._program, self._workspace = spec, program, workspace
        self._driver, self._modules, self._library = driver, modules, library
        self._time_limit_ns = time_limit_ns
        self._launches = {launch.name: launch for launch in program.ranks[workspace.rank]}
        self._bound: dict[str, int] = {}
        self._parameters: list[KernelParameters] = []
        self._maps: OrderedDict[tuple[TensorMapSpec, int], bytes] = OrderedDict()
        self._resources = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.push(self._resources)
            self._tables = self._upload_tables()
            self._streams = [self.make_stream() for _ in range(max(each.stream for each in self._launches.values()))]
            self._fork = self.make_event()
            self._joins = self._loose_tails()
            self._events = self._make_events()
            self._items = [self._item(launch) for launch in self._launches.values()]
            undo.pop_all()

    def make_stream(self) -> int:
        """A stream that is destroyed with the sequence."""
        stream = self._driver.create_stream()
        self._resources.callback(self._driver.destroy_stream, stream)
        return stream

    def make_event(self) -> int:
        """An event that is destroyed with the sequence."""
        event = self._driver.create_event()
        self._resources.callback(self._driver.destroy_event, event)
        return event

    @cached_property
    def alternates(self) -> bool:
        """Whether the host chooses between the buffers of even and odd calls: a copy or a library product uses one."""
        slots, stride = self._program.slots, self._workspace.stride
        for launch in self._launches.values():
            if launch.copy and (stride(slots[launch.copy.source].buffer) or stride(slots[launch.copy.target].buffer)):
                return True
            if launch.gemm and (stride(launch.gemm.buffer) or stride(launch.gemm.output)):
                return True
        return False

    def bind(self, operands: Mapping[str, int]) -> None:
        """Take the addresses of the caller's buffers into the arguments and maps of all launches."""
        fresh = {name: address for name, address in operands.items() if self._bound.get(name) != address}
        if not fresh:
            return
        program, workspace = self._program, self._workspace
        bases = [(i, fresh[slot.buffer]) for i, slot in enumerate(program.slots)
                 if slot.buffer in fresh and slot.buffer not in workspace]
        maps = [(i, self._map(spec, fresh[spec.buffer])) for i, spec in enumerate(program.maps)
                if spec.buffer in fresh and spec.buffer not in workspace]
        for parameters in self._parameters:
            for index, address in bases:
                parameters.set_base(index, address)
            for index, data in maps:
                parameters.set_map(index, data)
        self._bound = dict(operands)

    def enqueue(self, stream: int, parity: int) -> None:
        """Enqueue a call: `stream` stands for stream 0, and the call begins and ends on it."""
        driver, streams = self._driver, (stream, *self._streams)
        if self._streams:
            driver.record(self._fork, stream)
            for other in self._streams:
                driver.wait(other, self._fork)
        for item in self._items:
            on = streams[item.stream]
            for event in item.waits:
                driver.wait(on, event)
            item.start(on, parity)
            if item.event is not None:
                driver.record(item.event, on)
        for name in self._joins:
            driver.wait(stream, self._events[name])

    def close(self) -> None:
        self._resources.close()
        self._parameters.clear()
        self._maps.clear()

    # -- order ---------------------------------------------------------------------------------------------------------
    def _loose_tails(self) -> tuple[str, ...]:
        """Last launches of the other streams that no launch on stream 0 follows: the end of the call waits for them."""
        tails = {launch.stream: launch.name for launch in self._launches.values() if launch.stream != 0}
        followed = {name for launch in self._launches.values() if launch.stream == 0 for name in launch.after}
        return tuple(name for _, name in sorted(tails.items()) if name not in followed)

    def _make_events(self) -> dict[str, int]:
        """An event behind every launch that another stream waits for."""
        awaited = set(self._joins)
        for launch in self._launches.values():
            awaited.update(name for name in launch.after if self._launches[name].stream != launch.stream)
        return {name: self.make_event() for name in self._launches if name in awaited}

    def _item(self, launch: ProgramLaunch) -> _Item:
        waits = tuple(self._events[name] for name in launch.after if self._launches[name].stream != launch.stream)
        return _Item(launch.stream, waits, self._starter(launch), self._events.get(launch.name))

    # -- what a launch does --------------------------------------------------------------------------------------------
    def _starter(self, launch: ProgramLaunch) -> Start:
        if launch.kernel is not None:
            return self._kernel(launch, launch.kernel)
        if launch.copy is not None:
            return self._copy(launch)
        return self._product(launch)

    def _kernel(self, launch: ProgramLaunch, kernel: int) -> Start:
        program, driver = self._program, self._driver
        function = self._modules.function(program.kernels[kernel], launch.shared_bytes)
        grid = Grid(launch.blocks, launch.threads, launch.shared_bytes, launch.cluster, launch.early)
        parameters = self._pack(launch)
        self._parameters.append(parameters)
        return lambda stream, parity: driver.launch(function, grid, stream, parameters)

    def _pack(self, launch: ProgramLaunch) -> KernelParameters:
        """Arguments and maps with everything but the caller's addresses."""
        program, workspace = self._program, self._workspace
        arguments = pack_arguments(
            [workspace.address(slot) if slot.buffer in workspace else 0 for slot in program.slots],
            [workspace.stride(slot.buffer) for slot in program.slots], workspace.counters, state=workspace.state,
            steps=self._tables.get(launch.steps, 0), blocks=self._tables.get(launch.block_rows, 0),
            time_limit_ns=self._time_limit_ns, rank=workspace.rank, last=launch.participants, n=program.n, k=program.k,
            link_fs_per_byte=program.link_fs_per_byte, first=launch.first_rows)
        parameters = KernelParameters(arguments, len(program.slots))
        for index, spec in enumerate(program.maps):
            if spec.buffer in workspace:
                address = workspace.address(Slot(spec.buffer, -1)) + spec.version * workspace.stride(spec.buffer)
                parameters.set_map(index, self._map(spec, address))
        return parameters

    def _copy(self, launch: ProgramLaunch) -> Start:
        copy, slots, driver = launch.copy, self._program.slots, self._driver
        assert copy is not None

        def start(stream: int, parity: int) -> None:
            target = self._address(slots[copy.target], parity) + copy.target_offset
            source = self._address(slots[copy.source], parity) + copy.source_offset
            driver.copy(target, source, copy.size, stream)

        return start

    def _product(self, launch: ProgramLaunch) -> Start:
        call, library = launch.gemm, self._library
        assert call is not None
        if library is None:
            raise BundleError("library products need a library", launch.name, "give one, such as TorchLibrary()")
        matrices = factors(self._spec, call)

        def start(stream: int, parity: int) -> None:
            a, b, out = (Matrix(self._address(Slot(f.buffer, -1), parity) + f.offset, f.rows, f.columns, f.strides, f.dtype)
                         for f in matrices)
            library.multiply(a, b, out, stream)

        return start

    def _address(self, slot: Slot, parity: int) -> int:
        if slot.buffer in self._workspace:
            return self._workspace.address(slot) + parity * self._workspace.stride(slot.buffer)
        return self._bound[slot.buffer]

    def _map(self, spec: TensorMapSpec, address: int) -> bytes:
        """A tensor map, kept for the next call that has the tensor at the same place."""
        key = (spec, address)
        if key in self._maps:
            self._maps.move_to_end(key)
            return self._maps[key]
        self._maps[key] = self._driver.encode_map(spec, address)
        if len(self._maps) > _MAPS_KEPT:
            self._maps.popitem(last=False)
        return self._maps[key]

    def _upload_tables(self) -> dict[str, int]:
        """One allocation with every table of this rank; addresses by the text of the table."""
        offsets: dict[str, int] = {}
        data = bytearray()
        for launch in self._launches.values():
            for table in (launch.steps, launch.block_rows):
                if table and table not in offsets:
                    data += bytes(-len(data) % _TABLE_ALIGNMENT)
                    offsets[table] = len(data)
                    data += bytes.fromhex(table)
        if not data:
            return {}
        base = self._driver.allocate(len(data))
        self._resources.callback(self._driver.free, base)
        self._driver.upload(base, bytes(data))
        return {table: base + offset for table, offset in offsets.items()}
