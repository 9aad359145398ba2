"""Sizes, steps and launches of a dispatch with the products of experts behind it: a grouped GEMM.

Experts of a rank are cut into *groups*. A token travels to a rank once, with the first group that has one of its experts,
so a segment of the inbox is filled group by group, and what a group multiplies is there when it and those before it have
arrived. Products of a group go on while tokens of the next ones are on their way.

Where tokens and rows of a group lie is known on the device alone. Steps name them by *parts*: a buffer, or a segment of it,
is cut into as many parts as there are groups, and part g stands for what belongs to group g (see Grouped in plan.py).

Rows are placed where tensor maps reach them: those of an expert begin at a multiple of PAD rows, so that a tile never holds
rows of two experts, one of which may still be on its way.

Counters of a rank: arrived(source, group); met, by the own gang; placed(group).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

from tilescale.schedules.extras import extras_of_products
from tilescale.schedules.grouped_combine import part_of, products_geometry
from tilescale.schedules.plan import Buffer, Goal, Grouped, Launch, Plan, Region, Role, Signal, Step, Wait
from tilescale.schedules.ragged import THREADS, WARP, WORD, RaggedGeometry, aligned, ragged, ragged_geometry
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.ops._experts import sent_scale_bytes
from tilescale.spec.ops._moe import combines, multiplies

PAD = 128  # rows; a multiple of every block_m


def grouped(spec: Spec) -> bool:
    """Whether experts multiply rows whose number the device alone knows."""
    return ragged(spec) and multiplies(spec)


@dataclass(frozen=True)
class GroupedGeometry(RaggedGeometry):
    """`groups`: of the experts of a rank; `n`, `k`: columns and contraction of a product; `b_bytes`: of the matrices of a
    rank; `out_row_bytes`: of a row of products, behind epilogues `then`; `extras`: operands of scales and epilogues;
    `scale_bytes`: of the scales that travel with a token."""

    groups: int
    n: int
    k: int
    b_bytes: int
    out_row_bytes: int
    extras: tuple[Buffer, ...]
    then: tuple[str, ...]
    scale_bytes: int

    @property
    def keys(self) -> int:
        """Experts, and groups of all ranks, which a block counts rows and tokens of."""
        return self.experts + self.world * self.groups

    @property
    def told_bytes(self) -> int:
        """Of a segment: rows of each expert, and where the tokens of each group end."""
        return -(-(self.local + self.groups) // 4) * 4 * WORD

    @property
    def head_bytes(self) -> int:
        return aligned(self.told_bytes + self.most * ((self.top_k + 1) * WORD + self.scale_bytes))

    @property
    def padded(self) -> int:
        """Rows that a rank has room for where those of an expert begin at multiples of PAD."""
        return -(-(self.room + self.local * (PAD - 1)) // PAD) * PAD

    @property
    def shared_bytes(self) -> int:
        words = 2 * THREADS + (THREADS // WARP + 3) * self.keys + 3 * self.experts + self.world * self.groups + 1
        return aligned(words * WORD)

    @property
    def moved_bytes(self) -> int:
        """Of a token and its scales."""
        return self.row_bytes + self.scale_bytes

    @cached_property
    def operand_bytes(self) -> int:
        return self.most * self.row_bytes

    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers of the plan; two versions where a peer may be one call ahead or behind."""
        return (
            Buffer("a", "input", self.operand_bytes),
            Buffer("b", "input", self.b_bytes),
            Buffer("indices", "input", self.entries * WORD),
            *self.extras,
            Buffer("out", "output", self.room * self.out_row_bytes),
            Buffer("counts", "output", self.experts * WORD),
            Buffer("routes", "workspace", (2 * self.entries + self.blocks * self.keys) * WORD),
            Buffer("order", "workspace", (self.world * self.most + self.entries) * WORD),
            Buffer("inbox", "workspace", self.world * self.segment_bytes, True, 2),
            # A tile holds rows behind the last one of an expert, which nobody has written: numbers, whichever.
            Buffer("rows", "workspace", self.padded * self.row_bytes, zeroed=True),
            *((Buffer("scales", "workspace", self.padded * self.scale_bytes),) if self.scale_bytes else ()),
        )

    @property
    def beside_rows(self) -> tuple[str, ...]:
        """Buffers that hold something of every row, where it has its place."""
        return ("scales",) if self.scale_bytes else ()

    # -- parts ---------------------------------------------------------------------------------------------------------
    def part(self, whole: Region, group: int) -> Region:
        """What of a buffer stands for what belongs to a group."""
        return part_of(whole, group, self.groups)

    def told(self, holder: int, source: int, first: int, last: int) -> Region:
        """The parts of groups `first` to `last` of a segment, with what is told at its head where `first` is 0."""
        whole = self.given(holder, source)
        body = Region(whole.buffer, whole.rank, whole.offset + self.told_bytes, whole.size - self.told_bytes)
        begin = self.part(body, first).offset if first else whole.offset
        return Region(whole.buffer, whole.rank, begin, self.part(body, last).end - begin)

    def given(self, holder: int, source: int) -> Region:
        """All that a source writes of its segment: the own tokens stay where they are."""
        return self.segment(holder, source, rows=holder != source)

    # -- steps ---------------------------------------------------------------------------------------------------------
    def arrange(self, rank: int) -> Grouped:
        """Lists the tokens for every rank in the order of their groups, and the place of every row: reads indices and
        numbers."""
        reads, writes = (self.whole("indices", rank), self.whole("routes", rank)), (self.whole("order", rank),)
        return Grouped("arrange", reads, writes, rank, groups=self.groups, within=(*reads, *writes))

    def send_group(self, rank: int, peer: int, group: int) -> Grouped:
        """Fills the part of a group in the segment of `rank` at `peer`: reads tokens, indices, lists, and scales."""
        names = ("a", "indices", "order", *(("scale_a",) if self.scale_bytes else ()))
        reads = tuple(self.whole(name, rank) for name in names)
        moved = self.expected_tokens(rank, peer) // self.groups if peer != rank else 0
        return Grouped("send_group", reads, (self.told(peer, rank, group, group),), peer, moved * self.moved_bytes,
                       group=group, groups=self.groups, within=(*reads, self.given(peer, rank)))

    def place_group(self, rank: int, group: int) -> Grouped:
        """Takes the rows of the experts of a group to their places. Reads the segments of all sources up to the part of
        the group, and the own tokens; writes rows and their scales, and with the first group counts."""
        everyone = range(self.world)
        own, *placed = (self.whole(name, rank) for name in ("a", "rows", *self.beside_rows))
        counts = () if group else (self.whole("counts", rank),)
        moved = sum(self.expected_tokens(source, rank) for source in everyone) // self.groups
        return Grouped(
            "place_group", (*(self.told(rank, source, 0, group) for source in everyone), own),
            (*(self.part(held, group) for held in placed), *counts), rank, moved * self.moved_bytes, group=group,
            groups=self.groups, within=(*(self.given(rank, source) for source in everyone), own, *placed, *counts))

    def multiply(self, rank: int, group: int) -> Grouped:
        """Multiplies the rows of every expert of a group by its matrix. Reads rows and their scales, matrices, counts, and
        what stands beside them."""
        placed, out = [self.whole(name, rank) for name in ("rows", *self.beside_rows)], self.whole("out", rank)
        extras = (extra.name for extra in self.extras if not (self.scale_bytes and extra.name == "scale_a"))
        beside = tuple(self.whole(name, rank) for name in ("b", "counts", *extras))
        experts = self.local // self.groups
        each = -(-sum(self.expected_rows(source, rank) for source in range(self.world)) // self.local)
        reads = (*(self.part(held, group) for held in placed), *beside)
        return Grouped("multiply", reads, (self.part(out, group),), rank, group=group, groups=self.groups,
                       within=(*placed, *beside, out), products=(experts, each, self.n, self.k), then=self.then)


@lru_cache(maxsize=256)
def grouped_geometry(spec: Spec, groups: int, blocks: int) -> GroupedGeometry:
    base = ragged_geometry(spec, "push", blocks)
    experts, k, n = spec.inputs[1].local_shape(0, spec.world)
    known = {field.name: getattr(base, field.name) for field in fields(base)}
    return GroupedGeometry(**known, groups=groups, n=n, k=k, b_bytes=experts * k * n * spec.inputs[1].itemsize,
                           out_row_bytes=spec.output.sizes[1] * spec.output.itemsize,
                           extras=extras_of_products(spec).buffers, then=spec.then,
                           scale_bytes=sent_scale_bytes(spec))


def routed_geometry(spec: Spec, schedule: Schedule, blocks: int) -> RaggedGeometry:
    """The geometry of any operation whose sizes the device alone knows."""
    if grouped(spec):
        return (products_geometry if combines(spec) else grouped_geometry)(spec, schedule.depth, blocks)
    return ragged_geometry(spec, schedule.direction, blocks)


class GroupedPlan:
    """Builds the roles of one rank. `senders`: blocks of the gang that sends and places."""

    def __init__(self, geo: GroupedGeometry, rank: int, senders: int) -> None:
        self.geo, self.rank, self.senders = geo, rank, senders
        self.peers = tuple((rank + d) % geo.world for d in range(1, geo.world))

    def arrived(self, source: int, group: int) -> int:
        return source * self.geo.groups + group

    @property
    def met(self) -> int:
        return self.geo.world * self.geo.groups

    def placed(self, group: int) -> int:
        return self.met + 1 + group

    def dispatch(self, tell: bool) -> tuple[Step, ...]:
        """Numbers, sends and places, a group behind the other: one is sent before the one before it is placed, so that
        peers find theirs sooner. `tell`: say which group is placed."""
        geo, rank = self.geo, self.rank
        steps: list[Step] = [geo.route(rank), *self._meet(1), geo.total(rank), geo.arrange(rank), *self._meet(2)]
        for group in range(geo.groups):
            for peer in (*self.peers, rank):
                steps += [geo.send_group(rank, peer, group), Signal(peer, self.arrived(rank, group))]
            if group:
                steps += self._take(group - 1, tell)
        return (*steps, *self._take(geo.groups - 1, tell))

    def products(self, wait: bool) -> tuple[Step, ...]:
        """The products of every group; `wait`: for its rows."""
        steps: list[Step] = []
        for group in range(self.geo.groups):
            steps += [Wait(self.placed(group), self.senders)] if wait else []
            steps.append(self.geo.multiply(self.rank, group))
        return tuple(steps)

    def _meet(self, time: int) -> list[Step]:
        return [Signal(self.rank, self.met), Wait(self.met, time * self.senders)]

    def _take(self, group: int, tell: bool) -> list[Step]:
        arrivals = [Wait(self.arrived(source, group), self.senders) for source in (*self.peers, self.rank)]
        told = [Signal(self.rank, self.placed(group))] if tell else []
        return [*arrivals, self.geo.place_group(self.rank, group), *told]


def grouped_structure(spec: Spec, schedule: Schedule, share: int) -> Plan:
    """The plan of a dispatch with products. Fused: one gang sends and places, and the other SMs multiply what is placed;
    else the products are a launch of their own."""
    fused, senders = schedule.overlap == "fused", schedule.num_comm_blocks
    geo = grouped_geometry(spec, schedule.depth, senders)
    ranks: list[tuple[Launch, ...]] = []
    for rank in range(spec.world):
        made = GroupedPlan(geo, rank, senders)
        comm = Role("comm" if fused else "all", "blocks", senders, made.dispatch(tell=fused))
        work = Role("work", "blocks", share - senders if fused else share, made.products(wait=fused))
        if fused:
            ranks.append((Launch("all", 0, (comm, work), (), "grouped_fused", THREADS, geo.shared_bytes),))
        else:
            ranks.append((Launch("all", 0, (comm,), (), "moe", THREADS, geo.shared_bytes),
                          Launch("work", 0, (work,), (), "grouped", THREADS)))
    goal = extras_of_products(spec).goal(
        Goal("a", "out", (0,) * (spec.world + 1), geo.row_bytes, geo.out_row_bytes, False, ragged=True))
    return Plan(op=spec.op, buffers=geo.buffers(), counters=(spec.world + 1) * geo.groups + 1, ranks=tuple(ranks),
                goal=goal, sm_share=share, smem_limit=spec.topology.gpu.smem_bytes)
