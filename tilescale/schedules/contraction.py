"""Lowering of a product whose contraction is gathered: one operand comes in segments, the other is local.

The rows that move are indices of the contraction: rows of a row-major B, or of a column-major A as it lies in memory. An
operand whose contraction is its inner dimension moves in whole shards, each an array of its own. What arrives is multiplied
at once: the product of a rank is one group of Contract steps, its own segment first, each of the others behind its wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilescale.errors import PlanError
from tilescale.schedules.gather import RankPlan
from tilescale.schedules.geometry import Chunk, Geometry
from tilescale.schedules.plan import Buffer, Contract, Copy, Gemm, Goal, Region, Step
from tilescale.schedules.schedule import Schedule
from tilescale.spec.contraction import NAMES, gathered_operand, in_whole_shards
from tilescale.spec.op import Spec


@dataclass(frozen=True)
class Contraction(Geometry):
    """A gather of operand `operand` along the contraction. `rows`: indices of it in a shard; `row_bytes`: what the operand
    holds at each. `m`, `n`: shape of the local product, `k`: of the whole contraction."""

    operand: int = 0
    m: int = 0
    local_bytes: int = 0

    @property
    def _sent(self) -> str:
        return NAMES[self.operand]

    @property
    def _local(self) -> str:
        return NAMES[1 - self.operand]

    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers, as of a gather of rows."""
        sizes = {self._sent: self.shard_bytes, self._local: self.local_bytes}
        found = [Buffer(name, "input", sizes[name], name == self._sent and self.symmetric and not self.push)
                 for name in NAMES]
        found.append(Buffer("out", "output", self.m * self.output_row_bytes))
        found.append(Buffer("gather", "workspace", self.total * self.row_bytes, self.push, 2 if self.push else 1))
        if self.stages:
            found.append(Buffer("staging", "workspace", self.shard_bytes, True, 2))
        return tuple(found)

    def own(self, rank: int, chunk: Chunk) -> Region:
        return replace(super().own(rank, chunk), buffer=self._sent)

    def staged(self, rank: int, chunk: Chunk) -> Region:
        return super().staged(rank, chunk) if self.stages else self.own(rank, chunk)

    def consume(self, rank: int, source: int, chunk: Chunk, operand: Region) -> Copy | Gemm | Contract:
        """The step that multiplies `operand`, the segment `chunk` of `source`; see `group`."""
        local = Region(self._local, rank, 0, self.local_bytes)
        a, b = (operand, local) if self.operand == 0 else (local, operand)
        return Contract(a, b, Region("out", rank, 0, self.m * self.output_row_bytes), self.m, self.n, chunk.rows,
                        source * self.rows + chunk.first, self.operand)

    def goal(self) -> Goal:
        return replace(super().goal(), operand=self._sent, contracts=True)


def contraction(spec: Spec, schedule: Schedule) -> Contraction:
    """Geometry of a spec for which `contracts`. Raises PlanError where shards are uneven."""
    world, operand = spec.world, gathered_operand(spec)
    shapes = {tuple(tensor.local_shape(rank, world) for tensor in spec.inputs) for rank in range(world)}
    if len(shapes) != 1:
        raise PlanError("shards are equal on every rank", sorted(shapes), "choose sizes that the ranks divide")
    a, b = shapes.pop()
    rows, k = (b[0], a[1]) if operand else (a[1], b[0])
    width, other = (b[1], a[0]) if operand else (a[0], b[1])
    itemsize = spec.inputs[operand].itemsize
    chunk_rows = 0 if in_whole_shards(spec) else schedule.chunk_rows
    return Contraction(
        held=(rows,) * world, row_bytes=width * itemsize, output_row_bytes=b[1] * spec.output.itemsize, n=b[1], k=k,
        b_bytes=0, push=schedule.direction == "push", symmetric=spec.placement == "symmetric", chunk_rows=chunk_rows,
        operand=operand, m=a[0],
        local_bytes=other * k * spec.inputs[1 - operand].itemsize)


class ContractionPlan(RankPlan):
    """Builds the launches of one rank, whose product is one group."""

    one_product = True

    def segments(self, waits: bool) -> list[Step]:
        return group(super().segments(waits))

    def work(self, name: str, stream: int, steps: Sequence[Step], after: Sequence[str] = ()) -> None:
        super().work(name, stream, group(steps), after)


def group(steps: Sequence[Step]) -> list[Step]:
    """The steps with the first and the last product marked."""
    places = [at for at, step in enumerate(steps) if isinstance(step, Contract)]
    found = list(steps)
    for at in places:
        step = steps[at]
        assert isinstance(step, Contract)
        found[at] = replace(step, first=at == places[0], last=at == places[-1])
    return found
