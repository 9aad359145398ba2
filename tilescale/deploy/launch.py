"""A program made ready on one rank: binaries loaded, tables uploaded, arguments packed; then called any number of times.

Works on addresses and stream handles, so that torch is one caller among others. What a call enqueues is what the
program says: launches in its order, each on its stream, behind those it names.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tilescale.codegen.program import Kernel, Program, ProgramLaunch, Slot, TensorMapSpec
from tilescale.codegen.table import STATE, Failure, pack_arguments, unpack_state
from tilescale.deploy.driver import Driver, Grid, KernelParameters, Library, Matrix
from tilescale.deploy.symmetric import Exchange, Workspace
from tilescale.errors import BundleError, TilescaleError
from tilescale.spec.declaration import Spec

OPERANDS = ("a", "b")  # buffers of the caller, in the order of Spec.inputs
OUTPUT = "out"
TIME_LIMIT_S = 60.0
_TABLE_ALIGNMENT = 64
_MAPS_KEPT = 1024


class OperationFailed(TilescaleError):
    """A call that did not complete on this rank. `failure` says which wait ran out of time, where one did."""

    def __init__(self, rule: str, actual: object = None, remedy: str = "", failure: Failure | None = None) -> None:
        super().__init__(rule, actual, remedy)
        self.failure = failure


class Modules:
    """Loaded binaries by kernel digest, shared by the operations of a process on one device."""

    def __init__(self, driver: Driver, binaries: Mapping[str, bytes]) -> None:
        self._driver, self._binaries = driver, dict(binaries)
        self._loaded: dict[str, tuple[int, int]] = {}
        self._shared: dict[int, int] = {}

    def function(self, kernel: Kernel, shared_bytes: int) -> int:
        """The kernel, allowed to use that much dynamic shared memory. Raises BundleError without its binary."""
        digest = kernel.digest
        if digest not in self._loaded:
            if digest not in self._binaries:
                raise BundleError("every kernel of an operation is in the bundle", digest, "export the bundle again")
            module = self._driver.load_module(self._binaries[digest])
            self._loaded[digest] = (module, self._driver.function(module, kernel.entry))
        function = self._loaded[digest][1]
        if shared_bytes > self._shared.get(function, 0):
            self._driver.set_shared_bytes(function, shared_bytes)
            self._shared[function] = shared_bytes
        return function

    def close(self) -> None:
        for module, _ in self._loaded.values():
            self._driver.unload_module(module)
        self._loaded.clear()
        self._shared.clear()


@dataclass(frozen=True)
class _Item:
    """One launch, ready: what it waits for, how it starts (stream, parity of the call), and the event behind it."""

    stream: int
    waits: tuple[int, ...]
    start: Callable[[int, int], None]
    event: int | None


class PreparedOperation:
    """A program on one rank of a group. Making, renewing and closing one is collective, a call is not.

    `binaries` (by kernel digest) or `modules` hold the kernels; `library` does the products of library calls.
    `time_limit_s` bounds every wait on the device. With `watch`, the state of each call is copied to the host behind it,
    and a failure raises OperationFailed in a later call; without it (or in a replayed graph) `check` finds it.

    Calls of one operation run one after the other, on whatever streams. Programs that alternate between two buffers by
    host-recorded copies or library calls (`alternates`) can be captured in a graph only in pairs: see `recording`.
    """

    def __init__(
        self,
        spec: Spec,
        program: Program,
        rank: int,
        driver: Driver,
        exchange: Exchange,
        *,
        binaries: Mapping[str, bytes] | None = None,
        modules: Modules | None = None,
        library: Library | None = None,
        time_limit_s: float = TIME_LIMIT_S,
        watch: bool = True,
    ) -> None:
        if not 0 <= rank < program.world:
            raise BundleError(f"a rank of the program is in [0, {program.world})", rank, "use the rank inside the group")
        self.spec, self.program, self.rank = spec, program, rank
        self._driver, self._exchange, self._library = driver, exchange, library
        self._owns_modules = modules is None
        self._modules = modules or Modules(driver, binaries or {})
        self._time_limit_ns = int(time_limit_s * 1e9)
        self._watching = watch
        self._launches = program.ranks[rank]
        self._maps: OrderedDict[tuple[TensorMapSpec, int], bytes] = OrderedDict()
        self._symmetric = {
            name: _local_bytes(spec, index, rank)
            for index, name in enumerate(OPERANDS[: len(spec.inputs)])
            if any(slot.buffer == name and slot.rank != -1 for slot in program.slots)
        }
        self._prepare()

    # -- making it -----------------------------------------------------------------------------------------------------
    def _prepare(self) -> None:
        driver, launches = self._driver, self._launches
        driver.activate()
        self.calls = 0
        self._condemned: OperationFailed | None = None
        self._recorded = self._recording = False
        self._bound: dict[str, int] = {}
        self._resources = contextlib.ExitStack()
        self.workspace = Workspace(self.program, self.rank, driver, self._exchange, self._symmetric)
        with contextlib.ExitStack() as undo:
            undo.callback(self._resources.close)
            self._parameters: list[KernelParameters] = []
            self._tables = self._upload_tables()
            self._streams = [self._stream() for _ in range(max(launch.stream for launch in launches))]
            self._fork, self._done = self._event(), self._event()
            if self._watching:
                self._watch_stream = self._stream()
                self._watched = driver.pinned(STATE.size)
                self._resources.callback(driver.free_pinned, self._watched)
            self._items, self._joins = self._make_items()
            undo.pop_all()

    def _stream(self) -> int:
        stream = self._driver.create_stream()
        self._resources.callback(self._driver.destroy_stream, stream)
        return stream

    def _event(self) -> int:
        event = self._driver.create_event()
        self._resources.callback(self._driver.destroy_event, event)
        return event

    def _upload_tables(self) -> dict[str, int]:
        """One allocation with every table of this rank; returns addresses by table text."""
        offsets: dict[str, int] = {}
        data = bytearray()
        for launch in self._launches:
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

    def _make_items(self) -> tuple[list[_Item], list[int]]:
        """The launches, and events that stream 0 waits for at the end: of streams that nothing on it follows."""
        by_name = {launch.name: launch for launch in self._launches}
        events: dict[str, int] = {}
        joined: set[str] = set()
        for launch in self._launches:
            for name in launch.after:
                if by_name[name].stream != launch.stream and name not in events:
                    events[name] = self._event()
                if launch.stream == 0:
                    joined.add(name)
        tails = {launch.stream: launch.name for launch in self._launches if launch.stream != 0}
        loose = [name for _, name in sorted(tails.items()) if name not in joined]
        for name in loose:
            events.setdefault(name, self._event())
        items = [self._make_item(launch, by_name, events) for launch in self._launches]
        return items, [events[name] for name in loose]

    def _make_item(
        self, launch: ProgramLaunch, by_name: Mapping[str, ProgramLaunch], events: Mapping[str, int]
    ) -> _Item:
        waits = tuple(events[name] for name in launch.after if by_name[name].stream != launch.stream)
        if launch.kernel is not None:
            start = self._kernel_starter(launch)
        elif launch.copy is not None:
            start = self._copy_starter(launch)
        else:
            start = self._product_starter(launch)
        return _Item(launch.stream, waits, start, events.get(launch.name))

    def _kernel_starter(self, launch: ProgramLaunch) -> Callable[[int, int], None]:
        program, workspace, slots = self.program, self.workspace, self.program.slots
        assert launch.kernel is not None
        function = self._modules.function(program.kernels[launch.kernel], launch.shared_bytes)
        parameters = KernelParameters(pack_arguments(
            [workspace.address(slot) if slot.buffer in workspace else 0 for slot in slots],
            [workspace.stride(slot.buffer) for slot in slots], workspace.counters, state=workspace.state,
            steps=self._tables.get(launch.steps, 0), blocks=self._tables.get(launch.block_rows, 0),
            time_limit_ns=self._time_limit_ns, rank=self.rank, last=launch.participants, n=program.n, k=program.k),
            len(slots))
        for index, spec in enumerate(program.maps):
            if spec.buffer in workspace:
                address = workspace.address(Slot(spec.buffer, -1)) + spec.version * workspace.stride(spec.buffer)
                parameters.set_map(index, self._map(spec, address))
        self._parameters.append(parameters)
        grid, driver = Grid(launch.blocks, launch.threads, launch.shared_bytes), self._driver
        return lambda stream, parity: driver.launch(function, grid, stream, parameters)

    def _copy_starter(self, launch: ProgramLaunch) -> Callable[[int, int], None]:
        copy, slots = launch.copy, self.program.slots
        assert copy is not None
        source, target, driver = slots[copy.source], slots[copy.target], self._driver

        def start(stream: int, parity: int) -> None:
            driver.copy(self._address(target, parity) + copy.target_offset,
                        self._address(source, parity) + copy.source_offset, copy.size, stream)

        return start

    def _product_starter(self, launch: ProgramLaunch) -> Callable[[int, int], None]:
        call, library = launch.gemm, self._library
        assert call is not None
        if library is None:
            raise BundleError("library products need a library", launch.name, "give one, such as TorchLibrary()")
        a, b, out = self.spec.inputs[0], self.spec.inputs[1], self.spec.output
        strides = (1, call.k) if b.order == "col" else (call.n, 1)

        def start(stream: int, parity: int) -> None:
            source = self._address(Slot(call.buffer, -1), parity) + call.row * call.k * a.itemsize
            target = self._address(Slot(OUTPUT, -1), parity) + call.output_row * call.n * out.itemsize
            library.multiply(
                Matrix(source, call.m, call.k, (call.k, 1), a.dtype),
                Matrix(self._address(Slot("b", -1), parity), call.k, call.n, strides, b.dtype),
                Matrix(target, call.m, call.n, (call.n, 1), out.dtype), stream)

        return start

    def _address(self, slot: Slot, parity: int) -> int:
        if slot.buffer in self._bound:
            return self._bound[slot.buffer]
        # A buffer that peers reach has a slot a rank; of the own one the workspace knows the address by -1 too.
        return self.workspace.address(slot) + parity * self.workspace.stride(slot.buffer)

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

    # -- calling it ----------------------------------------------------------------------------------------------------
    @property
    def alternates(self) -> bool:
        """Whether the host chooses between the buffers of even and odd calls, so that it must know which call it is."""
        slots, stride = self.program.slots, self.workspace.stride
        for launch in self._launches:
            if launch.copy and (stride(slots[launch.copy.source].buffer) or stride(slots[launch.copy.target].buffer)):
                return True
            if launch.gemm and stride(launch.gemm.buffer):
                return True
        return False

    def operand(self, name: str) -> int | None:
        """Where a symmetric operand must lie, None where the caller may choose."""
        return self.workspace.address(Slot(name, -1)) if name in self._symmetric else None

    def __call__(self, operands: Mapping[str, int], stream: int) -> None:
        """Enqueue one call on `stream`; `operands` are the addresses of the caller's buffers "a", "b" (where there is a
        product) and "out". Raises before anything is enqueued where a call cannot be made."""
        driver = self._driver
        driver.activate()
        capturing = driver.capturing(stream)
        self._refuse_unless_ready(capturing)
        self._bind(operands)
        if not capturing and self.calls:
            driver.wait(stream, self._done)  # the call before may be on another stream
        try:
            self._enqueue(stream)
            if not capturing:
                self._conclude(stream)
        except TilescaleError as error:
            self._condemned = OperationFailed("a call is enqueued whole", str(error), "renew the operation on all ranks")
            raise
        self.calls += 1

    def _enqueue(self, stream: int) -> None:
        driver, parity = self._driver, self.calls & 1
        streams = (stream, *self._streams)
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
        for event in self._joins:
            driver.wait(stream, event)

    def _conclude(self, stream: int) -> None:
        """Mark the end of a call, and have its state copied to where the next one looks."""
        self._driver.record(self._done, stream)
        if self._watching:
            self._driver.wait(self._watch_stream, self._done)
            self._driver.copy_to_pinned(self._watched, self.workspace.state, STATE.size, self._watch_stream)

    def _bind(self, operands: Mapping[str, int]) -> None:
        """Take the caller's addresses into the arguments and maps of all launches."""
        if operands == self._bound:
            return
        for name, place in ((name, self.operand(name)) for name in self._symmetric):
            if operands[name] != place:
                raise BundleError(f"operand {name} lies in the operation's symmetric memory", hex(operands[name]),
                                  f"write it to the tensor that symmetric_input() gives, at {place:#x}")
        fresh = {name: address for name, address in operands.items() if self._bound.get(name) != address}
        slots = [(i, fresh[slot.buffer]) for i, slot in enumerate(self.program.slots)
                 if slot.buffer in fresh and slot.buffer not in self.workspace]
        maps = [(i, self._map(spec, fresh[spec.buffer])) for i, spec in enumerate(self.program.maps)
                if spec.buffer in fresh]
        for parameters in self._parameters:
            for index, address in slots:
                parameters.set_base(index, address)
            for index, data in maps:
                parameters.set_map(index, data)
        self._bound = dict(operands)

    def _refuse_unless_ready(self, capturing: bool) -> None:
        if self._condemned is None and self._watching:
            self._judge(self._driver.read_pinned(self._watched, STATE.size))
        if self._condemned is not None:
            raise self._condemned
        if not self.alternates:
            return
        if capturing and not self._recording:
            raise BundleError(
                "a graph of this schedule holds an even number of calls, since the host alternates between two buffers",
                "a call captured alone", "capture a pair inside `with operation.recording():`, or export a fused schedule")
        if self._recorded and not capturing:
            raise BundleError(
                "calls of this operation are counted by a recorded graph", "a call outside it",
                "replay the graph, or drop it and call forget_recordings()")

    # -- graphs, failures, the end -------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Around the capture of a graph with an even number of calls. Needed for schedules that alternate; for others
        a graph may hold any number of calls, and this changes nothing."""
        before, self._recording = self.calls, True
        try:
            yield
        finally:
            recorded, self._recording = self.calls - before, False
            self.calls = before  # nothing has run yet, and a replay leaves the parity as it is
        if self.alternates:
            if recorded % 2:
                raise BundleError("a graph of this schedule holds an even number of calls", recorded, "record one more")
            self._recorded = self._recorded or recorded > 0

    def forget_recordings(self) -> None:
        """Say that no graph of this operation will be replayed any more."""
        self._recorded = False

    def check(self, stream: int) -> None:
        """Wait for `stream`, and raise OperationFailed where a call has failed on this rank. The workspace is of no use
        then: results since the last good check may be wrong, and `renew` (on all ranks) makes a new one."""
        self._driver.activate()
        self._driver.synchronize(stream)
        self._judge(self.workspace.read_state())
        if self._condemned is not None:
            raise self._condemned

    def _judge(self, state: bytes) -> None:
        _, failure = unpack_state(state)
        if failure is not None and self._condemned is None:
            step = next((launch.name for launch in reversed(self._launches) if launch.first_step <= failure.step), "")
            self._condemned = OperationFailed(
                f"ranks meet within {self._time_limit_ns / 1e9:g} s", f"{failure} (launch {step})",
                "find out what holds up the peer; then renew the operation on all ranks", failure)

    @property
    def condemned(self) -> bool:
        return self._condemned is not None

    def renew(self) -> None:
        """A new workspace with zeroed counters, collectively: after a failure on any rank."""
        self._teardown()
        self._prepare()

    def close(self) -> None:
        """Give everything back, collectively."""
        self._teardown()
        if self._owns_modules:
            self._modules.close()

    def _teardown(self) -> None:
        self._resources.close()
        self._parameters.clear()
        self._maps.clear()
        self.workspace.close()


def _local_bytes(spec: Spec, index: int, rank: int) -> int:
    tensor = spec.inputs[index]
    size = tensor.itemsize
    for length in tensor.local_shape(rank, spec.world):
        size *= length
    return size
