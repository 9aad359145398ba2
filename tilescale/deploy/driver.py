"""What deployment asks of the CUDA driver, as a small protocol. Handles and addresses are plain integers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilescale.codegen.program import TensorMapSpec
from tilescale.errors import TilescaleError

MAP_BYTES = 128
MAPS = 5


class DriverError(TilescaleError):
    """A call of the CUDA driver that failed."""


@dataclass(frozen=True)
class DeviceFacts:
    """A device and its driver. `cuda`: CUDA version the driver supports, 13000 for 13.0. `driver`: its release, such as
    "580.159.04", "" where unknown. `shared_bytes`: most shared memory of a block."""

    name: str
    uuid: str
    capability: tuple[int, int]
    sms: int
    shared_bytes: int
    cuda: int
    driver: str = ""


class KernelParameters:
    """The two parameters of every kernel, by value: arguments and tensor maps. Kept, and patched between launches.

    `address` is that of the array of their addresses, which a launch takes.
    """

    def __init__(self, arguments: bytes, slots: int) -> None:
        self._arguments = (ctypes.c_ubyte * len(arguments)).from_buffer_copy(arguments)
        self._maps = (ctypes.c_ubyte * (MAPS * MAP_BYTES))()
        self._bases = (ctypes.c_uint64 * slots).from_buffer(self._arguments)
        pointers = (ctypes.addressof(self._arguments), ctypes.addressof(self._maps))
        self._pointers = (ctypes.c_void_p * 2)(*pointers)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._pointers)

    @property
    def values(self) -> tuple[bytes, bytes]:
        """The bytes of both, as a launch would take them now."""
        return bytes(self._arguments), bytes(self._maps)

    def set_base(self, slot: int, address: int) -> None:
        self._bases[slot] = address

    def set_map(self, index: int, data: bytes) -> None:
        ctypes.memmove(ctypes.addressof(self._maps) + index * MAP_BYTES, data, MAP_BYTES)


# Does something on every rank of a group, and returns what each gave; where it fails on one, every rank raises.
Agree = Callable[[Callable[[], bytes]], Sequence[bytes]]


@dataclass(frozen=True)
class Grid:
    """Blocks, threads of a block, bytes of its dynamic shared memory, and blocks of a cluster. `early`: blocks may start
    before the kernel before has ended (they wait for it themselves)."""

    blocks: int
    threads: int
    shared_bytes: int
    cluster: int = 1
    early: bool = False


class Driver(Protocol):
    """One device of one process. Every method raises DriverError with the driver's message when a call fails.

    `activate` makes the device's context current on this thread where none is; the others need a current context.
    Streams that are created do not wait for the default stream. `pinned` memory is the host's, reached by the device.
    `bind_multicast`, on all ranks together, gives an address that stands for the allocations that they pass (multicast.py).
    """

    def facts(self) -> DeviceFacts: ...
    def activate(self) -> None: ...

    # memory
    def allocate(self, size: int) -> int: ...
    def free(self, address: int) -> None: ...
    def zero(self, address: int, size: int) -> None: ...
    def upload(self, address: int, data: bytes) -> None: ...
    def download(self, address: int, size: int) -> bytes: ...
    def export_memory(self, address: int) -> bytes: ...
    def open_memory(self, handle: bytes) -> int: ...
    def close_memory(self, address: int) -> None: ...
    def bind_multicast(self, address: int, rank: int, world: int, agree: Agree) -> int: ...
    def unbind_multicast(self, address: int) -> None: ...
    def pinned(self, size: int) -> int: ...
    def free_pinned(self, address: int) -> None: ...
    def read_pinned(self, address: int, size: int) -> bytes: ...

    # binaries
    def load_module(self, image: bytes) -> int: ...
    def unload_module(self, module: int) -> None: ...
    def function(self, module: int, entry: str) -> int: ...
    def set_shared_bytes(self, function: int, size: int) -> None: ...
    def encode_map(self, spec: TensorMapSpec, address: int) -> bytes: ...

    # order and work
    def create_stream(self) -> int: ...
    def destroy_stream(self, stream: int) -> None: ...
    def create_event(self) -> int: ...
    def destroy_event(self, event: int) -> None: ...
    def record(self, event: int, stream: int) -> None: ...
    def wait(self, stream: int, event: int) -> None: ...
    def capturing(self, stream: int) -> bool: ...
    def synchronize(self, stream: int) -> None: ...
    def copy(self, target: int, source: int, size: int, stream: int) -> None: ...
    def copy_to_pinned(self, pinned: int, source: int, size: int, stream: int) -> None: ...
    def launch(self, function: int, grid: Grid, stream: int, parameters: KernelParameters) -> None: ...


@dataclass(frozen=True)
class Matrix:
    """A matrix in device memory; strides in elements. `dtype`: a name of spec/tensor.py."""

    address: int
    rows: int
    columns: int
    strides: tuple[int, int]
    dtype: str


class Library(Protocol):
    """Library products: `out` = `a` times `b` on `stream`, accumulated in fp32."""

    def multiply(self, a: Matrix, b: Matrix, out: Matrix, stream: int) -> None: ...
