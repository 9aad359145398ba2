"""The row of a launch that exchanges packets: it says all, and comes with the arguments, so that no table is read."""

from __future__ import annotations

from collections.abc import Callable

from tilescale.codegen.table import KIND_PACKETS, StepRow
from tilescale.errors import PlanError
from tilescale.schedules.plan import PACKET_BYTES, PutPackets, Region, Role, SumPackets

Slot = Callable[[Region], int]


def packet_row(role: Role, rank: int, world: int, number: int, slot: Slot) -> StepRow:
    """The row of the two steps of `role`, from number `number` on, that send the part of `rank` to every peer and add up
    what comes. `slot`: the number of the pointer to a buffer.

    Raises PlanError for other steps: kernels find packets by the numbers of their ranks alone.
    """
    put, total = role.steps if len(role.steps) == 2 else (None, None)
    if not isinstance(put, PutPackets) or not isinstance(total, SumPackets) or not _all_to_all(put, total, rank, world):
        raise PlanError("a launch of packets sends a whole part to every peer, and adds up one of each rank",
                        f"other steps on rank {rank}", "lower it so")
    inboxes = {target.rank: slot(target) for target in put.targets}
    first = min(at - peer for peer, at in inboxes.items())
    if any(at != first + peer for peer, at in inboxes.items()):
        raise PlanError("pointers to the packets of ranks follow each other", sorted(inboxes.items()), "keep their order")
    return StepRow(KIND_PACKETS, number, source=slot(put.src), target=slot(total.dst), counter=first, size=put.src.size,
                   rows=-(-(put.src.size // PACKET_BYTES) // role.blocks))


def _all_to_all(put: PutPackets, total: SumPackets, rank: int, world: int) -> bool:
    """Whether rank s's part lies behind those of the ranks before it, as packets, wherever it is sent."""
    inbox, size = put.dst.buffer, put.src.size
    sources = tuple(put.src if s == rank else Region(inbox, rank, s * size, size) for s in range(world))
    targets = {Region(inbox, peer, rank * size, size) for peer in range(world) if peer != rank}
    return (set(put.targets) == targets and len(put.targets) == len(targets) and total.srcs == sources
            and put.src.offset == total.dst.offset == 0)
