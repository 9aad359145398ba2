"""Sizes and regions of a gathered operation: what one rank holds, how its shard is cut into chunks, what they become."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from tilescale.schedules.extras import NO_EXTRAS, Extras, extras_of
from tilescale.schedules.plan import Buffer, Contract, Copy, Gemm, Goal, Region
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.transports import TRANSPORTS
from tilescale.spec.op import Spec
from tilescale.spec.tensor import shard_sizes

KEPT = "gathered"  # the output that holds what was gathered


@dataclass(frozen=True)
class Chunk:
    """Rows [first, first + rows) of a shard."""

    index: int
    first: int
    rows: int


@dataclass(frozen=True)
class Geometry:
    """A gather of operand 0 along its rows, and what consumes it.

    `held`: rows of every rank's shard, by DTensor's rule: the last ones may be smaller, or empty, so that shards follow
    each other as if all had `rows`, those of the first. `row_bytes`, `output_row_bytes`: bytes of a row. `n`, `k`: columns
    of the local product and its contraction, 0 where nothing is multiplied. `symmetric`: peers may read the operand where
    the caller holds it. `extras`: what products read besides, and their epilogues. `keeps`: what is gathered before a
    product is an output too. `span`: shards that one product takes together, the own one among them, from where all are
    gathered.
    """

    held: tuple[int, ...]
    row_bytes: int
    output_row_bytes: int
    n: int
    k: int
    b_bytes: int
    push: bool
    symmetric: bool
    chunk_rows: int
    extras: Extras = NO_EXTRAS
    keeps: bool = False
    span: int = 1

    @property
    def world(self) -> int:
        return len(self.held)

    @property
    def rows(self) -> int:
        """Of the largest shard."""
        return self.held[0]

    @property
    def total(self) -> int:
        """Rows of the whole operand."""
        return sum(self.held)

    def chunks(self, rank: int) -> tuple[Chunk, ...]:
        """The shard of a rank in pieces, at least one: an empty shard has an empty one, which still is signalled."""
        return cut(self.held[rank], self.chunk_rows) or (Chunk(0, 0, 0),)

    @property
    def max_chunks(self) -> int:
        return len(self.chunks(0))

    @property
    def computes(self) -> bool:
        return self.n > 0

    @property
    def shard_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def gathers(self) -> bool:
        """Whether received rows land in a workspace: always before a product; a pulled copy goes straight to the output."""
        return self.computes or self.push

    @property
    def stages(self) -> bool:
        """Whether the operand is first copied to where peers can read it."""
        return not self.push and not self.symmetric

    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers of the plan. Two versions where a peer may be one call ahead or behind."""
        found = [Buffer("a", "input", self.shard_bytes, self.symmetric and not self.push)]
        if self.computes:
            found.append(Buffer("b", "input", self.b_bytes))
        found += self.extras.buffers
        found.append(Buffer("out", "output", self.total * self.output_row_bytes))
        if self.keeps:
            found.append(Buffer(KEPT, "output", self.total * self.row_bytes))
        if self.gathers:
            found.append(Buffer("gather", "workspace", self.total * self.row_bytes, self.push, 2 if self.push else 1))
        if self.stages:
            found.append(Buffer("staging", "workspace", self.shard_bytes, True, 2))
        return tuple(found)

    def own(self, rank: int, chunk: Chunk) -> Region:
        """The chunk in the caller's operand."""
        return Region("a", rank, chunk.first * self.row_bytes, chunk.rows * self.row_bytes)

    def staged(self, rank: int, chunk: Chunk) -> Region:
        """The chunk where peers read it."""
        name = "staging" if self.stages else "a"
        return Region(name, rank, chunk.first * self.row_bytes, chunk.rows * self.row_bytes)

    def gathered(self, rank: int, source: int, chunk: Chunk) -> Region:
        """Where the chunk of `source` lands on `rank`."""
        name = "gather" if self.gathers else "out"
        return Region(name, rank, source * self.shard_bytes + chunk.first * self.row_bytes, chunk.rows * self.row_bytes)

    def output(self, rank: int, source: int, chunk: Chunk) -> Region:
        size = self.output_row_bytes
        return Region("out", rank, (source * self.rows + chunk.first) * size, chunk.rows * size)

    def consume(self, rank: int, source: int, chunk: Chunk, operand: Region) -> Copy | Gemm | Contract:
        """The step that turns `operand`, the chunk of `source`, into output rows."""
        target = self.output(rank, source, chunk)
        if not self.computes:
            return Copy(operand, target)
        return Gemm(operand, Region("b", rank, 0, self.b_bytes), target, chunk.rows, self.n, self.k,
                    self.extras.regions(target), self.extras.then)

    def keep(self, rank: int, source: int, chunk: Chunk) -> list[Copy]:
        """The step that takes the chunk of `source` to the output that holds what was gathered; of an empty one none."""
        landed = self.own(rank, chunk) if source == rank else self.gathered(rank, source, chunk)
        at = source * self.shard_bytes + chunk.first * self.row_bytes
        return [Copy(landed, Region(KEPT, rank, at, landed.size))] if chunk.rows else []

    def whole(self, rank: int) -> Chunk:
        """The shard of a rank as one chunk."""
        return Chunk(0, 0, self.held[rank])

    def goal(self) -> Goal:
        starts = tuple(sum(self.held[:source]) * self.row_bytes for source in range(self.world + 1))
        goal = Goal("a", "out", starts, self.row_bytes, self.output_row_bytes, self.computes)
        return self.extras.goal(replace(goal, keeps=KEPT if self.keeps else ""))


