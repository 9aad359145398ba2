"""The plan: what every rank does, as one frozen value that is proved, simulated, emitted and executed.

A rank runs *launches* on streams. A launch holds *roles*; a role is a gang of blocks (or a copy engine, or a library
call) that walks one list of *steps*. Steps name regions of buffers, and counters that only grow. Waits look at a
counter of the own rank; signals may go to any rank. All values and offsets are those of one call: counters go on
counting over calls, and a buffer with two versions is addressed by the parity of the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from tilescale import canon

PACKET_BYTES = 8  # of data in a packet
PACKET_COST = 2  # memory that a packet takes, over its data


@dataclass(frozen=True)
class Buffer:
    """One buffer that every rank has, `size` bytes a version.

    `role`: "input" (the caller writes it before every call), "output" (the caller reads it after every call) or
    "workspace". `peer_visible` buffers may appear in regions of other ranks. With `versions` 2, odd and even calls use
    different halves. `zeroed`: all zeros when the workspace is made. `grid`: where regions have loops, the row-major shape
    that they are boxes of, outermost dimension first, the innermost in bytes; () for plain bytes. `rank_grids`: those of
    every rank, where they differ; `grid` is then the largest. `packets`: every PACKET_BYTES of it lie in a packet, whose
    marks say which call wrote them; sizes and offsets count the data alone, which take PACKET_COST times as much memory.
    """

    name: str
    role: str
    size: int
    peer_visible: bool = False
    versions: int = 1
    zeroed: bool = False
    grid: tuple[int, ...] = ()
    rank_grids: tuple[tuple[int, ...], ...] = ()
    packets: bool = False

    @property
    def memory(self) -> int:
        """Bytes of memory that a version takes."""
        return self.size * PACKET_COST if self.packets else self.size


@dataclass(frozen=True)
class Region:
    """`size` bytes from `offset` in the current version of `buffer` of `rank`.

    Contiguous without `loops`; else rows of equal size, one for every index of the loops, which are (count, pitch) from the
    outermost to the innermost: index i of a loop stands i * pitch bytes further. `end` is behind the last byte.
    """

    buffer: str
    rank: int
    offset: int
    size: int
    loops: tuple[tuple[int, int], ...] = ()

    @property
    def row(self) -> int:
        """Contiguous bytes."""
        return self.size // prod(count for count, _ in self.loops) if self.loops else self.size

    @property
    def end(self) -> int:
        if not self.loops:
            return self.offset + self.size
        return self.offset + self.row + sum((count - 1) * pitch for count, pitch in self.loops)


@dataclass(frozen=True)
class Copy:
    """Copy `src` to `dst` (equal sizes), shared evenly by the blocks of the role; complete when the step ends.

    Both have loops of the same counts, or none: rows are taken in the order of the loops, so a copy may transpose.
    With a peer's buffer as `dst` it is a put, as `src` a get.
    """

    src: Region
    dst: Region

    def kind(self, rank: int) -> str:
        """"put", "get" or "copy", as seen from `rank`."""
        return "put" if self.dst.rank != rank else "get" if self.src.rank != rank else "copy"


@dataclass(frozen=True)
class Reduce:
    """Add the elements of `src` to those of `dst` (equal sizes), shared like a Copy. Additions commute: two of them to
    the same bytes need no order.
    """

    src: Region
    dst: Region
    element: str = "float32"


@dataclass(frozen=True)
class Clear:
    """Fill `dst` with zeros, shared like a Copy."""

    dst: Region


@dataclass(frozen=True)
class Signal:
    """Every block of the role adds `value` to `counter` of `rank`, after all its earlier steps are visible there."""

    rank: int
    counter: int
    value: int = 1


@dataclass(frozen=True)
class Wait:
    """Every block of the role waits until `counter` of its own rank has grown by `value` in this call."""

    counter: int
    value: int


@dataclass(frozen=True)
class Gemm:
    """`out` (m x n) = `a` (m x k) times `b` (k x n); the tiles are shared by the blocks of the role.

    `a` and `out` are whole rows of their buffers; `b` is the whole local operand. `out` may be a peer's. `then`: epilogues
    applied before rounding, which read `extras`: all of an operand, or the rows of it that `out` has.
    """

    a: Region
    b: Region
    out: Region
    m: int
    n: int
    k: int
    extras: tuple[Region, ...] = ()
    then: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sum:
    """`dst` = the sum of `srcs` in their order, accumulated in float32 and rounded once; shared like a Copy.

    `element`: type of the sources, `out`: of the destination. All regions hold equally many elements. `carried`: type of
    the first source where that is a sum on its way from rank to rank, "" where all sources are parts. A sum that lacks the
    parts of some ranks is float32: it is rounded when it is complete. `then`
    and `extras`: as of a Gemm.
    """

    srcs: tuple[Region, ...]
    dst: Region
    element: str = "float32"
    out: str = "float32"
    extras: tuple[Region, ...] = ()
    then: tuple[str, ...] = ()
    carried: str = ""

    @property
    def targets(self) -> tuple[Region, ...]:
        """All that it writes."""
        return (self.dst,)


@dataclass(frozen=True)
class MultimemStore(Copy):
    """A Copy to one range of a buffer of every rank, by stores to a multicast address: `dst` is that of the own rank,
    `others` those of its peers. The bytes leave the rank once; a switch hands them on."""

    others: tuple[Region, ...] = ()

    @property
    def targets(self) -> tuple[Region, ...]:
        return (self.dst, *self.others)


@dataclass(frozen=True)
class PutPackets(Copy):
    """A Copy to buffers of packets of peers, `dst` and `others`, which all get the same. Each packet is stored at once,
    with the mark of the call: it is its own signal, and orders nothing but its own bytes. What a block sends is there when
    its packets are, whatever other blocks do."""

    others: tuple[Region, ...] = ()

    @property
    def targets(self) -> tuple[Region, ...]:
        return (self.dst, *self.others)


@dataclass(frozen=True)
class SumPackets(Sum):
    """A Sum of which sources lie in buffers of packets: each block waits for the packets of its share of these, no others,
    until they bear the mark of the call. Blocks share a part as those of a PutPackets of as many blocks do. `others`:
    where at peers the sum goes as packets, too."""

    others: tuple[Region, ...] = ()

    @property
    def targets(self) -> tuple[Region, ...]:
        return (self.dst, *self.others)


@dataclass(frozen=True)
class SumAside(Sum):
    """A Sum whose epilogues hand out more than its result: `aside`, as many bytes at the same place of another buffer of
    the own rank, rounded on its own."""

    aside: tuple[Region, ...] = ()

    @property
    def targets(self) -> tuple[Region, ...]:
        return (self.dst, *self.aside)


@dataclass(frozen=True)
class GetPackets(Copy):
    """A Copy out of a buffer of packets, which each block awaits as a SumPackets does."""


@dataclass(frozen=True)
class MultimemReduce(Sum):
    """A Sum of one range of a buffer of every rank, read through a multicast address: a switch adds up, in no stated order,
    at float32's precision, and rounds once to `element`. So `out` is `element`, unless that is float32."""


