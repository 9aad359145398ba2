"""Lowering of a product of matrices in blocks on a 2-D mesh: blocks of A travel along rows, blocks of B along columns.

Rank (i, j) of a mesh of `rows` x `cols` holds block (i, j) of each matrix. It receives the other blocks of A of its row and
of B of its column, and multiplies them panel by panel as they come, a panel of the contraction being a block of A. Blocks
go straight to who needs them (SUMMA), or to the next rank, which passes them on (Cannon's shifts).
Counters of a rank: one for every block of A that lands here, then one for every block of B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from tilescale.errors import PlanError
from tilescale.schedules.algorithms import Algorithm
from tilescale.schedules.contracting import BOTH
from tilescale.schedules.contraction import group
from tilescale.schedules.gather import SIGNAL_THREADS
from tilescale.schedules.plan import Buffer, Contract, Copy, Goal, Launch, Region, Role, Signal, Step, Wait
from tilescale.spec.op import Spec


@dataclass(frozen=True)
class Blocks:
    """Sizes on a rank: its product is m x n, its block of A m x `k_a`, of B `k_b` x n."""

    rows: int
    cols: int
    m: int
    n: int
    k_a: int
    k_b: int
    itemsize: int
    out_itemsize: int

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of a block of A and of B."""
        return self.m * self.k_a * self.itemsize, self.k_b * self.n * self.itemsize

    @property
    def counters(self) -> int:
        return self.rows + self.cols

    def buffers(self) -> tuple[Buffer, ...]:
        """Two versions where a peer may be a call ahead."""
        a, b = self.sizes
        return (Buffer("a", "input", a), Buffer("b", "input", b),
                Buffer("out", "output", self.m * self.n * self.out_itemsize),
                Buffer("gather", "workspace", self.cols * a, True, 2),
                Buffer("column", "workspace", self.rows * b, True, 2))

    def goal(self) -> Goal:
        world, (a, _) = self.rows * self.cols, self.sizes
        return Goal("a", "out", tuple(rank * a for rank in range(world + 1)), self.m * self.itemsize,
                    self.n * self.out_itemsize, True, contracts=True, mesh=(self.rows, self.cols))


def blocks_of(spec: Spec) -> Blocks:
    """Geometry of a product of block matrices. Raises PlanError where blocks are uneven."""
    world, (rows, cols) = spec.world, spec.topology.mesh_sizes
    shapes = {tuple(tensor.local_shape(rank, world) for tensor in spec.inputs) for rank in range(world)}
    if len(shapes) != 1:
        raise PlanError("blocks are equal on every rank", sorted(shapes), "choose sizes that the mesh divides")
    a, b = shapes.pop()
    return Blocks(rows, cols, a[0], b[1], a[1], b[0], spec.inputs[0].itemsize, spec.output.itemsize)


@dataclass(frozen=True)
class BlockShape:
    """What the schedule fixes. `fused`: copies and products in one kernel, else one behind the other."""

    algorithm: Algorithm
    fused: bool
    depth: int
    comm_blocks: int
    work_blocks: int
    copy_threads: int
    copy_shared: int


