"""Operands beside the inputs in a plan: their buffers, and what of them a step reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from tilescale.schedules.plan import Buffer, Extra, Goal, Region
from tilescale.spec.op import Spec


@dataclass(frozen=True)
class Extras:
    """`buffers`: one an extra operand, as large as that of the rank with most. `rows`: whether it has the rows of the
    output. `then`: the epilogues of the operation."""

    buffers: tuple[Buffer, ...]
    rows: tuple[bool, ...]
    then: tuple[str, ...]

    def regions(self, made: Region) -> tuple[Region, ...]:
        """What a step reads that makes the rows `made` of the output of its rank."""
        return tuple(replace(made, buffer=buffer.name) if rows else Region(buffer.name, made.rank, 0, buffer.size)
                     for buffer, rows in zip(self.buffers, self.rows, strict=True))

    def goal(self, goal: Goal) -> Goal:
        """A goal with these operands and epilogues."""
        found = tuple(Extra(buffer.name, goal.output_row_bytes if rows else 0)
                      for buffer, rows in zip(self.buffers, self.rows, strict=True))
        return replace(goal, then=self.then, extras=found)


NO_EXTRAS = Extras((), (), ())


@lru_cache(maxsize=64)
def extras_of(spec: Spec) -> Extras:
    """The extra operands of a spec. Those with rows are as large as the output is on every rank."""
    sizes = [max(prod(extra.tensor.local_shape(rank, spec.world)) for rank in range(spec.world)) * extra.tensor.itemsize
             for extra in spec.extras]
    buffers = tuple(Buffer(extra.name, "input", size) for extra, size in zip(spec.extras, sizes, strict=True))
    return Extras(buffers, tuple(extra.rows for extra in spec.extras), spec.then)
