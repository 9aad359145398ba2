"""Lowering of block matrices whose panels arrive in two slots a side, which their receiver hands back.

A panel is a block of A and the rows of B that meet it. What a rank holds itself is multiplied where it lies; the others are
dealt to slots in the order in which they are multiplied, and a rank tells the sender of a panel when its slot is free: at
the start of a call, or, where another panel was in the slot before, when every block has multiplied that one. So no buffer
needs a second version. Where slots are taken again within a call, sums of all tiles wait in memory between panels.
Counters of a rank: a panel has arrived (A, then B), and a slot at a peer is free for what this rank sends there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilescale.schedules.algorithms import ALGORITHMS
from tilescale.schedules.blocks import BlockPlan, Blocks, BlockShape, blocks_of
from tilescale.schedules.contracting import BOTH, SUM_BYTES
from tilescale.schedules.contraction import group
from tilescale.schedules.plan import Buffer, Contract, Copy, Launch, Pass, Region, Role, Signal, Step, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

SLOTS = 2
Panel = tuple[int, int]  # 0 for A or 1 for B, and where it lies in the contraction


@dataclass(frozen=True)
class SlottedBlocks(Blocks):
    """Sizes on a rank, and which panels are whose: blocks of A are panels, those of B as many as there are columns of the
    mesh to a row."""

    @property
    def share(self) -> int:
        """Panels that a block of B holds."""
        return self.cols // self.rows

    @property
    def panel_sizes(self) -> tuple[int, int]:
        """Bytes of a panel of A and of B."""
        a, b = self.sizes
        return a, b // self.share

    @property
    def slots(self) -> tuple[int, int]:
        """Slots for panels of A and of B: no more than panels that come."""
        return min(SLOTS, self.cols - 1), min(SLOTS, self.cols - self.share)

    @property
    def passes(self) -> bool:
        """Whether a slot is taken again within a call."""
        return self.slots != (self.cols - 1, self.cols - self.share)

    @property
    def counters(self) -> int:
        return 2 * self.cols * (1 + self.cols)

    def buffers(self) -> tuple[Buffer, ...]:
        a, b = self.sizes
        (slots_a, slots_b), (panel_a, panel_b) = self.slots, self.panel_sizes
        found = (Buffer("a", "input", a), Buffer("b", "input", b),
                 Buffer("out", "output", self.m * self.n * self.out_itemsize),
                 Buffer("gather", "workspace", slots_a * panel_a, True),
                 Buffer("column", "workspace", slots_b * panel_b, True))
        return (*found, Buffer("sums", "workspace", self.m * self.n * SUM_BYTES)) if self.passes else found

    # -- which panel is where ------------------------------------------------------------------------------------------
    def position(self, rank: int, panel: Panel) -> int:
        """When a rank multiplies it: it begins with the panel of its own block of A."""
        return (rank % self.cols - panel[1]) % self.cols

    def owner(self, rank: int, panel: Panel) -> int:
        """Who holds what `rank` multiplies, in its row or in its column of the mesh."""
        row, col = divmod(rank, self.cols)
        return (panel[1] // self.share) * self.cols + col if panel[0] else row * self.cols + panel[1]

    def coming(self, rank: int, axis: int) -> list[Panel]:
        """The panels that a rank receives, in the order in which it multiplies them."""
        found = [(axis, index) for index in range(self.cols) if self.owner(rank, (axis, index)) != rank]
        return sorted(found, key=lambda panel: self.position(rank, panel))

    def before(self, rank: int, panel: Panel) -> Panel | None:
        """What was in the slot of a panel before it in this call."""
        coming = self.coming(rank, panel[0])
        at = coming.index(panel) - self.slots[panel[0]]
        return coming[at] if at >= 0 else None

    def held(self, rank: int, panel: Panel) -> Region:
        """Where a panel lies on a rank: in its own block, or in a slot."""
        axis, index = panel
        size = self.panel_sizes[axis]
        if self.owner(rank, panel) == rank:
            return Region("ab"[axis], rank, index % self.share * size if axis else 0, size)
        slot = self.coming(rank, axis).index(panel) % self.slots[axis]
        return Region(("gather", "column")[axis], rank, slot * size, size)


class SlottedPlan(BlockPlan):
    """Builds the launch of one rank: gangs that copy, and one that multiplies."""

    def __init__(self, geo: SlottedBlocks, shape: BlockShape, rank: int) -> None:
        super().__init__(geo, shape, rank)
        self.slotted = geo

    def launches(self) -> tuple[Launch, ...]:
        shape, sent = self.shape, self.sends()
        gangs = [[step for move in sent[g :: shape.depth] for step in move] for g in range(shape.depth)]
        gangs[0] = [*self.free(), *gangs[0]]
        copies = [Role(f"comm.{g}", "blocks", self.gang, tuple(steps)) for g, steps in enumerate(gangs)]
        work = Role("work", "blocks", shape.work_blocks, tuple(self.multiplied()))
        return (Launch("fused", 0, (*(role for role in copies if role.steps), work), (), "fused", 0, 0),)

    # -- counters ------------------------------------------------------------------------------------------------------
    def arrived(self, panel: Panel) -> int:
        return panel[0] * self.geo.cols + panel[1]

    def slot_free(self, target: int, panel: Panel) -> int:
        """Of the sender: the slot for a panel at `target`."""
        cols = self.geo.cols
        row, col = divmod(target, cols)
        place = row if panel[0] else col
        return 2 * cols + (panel[0] * cols + place) * cols + panel[1]

    # -- steps ---------------------------------------------------------------------------------------------------------
    def sends(self) -> list[list[Step]]:
        """What goes to peers, that which is multiplied first before the rest: each with what it waits for."""
        geo, found = self.slotted, list[tuple[int, list[Step]]]()
        for axis in (0, 1):
            for t in self.shape.algorithm.outgoing(self.place[1 - axis], self.length(axis), 1, "peer_major"):
                target, share = self.peer(axis, t.target), geo.share if axis else 1
                for index in range(t.source * share, (t.source + 1) * share):
                    panel = (axis, index)
                    passed = [] if geo.owner(self.rank, panel) == self.rank else [Wait(self.arrived(panel), self.gang)]
                    freed = self.shape.work_blocks if geo.before(target, panel) else self.gang
                    found.append((geo.position(target, panel), [
                        *passed, Wait(self.slot_free(target, panel), freed),
                        Copy(geo.held(self.rank, panel), geo.held(target, panel)), Signal(target, self.arrived(panel))]))
        return [steps for _, steps in sorted(found, key=lambda each: each[0])]

    def sender(self, panel: Panel) -> int:
        """Who puts a panel here: its owner, or the rank before this one, which passes it on."""
        if not self.shape.algorithm.forwards:
            return self.slotted.owner(self.rank, panel)
        axis = panel[0]
        return self.peer(axis, (self.place[1 - axis] - 1) % self.length(axis))

    def frees(self, panel: Panel) -> Signal:
        """Says that the slot of a panel is free."""
        return Signal(self.sender(panel), self.slot_free(self.rank, panel))

    def free(self) -> list[Signal]:
        """At the start of a call all slots are."""
        geo = self.slotted
        return [self.frees(panel) for axis in (0, 1) for panel in geo.coming(self.rank, axis)
                if geo.before(self.rank, panel) is None]

    def multiplied(self) -> list[Step]:
        """Panels in their order, each behind its waits; behind it, what takes its slots next may come."""
        geo, steps = self.slotted, list[Step]()
        for position in range(geo.cols):
            index = (self.place[1] - position) % geo.cols
            panels: list[Panel] = [(0, index), (1, index)]
            here = [panel for panel in panels if geo.owner(self.rank, panel) != self.rank]
            steps += [Wait(self.arrived(panel), self.gang) for panel in here]
            steps.append(self.panel(index, position))
            steps += [self.frees(later) for panel in here for later in geo.coming(self.rank, panel[0])
                      if geo.before(self.rank, later) == panel]
        return steps if geo.passes else group(steps)

    def panel(self, index: int, position: int) -> Contract:
        """The product of a panel."""
        geo = self.slotted
        a, b = (geo.held(self.rank, (axis, index)) for axis in (0, 1))
        out = Region("out", self.rank, 0, geo.m * geo.n * geo.out_itemsize)
        at = index * geo.k_a
        if not geo.passes:
            return Contract(a, b, out, geo.m, geo.n, geo.k_a, at, BOTH)
        sums = Region("sums", self.rank, 0, geo.m * geo.n * SUM_BYTES)
        return Pass(a, b, out, geo.m, geo.n, geo.k_a, at, BOTH, position == 0, position == geo.cols - 1, (sums,))


def slotted_plans(geo: SlottedBlocks, shape: BlockShape) -> Sequence[tuple[Launch, ...]]:
    """The launches of all ranks."""
    return [SlottedPlan(geo, shape, rank).launches() for rank in range(geo.rows * geo.cols)]


def slotted_blocks(spec: Spec) -> SlottedBlocks:
    """Geometry of a product of block matrices with slots. Raises PlanError where blocks are uneven."""
    return SlottedBlocks(**vars(blocks_of(spec)))


def shifts_fit(spec: Spec, s: Schedule) -> bool:
    """Whether there is a slot for all that comes, where ranks pass on what they receive."""
    return not ALGORITHMS[s.algorithm].forwards or spec.topology.mesh_sizes[1] - 1 <= SLOTS
