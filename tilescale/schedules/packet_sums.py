"""Lowering of sums whose parts travel as packets: one launch, in which every block sends its share and adds up what comes.

No counter is waited for. Counter s of a rank stands for the packets of rank s in the report of a wait that failed.
"""

from __future__ import annotations

from tilescale.schedules.geometry import Chunk
from tilescale.schedules.plan import GetPackets, Launch, PutPackets, Region, Step, SumPackets
from tilescale.schedules.reduce import SumPlan

COUNTING_THREADS = 32  # of a block, that count the call on


def sum_packets(plan: SumPlan) -> None:
    """Every rank sends its part to all peers, which add up all of it; or to each owner its rows, and hands out its sums."""
    steps = _two_shots(plan) if plan.geo.two_shot else _one_shot(plan)
    role = plan.blocks("packets", plan.shape.comm_blocks, steps)
    plan.launches.append(Launch("packets", 0, (role,), (), "packets", plan.shape.copy_threads + COUNTING_THREADS))


def _one_shot(plan: SumPlan) -> tuple[Step, ...]:
    geo, rank = plan.geo, plan.rank
    (chunk,) = plan.own
    first, *others = (geo.inbox(peer, rank, chunk) for peer in plan.peers)
    return PutPackets(geo.part(rank, rank, chunk), first, tuple(others)), _sum(plan, chunk)


def _two_shots(plan: SumPlan) -> tuple[Step, ...]:
    geo, rank = plan.geo, plan.rank
    rows = [geo.chunks(owner)[0] for owner in range(geo.world)]
    puts = (PutPackets(geo.part(rank, peer, rows[peer]), geo.inbox(peer, rank, rows[peer])) for peer in plan.peers)
    gets = (GetPackets(geo.handed(rank, rows[peer]), geo.output(rank, rows[peer])) for peer in plan.peers)
    return *puts, _sum(plan, rows[rank], tuple(geo.handed(peer, rows[rank]) for peer in plan.peers)), *gets


def _sum(plan: SumPlan, chunk: Chunk, others: tuple[Region, ...] = ()) -> SumPackets:
    total = plan.geo.total(plan.rank, chunk)
    return SumPackets(total.srcs, total.dst, total.element, total.out, total.extras, total.then, others=others)