@lru_cache(maxsize=1024)
def cut(rows: int, chunk_rows: int) -> tuple[Chunk, ...]:
    """Chunks of at most `chunk_rows` rows (0: one chunk)."""
    step = chunk_rows or max(1, rows)
    return tuple(Chunk(i, first, min(step, rows - first)) for i, first in enumerate(range(0, rows, step)))


def geometry(spec: Spec, schedule: Schedule) -> Geometry:
    """Geometry of a spec whose one move is a gather along dimension 0."""
    operand = spec.inputs[0]
    row_elements = prod(operand.sizes[1:])
    n = k = b_bytes = 0
    output_row = row_elements * operand.itemsize
    if spec.operation.compute == "gemm":
        k, n = spec.inputs[1].local_shape(0, spec.world)
        b_bytes = k * n * spec.inputs[1].itemsize
        output_row = spec.output.local_shape(0, spec.world)[1] * spec.output.itemsize
    return Geometry(
        held=shard_sizes(operand.sizes[0], spec.world), row_bytes=row_elements * operand.itemsize,
        output_row_bytes=output_row, n=n, k=k, b_bytes=b_bytes, push=schedule.direction == "push",
        symmetric=spec.placement == "symmetric", chunk_rows=schedule.chunk_rows, extras=extras_of(spec),
        keeps=bool(spec.attribute("gathered")), span=spanned(spec, schedule))


def spanned(spec: Spec, schedule: Schedule) -> int:
    """Shards that one product takes together: as many as a tile has rows for, where a shard has fewer rows than a tile and
    tiles and ranks are made of whole shards and products; 1 elsewhere."""
    s, rows = schedule, spec.inputs[0].sizes[0]
    if (not gathers_everywhere(spec) or s.compute != "generated" or s.overlap == "chunked" or s.direction != "push"
            or s.algorithm != "direct" or TRANSPORTS[s.transport].multicast or rows % spec.world):
        return 1
    shard = rows // spec.world
    if not 0 < shard < s.block_m or s.block_m % shard:
        return 1
    span = min(s.block_m // shard, spec.world)
    if spec.world % span:
        return 1
    return spec.world if s.overlap == "none" else span


def gathers_everywhere(spec: Spec) -> bool:
    """Whether all ranks receive the rows of all, for one product at most: what stores through a switch are for."""
    return spec.op in ("all_gather", "ag_gemm") and len(spec.inputs) <= 2 and not spec.attribute("gathered", 0)
