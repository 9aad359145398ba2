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
    output. `then`: the epilogues of the operation. The first `own` operands are the operation's: products read what they
    need of them, also where they are parts of a sum, and what epilogues read follows. `aside`: the output of what epilogues
    hand out besides, "" where they do not."""

    buffers: tuple[Buffer, ...]
    rows: tuple[bool, ...]
    then: tuple[str, ...]
    own: int = 0
    aside: str = ""

    def of_product(self, rank: int) -> tuple[Region, ...]:
        """What a step reads that multiplies a part of a sum."""
        return tuple(Region(buffer.name, rank, 0, buffer.size) for buffer in self.buffers[: self.own])

    def of_sum(self, made: Region) -> tuple[Region, ...]:
        """What a step reads that adds up the rows `made` of the output of its rank."""
        return self.regions(made)[self.own:]

    def regions(self, made: Region) -> tuple[Region, ...]:
        """What a step reads that makes the rows `made` of the output of its rank."""
        return tuple(replace(made, buffer=buffer.name) if rows else Region(buffer.name, made.rank, 0, buffer.size)
                     for buffer, rows in zip(self.buffers, self.rows, strict=True))

    def goal(self, goal: Goal) -> Goal:
        """A goal with these operands and epilogues."""
        found = tuple(Extra(buffer.name, goal.output_row_bytes if rows else 0, number < self.own)
                      for number, (buffer, rows) in enumerate(zip(self.buffers, self.rows, strict=True)))
        return replace(goal, then=self.then, extras=found, aside=self.aside)


NO_EXTRAS = Extras((), (), ())
ROUTING = ("indices", "weights", "counts")  # operands of steps that route, which name them themselves


@lru_cache(maxsize=64)
def extras_of(spec: Spec) -> Extras:
    """The extra operands of a spec. Those with rows are as large as the output is on every rank."""
    sizes = [max(prod(extra.tensor.local_shape(rank, spec.world)) for rank in range(spec.world)) * extra.tensor.itemsize
             for extra in spec.extras]
    buffers = tuple(Buffer(extra.name, "input", size) for extra, size in zip(spec.extras, sizes, strict=True))
    return Extras(buffers, tuple(extra.rows for extra in spec.extras), spec.then, len(spec.operation.extras(spec)),
                  *(each.name for each in spec.aside))


@lru_cache(maxsize=64)
def extras_of_products(spec: Spec) -> Extras:
    """Of products of experts: what steps that multiply read besides, without what rows are routed by."""
    found = extras_of(spec)
    kept = [at for at, buffer in enumerate(found.buffers) if buffer.name not in ROUTING]
    return Extras(tuple(found.buffers[at] for at in kept), tuple(found.rows[at] for at in kept), found.then,
                  sum(at < found.own for at in kept))
