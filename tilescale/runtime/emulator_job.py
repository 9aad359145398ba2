"""What the emulator is asked to run: memories and a graph of launches, as picklable values.

Memory addresses are chosen here, the same in every process, so that arguments can be packed before anything is mapped
and a job behaves alike wherever it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ADVERSARIES = ("lazy", "random", "eager")
MEMORY_KINDS = ("data", "counters", "control")
FORMATS = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2")
NO_STEP = 0xFFFFFFFF


@dataclass(frozen=True)
class Memory:
    """`size` bytes of `rank` at `address`. `index`: its number in the job.

    Accesses to "data" are logged by bytes, to "counters" (one every `counter_stride` bytes) as signals and waits, to
    "control" (tables, state) not at all. The first bytes hold `data`; the others are poison (0xFF), and reading them is
    an error unless `initialised` or written before.
    """

    index: int
    rank: int
    name: str
    kind: str
    address: int
    size: int
    initialised: bool = False
    counter_stride: int = 4
    data: bytes = b""


@dataclass(frozen=True)
class Multicast:
    """`size` bytes at `address` that stand for the bytes at the addresses of all `members`, one a rank."""

    address: int
    size: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Kernel:
    """A launch of `entry` from `library` (see build_candidate), with `arguments` and `maps` by value.

    `cluster`: blocks that start together and see each other's shared memory.
    """

    rank: int
    name: str
    call: int
    after: tuple[int, ...]
    library: Path
    entry: str
    arguments: bytes
    maps: bytes
    blocks: int
    threads: int
    shared_bytes: int
    cluster: int = 1


@dataclass(frozen=True)
class CopyEngine:
    """A copy of `size` bytes by a copy engine. Addresses of global memory; logged under `step`."""

    rank: int
    name: str
    call: int
    after: tuple[int, ...]
    step: int
    target: int
    source: int
    size: int


@dataclass(frozen=True)
class LibraryGemm:
    """out (m x n) = a (m x k) b at one moment, fp32 sums rounded once. b is n x k with `b_transposed`, a likewise."""

    rank: int
    name: str
    call: int
    after: tuple[int, ...]
    step: int
    a: int
    b: int
    out: int
    m: int
    n: int
    k: int
    in_format: str
    out_format: str
    b_transposed: bool
    a_transposed: bool = False


@dataclass(frozen=True)
class CallerWrites:
    """The caller writes `data` at `address`, between its calls."""

    rank: int
    name: str
    call: int
    after: tuple[int, ...]
    address: int
    data: bytes


@dataclass(frozen=True)
class CallerReads:
    """The caller reads `size` bytes at `address`; RunReport.seen holds them."""

    rank: int
    name: str
    call: int
    after: tuple[int, ...]
    address: int
    size: int


Node = Kernel | CopyEngine | LibraryGemm | CallerWrites | CallerReads


@dataclass(frozen=True)
class Job:
    """One run. The same job gives the same report, wherever it runs.

    `adversary`: "lazy" (asynchronous work happens only when nothing else can run), "random" or "eager" (at once).
    `sm_share`: blocks of a rank that are resident together. `expire`: where nothing can run, waits for counters return
    as if their time were over, so that the drain path runs; otherwise it is a deadlock. `late_rank`: a rank that runs only
    when no other can; -1: none.
    """

    seed: int
    adversary: str
    sm_share: int
    step_limit: int
    expire: bool
    memories: tuple[Memory, ...]
    nodes: tuple[Node, ...]
    late_rank: int = -1
    multicasts: tuple[Multicast, ...] = ()
