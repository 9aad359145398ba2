"""Lowering of sums and gathers whose data travel as packets: one launch, in which every block sends its share, and adds up
or keeps what comes.

No counter is waited for. Counter s of a rank stands for the packets of rank s in the report of a wait that failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilescale.schedules.geometry import Chunk, Geometry
from tilescale.schedules.plan import Buffer, Copy, GetPackets, Launch, PutPackets, Region, Role, Step, SumPackets
from tilescale.schedules.reduce import SumPlan

COUNTING_THREADS = 32  # of a block, that count the call on


def sum_packets(plan: SumPlan) -> None:
    """Every rank sends its part to all peers, which add up all of it; or to each owner its rows, and hands out its sums."""
    steps = _one_shot(plan) if plan.geo.whole else _by_owners(plan)
    plan.launches.append(packet_launch(steps, plan.shape.comm_blocks, plan.shape.copy_threads))


def packet_launch(steps: Sequence[Step], blocks: int, threads: int) -> Launch:
    """The launch that exchanges packets with `threads` of each of `blocks` blocks."""
    role = Role("packets", "blocks", blocks, tuple(steps))
    return Launch("packets", 0, (role,), (), "packets", threads + COUNTING_THREADS)


def _one_shot(plan: SumPlan) -> tuple[Step, ...]:
    geo, rank = plan.geo, plan.rank
    (chunk,) = plan.own
    first, *others = (geo.inbox(peer, rank, chunk) for peer in plan.peers)
    return PutPackets(geo.part(rank, rank, chunk), first, tuple(others)), _sum(plan, chunk)


def _by_owners(plan: SumPlan) -> tuple[Step, ...]:
    geo, rank = plan.geo, plan.rank
    rows = [geo.chunks(owner)[0] for owner in range(geo.world)]
    puts = [PutPackets(geo.part(rank, peer, rows[peer]), geo.inbox(peer, rank, rows[peer])) for peer in plan.peers]
    if not geo.two_shot:
        return *puts, _sum(plan, rows[rank])
    gets = (GetPackets(geo.handed(rank, rows[peer]), geo.output(rank, rows[peer])) for peer in plan.peers)
    return *puts, _sum(plan, rows[rank], tuple(geo.handed(peer, rows[rank]) for peer in plan.peers)), *gets


def _sum(plan: SumPlan, chunk: Chunk, others: tuple[Region, ...] = ()) -> SumPackets:
    total = plan.geo.total(plan.rank, chunk)
    return SumPackets(total.srcs, total.dst, total.element, total.out, total.extras, total.then, others=others)


# -- gathers -----------------------------------------------------------------------------------------------------------
def gather_buffers(geo: Geometry) -> tuple[Buffer, ...]:
    """Two versions of what lands: a peer may be a call ahead."""
    size = geo.total * geo.row_bytes
    return (Buffer("a", "input", geo.shard_bytes), Buffer("out", "output", size),
            Buffer("inbox", "workspace", size, True, 2, zeroed=True, packets=True))


def gather_packets(geo: Geometry, rank: int) -> tuple[Step, ...]:
    """Every rank sends its shard to all peers, and keeps what comes beside its own."""
    peers, size = [(rank + d) % geo.world for d in range(1, geo.world)], geo.shard_bytes
    own = Region("a", rank, 0, size)
    first, *others = (Region("inbox", peer, rank * size, size) for peer in peers)
    gets = (GetPackets(Region("inbox", rank, peer * size, size), Region("out", rank, peer * size, size)) for peer in peers)
    return PutPackets(own, first, tuple(others)), Copy(own, Region("out", rank, rank * size, size)), *gets
