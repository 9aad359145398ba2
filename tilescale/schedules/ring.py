"""Lowering of a sum that goes round a ring: the launches, roles and steps of one rank.

Counters of a rank, with `chunks` chunks an owner at most:
  arrived(owner, chunk)  the sum so far for rows of `owner` has landed here     (signalled by the rank before)
  result(owner, chunk)   the complete sum for rows of `owner` has landed here   (the same, where every rank wants it)

Every rank signals the next one for every chunk of every owner, also where it has no rows. What a rank ends its call with,
its own sum or those of all, was begun by the next rank in the same call, or added to: so nobody is more than one call ahead
of who reads what it sends.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilescale.schedules.geometry import Chunk
from tilescale.schedules.plan import Copy, Signal, Step, Wait
from tilescale.schedules.reduce import SumPlan, SumShape
from tilescale.schedules.sums import RingGeometry


class RingPlan(SumPlan):
    """Builds the launches of one rank."""

    def __init__(self, geo: RingGeometry, shape: SumShape, rank: int) -> None:
        super().__init__(geo, shape, rank)
        self.ring = geo
        self.next = (rank + 1) % geo.world

    def _passing(self, gang: int, hops: range) -> Iterator[tuple[int, int, Chunk]]:
        """(hop, owner, chunk) in the order in which a gang takes them: hop d is that of the owner d + 1 ranks before, and
        the last one that of the rank itself. Gangs share chunks."""
        depth, owners = self.shape.depth, [(d, (self.rank - 1 - d) % self.geo.world) for d in hops]
        if self.shape.order == "peer_major":
            for d, owner in owners:
                yield from ((d, owner, chunk) for chunk in self.geo.chunks(owner)[gang::depth])
        else:
            for index in range(gang, self.geo.max_chunks, depth):
                yield from ((d, owner, self.geo.chunks(owner)[index]) for d, owner in owners
                            if index < len(self.geo.chunks(owner)))

    def sums_of(self, gang: int) -> list[Step]:
        """Begin the sum of the rank before, add to those that come, and complete the own one."""
        found: list[Step] = []
        for d, owner, chunk in self._passing(gang, range(self.geo.world)):
            if d > 0:
                found.append(Wait(self.arrived(owner, chunk), self.gang))
            if owner == self.rank:
                found += self._complete(chunk)
                continue
            if chunk.rows:
                step = self.ring.added if d > 0 else self.ring.begun
                found.append(step(self.rank, owner, chunk, self.next))
            found.append(Signal(self.next, self.arrived(owner, chunk)))
        return found

    def _complete(self, chunk: Chunk) -> list[Step]:
        """The own sum, for the caller; where every rank wants it, once more for the next one."""
        geo = self.ring
        found: list[Step] = [geo.completed(self.rank, chunk, geo.output(self.rank, chunk))] if chunk.rows else []
        if geo.sum.everywhere:
            found += [geo.completed(self.rank, chunk, geo.passed(self.next, chunk))] if chunk.rows else []
            found.append(Signal(self.next, self.result(self.rank, chunk)))
        return found

    def results_of(self, gang: int) -> list[Step]:
        """Take the sums of the others, and pass them on until they come to the rank before their owner."""
        found: list[Step] = []
        hops = range(self.geo.world - 1 if self.geo.sum.everywhere else 0)
        for d, owner, chunk in self._passing(gang, hops):
            found.append(Wait(self.result(owner, chunk), self.gang))
            here = self.ring.passed(self.rank, chunk)
            if d + 1 < len(hops):
                found += [Copy(here, self.ring.passed(self.next, chunk))] if chunk.rows else []
                found.append(Signal(self.next, self.result(owner, chunk)))
            if chunk.rows:
                found.append(Copy(here, self.geo.output(self.rank, chunk)))
        return found


def ring_sums(plan: RingPlan) -> RingPlan:
    """The product, where there is one; then gangs that take the same chunks of all owners round the ring."""
    if plan.geo.sum.computes and plan.geo.sum.rows:
        plan.multiply("work", [plan.geo.product(plan.rank, plan.rank, Chunk(0, 0, plan.geo.sum.rows))])
    gangs = range(plan.shape.depth)
    plan.add("ring", 0, [plan.blocks(f"comm.{g}", plan.gang, [*plan.sums_of(g), *plan.results_of(g)]) for g in gangs])
    plan.finish()
    return plan
