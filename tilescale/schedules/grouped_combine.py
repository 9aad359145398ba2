"""Sizes and launches of products of experts with a combine behind them: a grouped GEMM, whose products go back to the ranks
of their tokens, and are weighted and summed there.

Products are a launch of their own, or made group by group of experts (see grouped.py): those of a group go back while the
next ones are made.

Rows lie as a dispatch has placed them, those of experts one behind the other: a tile may hold rows of the next expert,
whose products are left out. Products are parts of a sum, so they are kept in float32 unless the declaration lets them be
rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

from tilescale.schedules.extras import extras_of_products
from tilescale.schedules.plan import Buffer, Goal, Grouped, Launch, Plan, Region, Role, Signal, Step, Wait
from tilescale.schedules.ragged import THREADS, WARP, WORD, RaggedGeometry, RaggedPlan, aligned, ragged_geometry
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.ops._experts import part_dtype
from tilescale.spec.tensor import ITEMSIZE


def part_of(whole: Region, group: int, groups: int) -> Region:
    """What of a buffer stands for what belongs to a group (see Grouped in plan.py)."""
    first, last = (whole.size * at // groups for at in (group, group + 1))
    return Region(whole.buffer, whole.rank, whole.offset + first, last - first)


@dataclass(frozen=True)
class ProductsGeometry(RaggedGeometry):
    """A combine of products. `n`, `k`: their columns and contraction; `b_bytes`: of the matrices of a rank; `in_row_bytes`:
    of a row that is multiplied; `out_row_bytes`: of a row of the output; `extras`: what products read besides."""

    n: int
    k: int
    b_bytes: int
    in_row_bytes: int
    out_row_bytes: int
    groups: int
    extras: tuple[Buffer, ...]

    @property
    def keys(self) -> int:
        return self.experts + self.world * self.groups

    @property
    def shared_bytes(self) -> int:
        words = 2 * THREADS + (THREADS // WARP + 3) * self.keys + 3 * self.experts + self.world * self.groups + 1
        return aligned(words * WORD)

    @property
    def held(self) -> str:
        return "rows"

    @cached_property
    def operand_bytes(self) -> int:
        return self.room * self.in_row_bytes

    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers of the plan; two versions where a peer may be one call ahead or behind."""
        return (
            Buffer("a", "input", self.operand_bytes),
            Buffer("b", "input", self.b_bytes),
            Buffer("indices", "input", self.entries * WORD),
            Buffer("weights", "input", self.entries * WORD),
            Buffer("counts", "input", self.experts * WORD),
            *self.extras,
            Buffer("out", "output", self.most * self.out_row_bytes),
            Buffer("routes", "workspace", (2 * self.entries + self.blocks * self.keys) * WORD),
            Buffer("rows", "workspace", self.room * self.row_bytes),
            Buffer("inbox", "workspace", self.world * self.segment_bytes, True, 2),
        )

    def multiply(self, rank: int, group: int) -> Grouped:
        """Multiplies the rows of every expert of a group by its matrix. Reads rows, matrices, counts and scales."""
        names = ("a", "b", "counts", *(extra.name for extra in self.extras))
        reads, rows = tuple(self.whole(name, rank) for name in names), self.whole("rows", rank)
        each = -(-sum(self.expected_rows(source, rank) for source in range(self.world)) // self.local)
        return Grouped("multiply", reads, (part_of(rows, group, self.groups),), rank, group=group, groups=self.groups,
                       within=(*reads, rows), products=(self.local // self.groups, each, self.n, self.k))

    def give_group(self, rank: int, peer: int, group: int) -> Grouped:
        """Gives `peer` its products of a group. Reads products."""
        rows, packed = self.whole("rows", rank), self.packed(peer, rank)
        moved = self.expected_rows(peer, rank) // self.groups
        return Grouped("return_group", (part_of(rows, group, self.groups),), (part_of(packed, group, self.groups),), peer,
                       moved * self.row_bytes, group=group, groups=self.groups, within=(rows, packed))


@lru_cache(maxsize=256)
def products_geometry(spec: Spec, groups: int, blocks: int) -> ProductsGeometry:
    base, item = ragged_geometry(spec, "push", blocks), ITEMSIZE[part_dtype(spec)]
    experts, k, n = spec.inputs[1].local_shape(0, spec.world)
    known = {field.name: getattr(base, field.name) for field in fields(base)}
    known |= {"row_bytes": n * item, "itemsize": item}
    return ProductsGeometry(**known, n=n, k=k, b_bytes=experts * k * n * spec.inputs[1].itemsize,
                            in_row_bytes=base.row_bytes, out_row_bytes=n * spec.output.itemsize, groups=groups,
                            extras=extras_of_products(spec).buffers)


class ProductsPlan(RaggedPlan):
    """One gang that returns the products of a group when they are made, beside one of `takers` blocks that makes them.
    Tokens are summed once all products are there, so peers are told of the last group alone."""

    geo: ProductsGeometry

    def made(self, group: int) -> int:
        """The counter that says so."""
        return self.geo.world + 2 + group

    def beside(self) -> tuple[Role, ...]:
        geo, rank = self.geo, self.rank
        comm: list[Step] = [*self._number(), geo.tally(rank)]
        work: list[Step] = []
        for group in range(geo.groups):
            work += [geo.multiply(rank, group), Signal(rank, self.made(group))]
            comm.append(Wait(self.made(group), self.takers))
            for peer in self.peers:
                comm.append(geo.give_group(rank, peer, group))
                comm += [Signal(peer, rank)] if group == geo.groups - 1 else []
        comm += [*(Wait(peer, self.senders) for peer in self.peers), geo.weigh(rank)]
        return Role("comm", "blocks", self.senders, tuple(comm)), Role("work", "blocks", self.takers, tuple(work))


def products_structure(spec: Spec, schedule: Schedule, share: int) -> Plan:
    """The plan: products on all SMs, then a combine of them. Fused: one gang sends products back and adds them up, and the
    other SMs multiply."""
    senders, fused = schedule.num_comm_blocks, schedule.overlap == "fused"
    geo = products_geometry(spec, schedule.depth, senders)
    ranks: list[tuple[Launch, ...]] = []
    for rank in range(spec.world):
        if fused:
            roles: tuple[Role, ...] = ProductsPlan(geo, rank, senders, share - senders).beside()
            ranks.append((Launch("all", 0, roles, (), "grouped_fused", THREADS, geo.shared_bytes),))
            continue
        work = Role("work", "blocks", share, (geo.multiply(rank, 0),))
        roles = RaggedPlan(geo, rank, senders, senders).roles(False)
        ranks.append((Launch("work", 0, (work,), (), "grouped", THREADS),
                      Launch("all", 0, roles, (), "moe", THREADS, geo.shared_bytes)))
    goal = extras_of_products(spec).goal(
        Goal("a", "out", (0,) * (spec.world + 1), geo.in_row_bytes, geo.row_bytes, False, ragged=True))
    return Plan(op=spec.op, buffers=geo.buffers(), counters=geo.world + 2 + geo.groups, ranks=tuple(ranks), goal=goal,
                sm_share=share, smem_limit=spec.topology.gpu.smem_bytes)