@dataclass(frozen=True)
class Contract:
    """Adds `a` (m x k) times `b` (k x n) to the running sums of `out` (m x n), for a segment of the contraction.

    The operand number `gathered` (0: a) is that segment alone, k rows of the operand of Goal; the other one is the whole
    local operand, of which the segment begins at index `at` of the contraction. With `gathered` 2, of block matrices, both
    are segments. The steps of a role from one that is `first` to the next that is `last` are a group, between which it only
    waits: blocks keep the sums of a tile in registers and walk the group tile by tile, so the last one says when all of
    `out` is stored, rounded once.
    """

    a: Region
    b: Region
    out: Region
    m: int
    n: int
    k: int
    at: int
    gathered: int
    first: bool = False
    last: bool = False

    @property
    def segment(self) -> Region:
        return self.b if self.gathered == 1 else self.a

    @property
    def local(self) -> Region:
        return self.a if self.gathered else self.b

    @property
    def width(self) -> int:
        """Elements of the gathered operand at an index of the contraction."""
        return self.n if self.gathered == 1 else self.m


@dataclass(frozen=True)
class Pass(Contract):
    """A Contract of block matrices that is a product of its own: the sums of all tiles, float32, lie in `sums` behind it,
    where the next Pass of the role reads them, each block what it has left itself. The one that is `first` reads none; the
    one that is `last` stores `out` and leaves none. Between passes a role may signal, too."""

    sums: tuple[Region, ...] = ()


