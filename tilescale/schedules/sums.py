"""Sizes and regions of an operation that sums over ranks: whose rows are whose, where parts lie, what becomes of them.

The *part* of a rank is what it adds to the sum: its operand, or its product with the local columns. The *owner* of rows
adds them up. Rows are those of the operand; of an all-reduce that multiplies nothing they are pieces of up to 16 bytes,
so that ranks share it evenly whatever its shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod

from tilescale.schedules.extras import NO_EXTRAS, Extras, extras_of
from tilescale.schedules.geometry import Chunk, cut
from tilescale.schedules.plan import Buffer, Copy, Gemm, Goal, MultimemReduce, Region, Sum, SumAside
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.transports import TRANSPORTS
from tilescale.spec.op import Spec
from tilescale.spec.tensor import ITEMSIZE, shard_offset

PIECE_BYTES = 16
SUM_THREADS = 512
NORM_LANES = 32
WINDOW_ROWS = 80  # of a step table in shared memory: more than the ranks of the largest sum
WINDOW_BYTES = WINDOW_ROWS * 64
PART_DTYPE = "float32"  # of partial products, unless the declaration allows another
HANDED = ("result", "aside")  # what owners keep for their peers: sums, and what epilogues hand out besides
CARRIED_DTYPE = "float32"  # of sums that lack some ranks, always: they are rounded when they are complete


@dataclass(frozen=True)
class Summed:
    """What of a sum does not depend on the schedule.

    `rows`: of the whole operand; `row_bytes` of the operand, `part_row_bytes` of a part and `out_row_bytes` of the output.
    `chunk_unit`: rows that one of the knob chunk_rows stands for. `n`, `k`: columns of the product and its local
    contraction, 0 where nothing is multiplied. `everywhere`: every rank receives the whole sum. `extras`: what sums
    read besides, and their epilogues.
    """

    world: int
    rows: int
    row_bytes: int
    part_row_bytes: int
    out_row_bytes: int
    chunk_unit: int
    n: int
    k: int
    b_bytes: int
    element: str
    out: str
    everywhere: bool
    symmetric: bool
    extras: Extras = NO_EXTRAS

    @property
    def computes(self) -> bool:
        return self.n > 0

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """First row of every rank's shard, and the end: DTensor's rule."""
        return (*(shard_offset(self.rows, rank, self.world) for rank in range(self.world)), self.rows)


def sums(spec: Spec) -> bool:
    """Whether parts of all ranks are added up."""
    return any(move.kind in ("reduce_scatter", "all_reduce") for move in spec.operation.moves)


@lru_cache(maxsize=64)
def summed(spec: Spec) -> Summed:
    """The sum that `spec` declares (its one move is a reduce_scatter or an all_reduce)."""
    operand, output, world = spec.inputs[0], spec.output, spec.world
    everywhere = spec.operation.moves[0].kind == "all_reduce"
    symmetric = spec.placement == "symmetric"
    if spec.operation.compute == "gemm":
        m, n, _ = spec.mnk
        k = operand.local_shape(0, world)[1]
        part = str(spec.attribute("partial_dtype", PART_DTYPE))
        return Summed(world, m, k * operand.itemsize, n * ITEMSIZE[part], n * output.itemsize, 1, n, k,
                      k * n * spec.inputs[1].itemsize, part, output.dtype, everywhere, False, extras_of(spec))
    row = prod(operand.sizes[1:]) * operand.itemsize
    rows, unit = operand.sizes[0], 1
    if everywhere and not any(epilogue.whole_rows for epilogue in spec.epilogues):
        piece = PIECE_BYTES if rows * row % PIECE_BYTES == 0 else operand.itemsize
        rows, unit, row = rows * row // piece, max(1, row // piece), piece
    out_row = row // operand.itemsize * output.itemsize
    return Summed(world, rows, row, row, out_row, unit, 0, 0, 0, operand.dtype, output.dtype, everywhere, symmetric,
                  extras_of(spec))


@dataclass(frozen=True)
class SumGeometry:
    """Regions of a sum under a schedule. `whole`: every rank adds up all rows (one shot) instead of its own. `multicast`: a
    switch adds up what all ranks have made readable, their own among it. `packets`: parts land as packets."""

    sum: Summed
    push: bool
    whole: bool
    scatter: bool
    chunk_rows: int
    multicast: bool = False
    packets: bool = False

    @property
    def world(self) -> int:
        return self.sum.world

    @property
    def two_shot(self) -> bool:
        """Whether owners hand their sums out."""
        return self.sum.everywhere and not self.whole

    @property
    def stages(self) -> bool:
        """Whether the operand is first copied to where peers can read it."""
        return not self.push and not self.sum.computes and not self.sum.symmetric

    def owned(self, rank: int) -> tuple[int, int]:
        """First row that a rank adds up, and the end."""
        bounds = self.sum.bounds
        return (0, self.sum.rows) if self.whole else (bounds[rank], bounds[rank + 1])

    def chunks(self, owner: int) -> tuple[Chunk, ...]:
        """The owner's rows in pieces, at least one: an owner without rows has an empty one, which still is signalled."""
        return self._chunks[owner]

    @cached_property
    def _chunks(self) -> tuple[tuple[Chunk, ...], ...]:
        def pieces(first: int, last: int) -> tuple[Chunk, ...]:
            found = tuple(Chunk(c.index, c.first + first, c.rows) for c in cut(last - first, self.chunk_rows))
            return found or (Chunk(0, first, 0),)

        return tuple(pieces(*self.owned(owner)) for owner in range(self.world))

    @cached_property
    def max_chunks(self) -> int:
        return max(map(len, self._chunks))

    @cached_property
    def slot_bytes(self) -> int:
        """Room for the part of one rank in the inbox of an owner."""
        return max(last - first for first, last in map(self.owned, range(self.world))) * self.sum.part_row_bytes

    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers of the plan. Two versions where a peer may be one call ahead or behind: not where a rank ends a call
        with the sums of all owners, for these have then read every part, and not for sums, which their readers' parts of
        the next call follow."""
        s, versions = self.sum, 1 if self.two_shot else 2
        shard = max(b - a for a, b in pairwise(s.bounds))
        found = [Buffer("a", "input", s.rows * s.row_bytes, s.symmetric and not self.push)]
        if s.computes:
            found.append(Buffer("b", "input", s.b_bytes))
        found += s.extras.buffers
        found += [Buffer(name, "output", (s.rows if s.everywhere else shard) * s.out_row_bytes) for name in self.outputs]
        if s.computes and not self.scatter:
            found.append(Buffer("partial", "workspace", s.rows * s.part_row_bytes, not self.push,
                                1 if self.push else versions))
        if self.stages:
            found.append(Buffer("staging", "workspace", s.rows * s.row_bytes, True, versions))
        if self.push:
            found.append(Buffer("inbox", "workspace", s.world * self.slot_bytes, True, versions, zeroed=self.packets,
                                packets=self.packets))
        if self.two_shot and self.packets:
            found.append(Buffer("result", "workspace", s.rows * s.out_row_bytes, True, versions, zeroed=True, packets=True))
        elif self.two_shot:
            found += [Buffer(name, "workspace", shard * s.out_row_bytes, True) for name in HANDED[: len(self.outputs)]]
        return tuple(found)

    def goal(self) -> Goal:
        s = self.sum
        return s.extras.goal(Goal(
            "a", "out", tuple(row * s.row_bytes for row in s.bounds), s.row_bytes, s.out_row_bytes, s.computes, True,
            s.part_row_bytes if s.computes else 0, not s.everywhere))

    # -- regions -------------------------------------------------------------------------------------------------------
    def operand(self, rank: int, chunk: Chunk) -> Region:
        """The rows in the caller's operand."""
        return Region("a", rank, chunk.first * self.sum.row_bytes, chunk.rows * self.sum.row_bytes)

    def part(self, rank: int, owner: int, chunk: Chunk) -> Region:
        """The part of `rank` for rows of `owner`, where `rank` has it first."""
        if self.scatter:
            return self.inbox(owner, rank, chunk)
        name = "partial" if self.sum.computes else "a"
        return Region(name, rank, chunk.first * self.sum.part_row_bytes, chunk.rows * self.sum.part_row_bytes)

    def readable(self, rank: int, chunk: Chunk) -> Region:
        """The part of `rank` where peers read it (pull)."""
        name = "partial" if self.sum.computes else "staging" if self.stages else "a"
        return Region(name, rank, chunk.first * self.sum.part_row_bytes, chunk.rows * self.sum.part_row_bytes)

    def inbox(self, owner: int, source: int, chunk: Chunk) -> Region:
        """Where the part of `source` lands at the owner (push)."""
        row = self.sum.part_row_bytes
        offset = source * self.slot_bytes + (chunk.first - self.owned(owner)[0]) * row
        return Region("inbox", owner, offset, chunk.rows * row)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What a call returns: the sum, and what epilogues hand out besides."""
        return ("out", self.sum.extras.aside) if self.sum.extras.aside else ("out",)

    def fetched(self, rank: int, owner: int, chunk: Chunk) -> list[Copy]:
        """The steps that take what the owner keeps for its peers to the outputs of `rank` (two shots)."""
        kept, made = self.result(owner, chunk), self.output(rank, chunk)
        return [Copy(replace(kept, buffer=source), replace(made, buffer=target))
                for source, target in zip(HANDED, self.outputs, strict=False)]

    def result(self, owner: int, chunk: Chunk) -> Region:
        """Where the owner keeps its sum for its peers (two shots)."""
        row = self.sum.out_row_bytes
        return Region("result", owner, (chunk.first - self.sum.bounds[owner]) * row, chunk.rows * row)

    def handed(self, rank: int, chunk: Chunk) -> Region:
        """Where the sum of rows lands as packets at `rank` (two shots)."""
        row = self.sum.out_row_bytes
        return Region("result", rank, chunk.first * row, chunk.rows * row)

    def output(self, rank: int, chunk: Chunk) -> Region:
        row = self.sum.out_row_bytes
        first = chunk.first - (0 if self.sum.everywhere else self.sum.bounds[rank])
        return Region("out", rank, first * row, chunk.rows * row)

    # -- steps ---------------------------------------------------------------------------------------------------------
    def product(self, rank: int, owner: int, chunk: Chunk) -> Gemm:
        """The step that makes the part of `rank` for rows of `owner`."""
        return Gemm(self.operand(rank, chunk), Region("b", rank, 0, self.sum.b_bytes), self.part(rank, owner, chunk),
                    chunk.rows, self.sum.n, self.sum.k, self.sum.extras.of_product(rank))

    def total(self, owner: int, chunk: Chunk) -> Sum:
        """The sum of all parts, in the order of ranks on every rank, so that all get the same bits; or by a switch."""
        target = self.result(owner, chunk) if self.two_shot and not self.packets else self.output(owner, chunk)
        if self.multicast:
            readable = tuple(self.readable(rank, chunk) for rank in range(self.world))
            return MultimemReduce(readable, target, self.sum.element, self.sum.out)
        sources = tuple(
            self.part(owner, owner, chunk) if rank == owner else
            self.inbox(owner, rank, chunk) if self.push else self.readable(rank, chunk) for rank in range(self.world))
        extras = self.sum.extras
        if extras.aside:
            other = replace(target, buffer=HANDED[1] if self.two_shot else extras.aside)
            return SumAside(sources, target, self.sum.element, self.sum.out, extras.of_sum(self.output(owner, chunk)),
                            extras.then, aside=(other,))
        return Sum(sources, target, self.sum.element, self.sum.out, extras.of_sum(self.output(owner, chunk)), extras.then)


def norm_bytes(spec: Spec) -> int:
    """Shared memory of a block that adds up whole rows, behind its window of steps: a row, and a number a thread and lane
    (codegen/include/tilescale/norm.cuh)."""
    if not any(epilogue.whole_rows for epilogue in spec.epilogues):
        return 0
    return (spec.output.sizes[-1] + SUM_THREADS + NORM_LANES) * ITEMSIZE["float32"]


@dataclass(frozen=True)
class RingGeometry(SumGeometry):
    """Regions of a sum that goes round a ring. A sum on its way is float32, so `carried` rows differ in size from those of
    parts; it lands in the place of its owner."""

    @property
    def carried_row_bytes(self) -> int:
        return self.sum.part_row_bytes // ITEMSIZE[self.sum.element] * ITEMSIZE[CARRIED_DTYPE]

    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers of the plan. The inbox has two versions where a rank may end its call before the next one has read
        what it was sent: not where it ends with the sums of all owners. These are fetched by nobody: each rank is sent them
        when all have taken part in the call."""
        s, shard = self.sum, max(b - a for a, b in pairwise(self.sum.bounds))
        found = [Buffer("a", "input", s.rows * s.row_bytes)]
        if s.computes:
            found += [Buffer("b", "input", s.b_bytes), Buffer("partial", "workspace", s.rows * s.part_row_bytes)]
        found += s.extras.buffers
        found += [Buffer("out", "output", (s.rows if s.everywhere else shard) * s.out_row_bytes),
                  Buffer("inbox", "workspace", s.rows * self.carried_row_bytes, True, 1 if s.everywhere else 2)]
        if s.everywhere:
            found.append(Buffer("result", "workspace", s.rows * s.out_row_bytes, True))
        return tuple(found)

    def carried(self, rank: int, chunk: Chunk) -> Region:
        """Where a sum on its way lands on `rank`."""
        row = self.carried_row_bytes
        return Region("inbox", rank, chunk.first * row, chunk.rows * row)

    def passed(self, rank: int, chunk: Chunk) -> Region:
        """Where a complete sum lands on `rank`."""
        row = self.sum.out_row_bytes
        return Region("result", rank, chunk.first * row, chunk.rows * row)

    def begun(self, rank: int, owner: int, chunk: Chunk, to: int) -> Sum:
        """The part of `rank` alone, sent on to rank `to`."""
        return Sum((self.part(rank, owner, chunk),), self.carried(to, chunk), self.sum.element, CARRIED_DTYPE)

    def added(self, rank: int, owner: int, chunk: Chunk, to: int) -> Sum:
        """The sum so far and the part of `rank`, sent on to rank `to`."""
        sources = (self.carried(rank, chunk), self.part(rank, owner, chunk))
        return Sum(sources, self.carried(to, chunk), self.sum.element, CARRIED_DTYPE, carried=CARRIED_DTYPE)

    def completed(self, owner: int, chunk: Chunk, target: Region) -> Sum:
        """The sum so far and the part of its owner, behind the epilogues, rounded."""
        sources, extras = (self.carried(owner, chunk), self.part(owner, owner, chunk)), self.sum.extras
        return Sum(sources, target, self.sum.element, self.sum.out, extras.of_sum(self.output(owner, chunk)), extras.then,
                   CARRIED_DTYPE)


@lru_cache(maxsize=256)
def sum_geometry(spec: Spec, direction: str, algorithm: str, chunk_rows: int, multicast: bool = False,
                 packets: bool = False) -> SumGeometry:
    found = summed(spec)
    made = RingGeometry if algorithm == "ring" else SumGeometry
    return made(found, direction == "push", algorithm == "one_shot", algorithm == "scatter", chunk_rows * found.chunk_unit,
                multicast, packets)


def geometry_of(spec: Spec, schedule: Schedule) -> SumGeometry:
    """The geometry of a schedule of a spec that sums."""
    multicast = TRANSPORTS[schedule.transport].multicast
    return sum_geometry(spec, schedule.direction, schedule.algorithm, schedule.chunk_rows, multicast,
                        schedule.protocol == "ll")
