"""The program: kernel texts, and for every rank the launches with their tables. What a bundle holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilescale import canon
from tilescale.codegen.table import STATE, first_rows

ALIGNMENT = 1024
STATE_BYTES = 256
COUNTER_BYTES = 4
EVERY_RANK = -2


@dataclass(frozen=True)
class Kernel:
    """One binary to compile: its `text`, `entry` point and architecture."""

    entry: str
    text: str
    arch: str

    @property
    def digest(self) -> str:
        return canon.digest([self.entry, self.text, self.arch])


@dataclass(frozen=True)
class Slot:
    """A pointer a kernel is given: `buffer` of `rank`; rank -1 is the own one, EVERY_RANK a multicast address that stands
    for those of all ranks."""

    buffer: str
    rank: int


@dataclass(frozen=True)
class Placed:
    """A workspace buffer: bytes from the start of a rank's workspace, and from one version to the next (0: one)."""

    buffer: str
    offset: int
    stride: int


@dataclass(frozen=True)
class TensorMapSpec:
    """A TMA descriptor to make: `version` of `buffer`, sizes innermost first; strides in bytes without the innermost."""

    buffer: str
    version: int
    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element: str


@dataclass(frozen=True)
class CopyCall:
    """A copy by a copy engine: slots, offsets and bytes."""

    source: int
    source_offset: int
    target: int
    target_offset: int
    size: int


@dataclass(frozen=True)
class GemmCall:
    """A library product: `m` rows from `row` of `buffer` ("a" or "gather") times b, to `output_row` of `output` (rows of n
    elements of `output_dtype`). Where a contraction is gathered, `buffer` holds the operand that was; see product.py."""

    buffer: str
    row: int
    output_row: int
    m: int
    n: int
    k: int
    output: str
    output_dtype: str


@dataclass(frozen=True)
class ProgramLaunch:
    """One launch of one rank; exactly one of `kernel` (index into Program.kernels), `copy` and `gemm` is set.

    `first_step`: number of its first step in the plan of the rank. `participants`: who must finish before the call is
    complete, 0 in launches that are not the last. `cluster`: blocks of a cluster. `early`: its blocks
    may start before the launch before it has ended, since they wait for that themselves.
    """

    name: str
    stream: int
    after: tuple[str, ...]
    first_step: int
    kernel: int | None = None
    blocks: int = 0
    threads: int = 0
    shared_bytes: int = 0
    steps: str = ""
    block_rows: str = ""
    participants: int = 0
    cluster: int = 1
    early: bool = False
    copy: CopyCall | None = None
    gemm: GemmCall | None = None

    @property
    def first_rows(self) -> bytes:
        """What of the tables comes with the arguments."""
        return first_rows(bytes.fromhex(self.steps), bytes.fromhex(self.block_rows), self.early)


@dataclass(frozen=True)
class Program:
    """Everything to launch a schedule. Tables are hex text, so that the value survives JSON.

    `slots`: the pointers in order. `placed`, `counters`: layout of a rank's workspace (see `workspace_bytes`).
    `maps`: A own, A gathered of even and odd calls, B, the output; empty where nothing generated multiplies.
    `link_fs_per_byte`: in the scale model, how long a byte takes a link, in femtoseconds; else 0.
    """

    op: str
    world: int
    kernels: tuple[Kernel, ...]
    slots: tuple[Slot, ...]
    placed: tuple[Placed, ...]
    counters: int
    counters_offset: int
    workspace_bytes: int
    maps: tuple[TensorMapSpec, ...]
    n: int
    k: int
    ranks: tuple[tuple[ProgramLaunch, ...], ...]
    link_fs_per_byte: int = 0

    @property
    def launches(self) -> tuple[ProgramLaunch, ...]:
        """Those of rank 0; other ranks differ in their tables."""
        return self.ranks[0]

    @cached_property
    def binary_digest(self) -> str:
        """Of the kernel texts and their architecture."""
        return canon.digest(sorted(kernel.digest for kernel in self.kernels))

    @cached_property
    def table_digest(self) -> str:
        """Of everything but the texts."""
        return canon.digest([self.op, self.slots, self.placed, self.counters, self.maps, self.n, self.k, self.ranks,
                             self.link_fs_per_byte])

    @property
    def digest(self) -> str:
        return canon.digest([self.binary_digest, self.table_digest])


def aligned(size: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


assert STATE.size <= STATE_BYTES