@dataclass(frozen=True)
class Pieces:
    """Of a product whose tiles the blocks of a role share along the contraction (stream-K): the sums of those pieces of
    tiles that end a tile which another block has begun, left in `parts` in float32.

    It begins a group that ends with the SharedGemm of the same product; between them every block signals and waits for all.
    Blocks store the tiles that they take whole before they wait, so the stores of the group are counted from here on.
    """

    a: Region
    b: Region
    out: Region
    m: int
    n: int
    k: int
    parts: tuple[Region, ...]


@dataclass(frozen=True)
class SharedGemm(Gemm):
    """The Gemm that ends a group of Pieces: whole tiles, and those that were begun, to which `parts` are added in a fixed
    order, before epilogues and rounding."""

    parts: tuple[Region, ...] = ()


@dataclass(frozen=True)
class Ragged:
    """A part of an operation whose sizes are known on the device alone; `task` is one of ragged.TASKS, which say what each
    reads and writes. Regions are what may be touched at most, in the order that the task fixes; blocks of the role share
    what there is. `peer`: the rank that receives, or the own one. `expected`: bytes of rows that are moved where tokens are
    routed as declared, for cost models alone.
    """

    task: str
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    peer: int
    expected: int = 0


@dataclass(frozen=True)
class Grouped(Ragged):
    """A Ragged step for one of `groups` groups of the experts of a rank.

    What belongs to a group lies where the device alone knows. Regions name it by parts: a buffer, or a range of it, is cut
    into as many parts as there are groups, and part g stands for what belongs to group g. `within`: of every region of
    `reads`, then of `writes`, the range that all that it stands for lies in. That what steps touch of different parts is
    different is shown by emulations (see conformance.py). `products`: of a grouped GEMM, how many it makes and the M, N
    and K of each, M where tokens are routed as declared. `then`: epilogues applied to them before rounding; what these read
    is the last of `reads`.
    """

    group: int = 0
    groups: int = 1
    within: tuple[Region, ...] = ()
    products: tuple[int, ...] = ()
    then: tuple[str, ...] = ()


PacketStep = PutPackets | SumPackets | GetPackets
Step = (Copy | Reduce | Clear | Signal | Wait | Gemm | Sum | Contract | Ragged | Grouped | MultimemStore | MultimemReduce
        | Pieces | SharedGemm | PutPackets | SumPackets | GetPackets | SumAside | Pass)


@dataclass(frozen=True)
class Role:
    """Steps walked in order by each of `blocks` blocks. `agent`: "blocks", "copy_engine" or "library" (`blocks` 1).

    Two copies of equal size in one role are shared in the same way by its blocks: what a block has copied it may copy on.
    """

    name: str
    agent: str
    blocks: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Launch:
    """A kernel with its roles, one copy by a copy engine, or one library call.

    It starts when the launch before it on its `stream` and all of `after` have completed. Blocks of the roles are
    numbered in the order of `roles`. `family`: which kernel carries it out, "copy", "signal", "sum", "packets",
    "gemm", "fused", "moe", "grouped" or "grouped_fused"; or "copy_engine", "library". `cluster`: consecutive blocks that
    start together and reach each other's shared memory.
    """

    name: str
    stream: int
    roles: tuple[Role, ...]
    after: tuple[str, ...] = ()
    family: str = "copy"
    threads: int = 0
    shared_bytes: int = 0
    cluster: int = 1

    @property
    def agent(self) -> str:
        return self.roles[0].agent

    @property
    def blocks(self) -> int:
        return sum(role.blocks for role in self.roles) if self.agent == "blocks" else 0

    @property
    def steps(self) -> Iterator[Step]:
        return (step for role in self.roles for step in role.steps)


@dataclass(frozen=True)
class Extra:
    """An input beside the operands that steps read: all of `buffer`, or, with `row_bytes`, the rows of it that a step
    makes of the output, which are of that size. `partly`: a step may read less than all of it."""

    buffer: str
    row_bytes: int = 0
    partly: bool = False


