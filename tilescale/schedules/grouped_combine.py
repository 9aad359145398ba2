"""Sizes and launches of products of experts with a combine behind them: a grouped GEMM, whose products go back to the ranks
of their tokens, and are weighted and summed there.

Rows lie as a dispatch has placed them, those of experts one behind the other: a tile may hold rows of the next expert,
whose products are left out. Products are parts of a sum, so they are kept in float32 unless the declaration lets them be
rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

from tilescale.schedules.plan import Buffer, Goal, Grouped, Launch, Plan, Role
from tilescale.schedules.ragged import THREADS, WORD, RaggedGeometry, RaggedPlan, ragged_geometry
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.ops._experts import part_dtype
from tilescale.spec.tensor import ITEMSIZE


@dataclass(frozen=True)
class ProductsGeometry(RaggedGeometry):
    """A combine of products. `n`, `k`: their columns and contraction; `b_bytes`: of the matrices of a rank; `in_row_bytes`:
    of a row that is multiplied; `out_row_bytes`: of a row of the output."""

    n: int
    k: int
    b_bytes: int
    in_row_bytes: int
    out_row_bytes: int

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
            Buffer("out", "output", self.most * self.out_row_bytes),
            Buffer("routes", "workspace", (2 * self.entries + self.blocks * self.keys) * WORD),
            Buffer("rows", "workspace", self.room * self.row_bytes),
            Buffer("inbox", "workspace", self.world * self.segment_bytes, True, 2),
        )

    def multiply(self, rank: int) -> Grouped:
        """Multiplies the rows of every expert by its matrix. Reads rows, matrices and counts."""
        reads, writes = tuple(self.whole(name, rank) for name in ("a", "b", "counts")), (self.whole("rows", rank),)
        each = -(-sum(self.expected_rows(source, rank) for source in range(self.world)) // self.local)
        return Grouped("multiply", reads, writes, rank, within=(*reads, *writes),
                       products=(self.local, each, self.n, self.k))


@lru_cache(maxsize=256)
def products_geometry(spec: Spec, blocks: int) -> ProductsGeometry:
    base, item = ragged_geometry(spec, "push", blocks), ITEMSIZE[part_dtype(spec)]
    experts, k, n = spec.inputs[1].local_shape(0, spec.world)
    known = {field.name: getattr(base, field.name) for field in fields(base)}
    known |= {"row_bytes": n * item, "itemsize": item}
    return ProductsGeometry(**known, n=n, k=k, b_bytes=experts * k * n * spec.inputs[1].itemsize,
                            in_row_bytes=base.row_bytes, out_row_bytes=n * spec.output.itemsize)


def products_structure(spec: Spec, schedule: Schedule, share: int) -> Plan:
    """The plan: products on all SMs, then a combine of them."""
    senders = schedule.num_comm_blocks
    geo = products_geometry(spec, senders)
    ranks = []
    for rank in range(spec.world):
        work = Role("work", "blocks", share, (geo.multiply(rank),))
        roles = RaggedPlan(geo, rank, senders, senders).roles(False)
        ranks.append((Launch("work", 0, (work,), (), "grouped", THREADS),
                      Launch("all", 0, roles, (), "moe", THREADS, geo.shared_bytes)))
    goal = Goal("a", "out", (0,) * (spec.world + 1), geo.in_row_bytes, geo.row_bytes, False, ragged=True)
    return Plan(op=spec.op, buffers=geo.buffers(), counters=geo.world + 2, ranks=tuple(ranks), goal=goal, sm_share=share,
                smem_limit=spec.topology.gpu.smem_bytes)
