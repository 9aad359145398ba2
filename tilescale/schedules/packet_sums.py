"""Lowering of sums whose parts travel as packets: one launch, in which every block sends its share and adds up what comes.

No counter is waited for. Counter s of a rank stands for the packets of rank s in the report of a wait that failed.
"""

from __future__ import annotations

from tilescale.schedules.plan import Launch, PutPackets, SumPackets
from tilescale.schedules.reduce import SumPlan

COUNTING_THREADS = 32  # of a block, that count the call on


def sum_packets(plan: SumPlan) -> None:
    """Every rank sends its part to all peers, each in its own order, and adds up all of them."""
    geo, rank = plan.geo, plan.rank
    (chunk,) = plan.own
    first, *others = (geo.inbox(peer, rank, chunk) for peer in plan.peers)
    total = geo.total(rank, chunk)
    steps = (PutPackets(geo.part(rank, rank, chunk), first, tuple(others)),
             SumPackets(total.srcs, total.dst, total.element, total.out, total.extras, total.then))
    role = plan.blocks("packets", plan.shape.comm_blocks, steps)
    plan.launches.append(Launch("packets", 0, (role,), (), "packets", plan.shape.copy_threads + COUNTING_THREADS))