@dataclass(frozen=True)
class Goal:
    """What the outputs must hold: row i of `output` derives from row i of the gathered `operand`.

    `starts[r]` is the byte offset of rank r's shard in the whole operand; the last entry is its size. `row_bytes` and
    `output_row_bytes` are the sizes of one row. A plan that copies has equal row sizes; one that multiplies has one
    Gemm for every row. `reduces`: the operand of every rank is a part of a sum, and the output of rank r holds the rows
    of the whole sum from `starts[r]` on (all of them where it is as large as the whole). So does an output without sums
    that is smaller than the whole: it derives from the operand of its rank. `part_row_bytes`: where products are parts of
    a sum and no output yet, the size of one of their rows; else 0. `scattered`: the output of a rank is its own rows even
    where those are all there are. `contracts`: rows of the operand are indices of a contraction, and the output of a rank
    is one product over all of them, each once, with its whole local operand. `then`: epilogues that every row of the
    output has had, in this order, once it was complete. `extras`: the inputs that these, or the operation itself, read, in
    the order of Spec.extras. `keeps`: the output that holds the whole operand, "" where none does. `aside`: the output that
    holds what the epilogues hand out besides, row by row as `output` its own, "" where they do not.
    `mesh`: of block matrices, its rows and columns; "a" and "b" are then blocks, and starts count those of a. `ragged`:
    what outputs hold is known on the device alone (see ragged_flow.py).
    """

    operand: str
    output: str
    starts: tuple[int, ...]
    row_bytes: int
    output_row_bytes: int
    computes: bool
    reduces: bool = False
    part_row_bytes: int = 0
    scattered: bool = False
    contracts: bool = False
    keeps: str = ""
    mesh: tuple[int, int] = (0, 0)
    pieces: tuple[tuple[Region, Region], ...] = ()
    then: tuple[str, ...] = ()
    extras: tuple[Extra, ...] = ()
    ragged: bool = False
    aside: str = ""

    @property
    def product_row_bytes(self) -> int:
        """Bytes of a row that a Gemm writes."""
        return self.part_row_bytes or self.output_row_bytes

    def output_span(self, rank: int, size: int) -> tuple[int, int]:
        """First byte of the whole output that the output of `rank` (a buffer of `size` bytes) holds, and how many."""
        if self.pieces or self.contracts or self.ragged:
            return 0, size
        whole = self.starts[-1] // self.row_bytes * self.output_row_bytes
        if size == whole and not self.scattered:
            return 0, size
        first, last = (self.starts[r] // self.row_bytes * self.output_row_bytes for r in (rank, rank + 1))
        return first, last - first


@dataclass(frozen=True)
class Phase:
    """`counter` of every rank stands for a barrier in shared memory: a phase is complete with every `arrivals`, and waits
    look at its parity alone, so they are right only while it is at most one phase ahead of them.
    """

    counter: int
    arrivals: int


@dataclass(frozen=True)
class Plan:
    """One operation for all ranks. `ranks[r]` lists the launches of rank r in an order that respects their streams.

    `counters` is the number of counters of each rank. `sm_share`: SMs a rank may use. `smem_limit` and `threads_limit`
    bound a block.
    """

    op: str
    buffers: tuple[Buffer, ...]
    counters: int
    ranks: tuple[tuple[Launch, ...], ...]
    goal: Goal
    sm_share: int
    smem_limit: int
    threads_limit: int = 1024
    notes: tuple[str, ...] = field(default=())
    phases: tuple[Phase, ...] = ()

    @property
    def world(self) -> int:
        return len(self.ranks)

    @cached_property
    def digest(self) -> str:
        return canon.digest(self)

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    def steps_of(self, rank: int) -> Iterator[tuple[int, Launch, Role, Step]]:
        """All steps of a rank, numbered as in the emulator's log and the device's failure report."""
        number = 0
        for launch in self.ranks[rank]:
            for role in launch.roles:
                for step in role.steps:
                    yield number, launch, role, step
                    number += 1

    @cached_property
    def _totals(self) -> tuple[tuple[int, ...], ...]:
        totals = [[0] * self.counters for _ in self.ranks]
        for launches in self.ranks:
            for launch in launches:
                for role in launch.roles:
                    for step in role.steps:
                        if isinstance(step, Signal):
                            totals[step.rank][step.counter] += step.value * role.blocks
        return tuple(map(tuple, totals))

    def counter_totals(self, rank: int) -> tuple[int, ...]:
        """How much each counter of `rank` grows in one call."""
        return self._totals[rank]