class BlockPlan:
    """Builds the launches of one rank."""

    def __init__(self, geo: Blocks, shape: BlockShape, rank: int) -> None:
        self.geo, self.shape, self.rank = geo, shape, rank
        self.place = divmod(rank, geo.cols)
        self.gang = shape.comm_blocks // shape.depth

    def launches(self) -> tuple[Launch, ...]:
        shape = self.shape
        copies = [Role(f"comm.{g}", "blocks", self.gang, tuple(self.sent(g))) for g in range(shape.depth)]
        if shape.fused:
            work = Role("work", "blocks", shape.work_blocks, tuple(self.products(waits=True)))
            return (Launch("fused", 0, (*copies, work), (), "fused", 0, 0),)
        arrivals = tuple(Wait(counter, self.gang) for counter in self.awaited())
        work = Role("work", "blocks", shape.work_blocks, tuple(self.products(waits=False)))
        return (Launch("comm", 0, tuple(copies), (), "copy", shape.copy_threads, shape.copy_shared),
                Launch("receive", 0, (Role("receive", "blocks", 1, arrivals),), (), "signal", SIGNAL_THREADS),
                Launch("work", 0, (work,), (), "gemm"))

    @property
    def held(self) -> int:
        """The counter that says that both own blocks are where they are multiplied."""
        return self.counter(0, self.place[1])

    # -- what travels --------------------------------------------------------------------------------------------------
    def sent(self, gang: int) -> list[Step]:
        """What copy gang `gang` does: the own blocks to where they are multiplied, then its share of what is sent."""
        steps: list[Step] = []
        if gang == 0:
            steps += [Copy(self.own(axis), self.landed(self.rank, axis, self.place[1 - axis])) for axis in (0, 1)]
            steps += [Signal(self.rank, self.held)] if self.shape.fused else []
        along = [[step for step in pair if step] for pair in zip_longest(self.transfers(0), self.transfers(1))]
        for move in [move for pair in along for move in pair][gang :: self.shape.depth]:
            steps += move
        return steps

    def transfers(self, axis: int) -> list[list[Step]]:
        """Of A along the row (axis 0), of B along the column: each with what it waits for, and its signal."""
        here, found = self.place[1 - axis], list[list[Step]]()
        for t in self.shape.algorithm.outgoing(here, self.length(axis), 1, "peer_major"):
            held = self.own(axis) if t.source == here else self.landed(self.rank, axis, t.source)
            passed = [] if t.source == here else [Wait(self.counter(axis, t.source), self.gang)]
            target = self.peer(axis, t.target)
            put, told = Copy(held, self.landed(target, axis, t.source)), Signal(target, self.counter(axis, t.source))
            found.append([*passed, put, told])
        return found

    def awaited(self) -> list[int]:
        """Counters of the blocks that peers send."""
        return [self.counter(axis, source) for axis in (0, 1) for source in range(self.length(axis))
                if source != self.place[1 - axis]]

    def own(self, axis: int) -> Region:
        return Region("ab"[axis], self.rank, 0, self.geo.sizes[axis])

    def landed(self, rank: int, axis: int, source: int) -> Region:
        """Where the block of place `source` along the axis lands."""
        size = self.geo.sizes[axis]
        return Region(("gather", "column")[axis], rank, source * size, size)

    def length(self, axis: int) -> int:
        return self.geo.rows if axis else self.geo.cols

    def counter(self, axis: int, source: int) -> int:
        return axis * self.geo.cols + source

    def peer(self, axis: int, place: int) -> int:
        row, col = self.place
        return place * self.geo.cols + col if axis else row * self.geo.cols + place

    # -- what is multiplied --------------------------------------------------------------------------------------------
    def products(self, waits: bool) -> list[Step]:
        """Panels of the contraction in the order in which their blocks of A come, each behind the waits that are new."""
        geo, steps, seen = self.geo, list[Step](), {self.counter(1, self.place[0])}  # its own panel comes first
        for back in range(geo.cols):
            panel = (self.place[1] - back) % geo.cols
            at = panel * geo.k_a
            for counter in (self.counter(0, panel), self.counter(1, at // geo.k_b)):
                steps += [Wait(counter, self.gang)] if waits and counter not in seen else []
                seen.add(counter)
            steps.append(self.product(panel, at))
        return group(steps)

    def product(self, panel: int, at: int) -> Contract:
        geo, row = self.geo, self.geo.n * self.geo.itemsize
        b = Region("column", self.rank, at * row, geo.k_a * row)
        out = Region("out", self.rank, 0, geo.m * geo.n * geo.out_itemsize)
        return Contract(self.landed(self.rank, 0, panel), b, out, geo.m, geo.n, geo.k_a, at, BOTH)


def block_plans(geo: Blocks, shape: BlockShape) -> Sequence[tuple[Launch, ...]]:
    """The launches of all ranks."""
    return [BlockPlan(geo, shape, rank).launches() for rank in range(geo.rows * geo.cols)]
