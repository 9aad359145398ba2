"""The row of a launch that exchanges packets: it says all, and comes with the arguments, so that no table is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilescale.codegen.table import KIND_PACKETS, StepRow
from tilescale.errors import PlanError
from tilescale.schedules.plan import PACKET_BYTES, GetPackets, PutPackets, Region, Role, Step, SumPackets

Slot = Callable[[Region], int]


def packet_row(role: Role, rank: int, world: int, number: int, slot: Slot) -> StepRow:
    """The row of the steps of `role`, numbered from `number` on. `slot`: the number of the pointer to a buffer.

    Raises PlanError for steps of another form: kernels find packets by the numbers of their ranks alone.
    """
    put, total = role.steps[0], next((step for step in role.steps if isinstance(step, SumPackets)), None)
    steps: tuple[Step, ...] = ()
    if isinstance(put, PutPackets) and total is not None:
        form = _two_shots if total.others else _one_shot
        steps = form(put, total, rank, world)
    if steps != role.steps:
        raise PlanError("a launch of packets goes from every rank to every other, and adds up one part of each",
                        f"other steps on rank {rank}", "lower it so")
    assert isinstance(put, PutPackets) and total is not None  # noqa: PT018
    inbox = _first(slot, (target for step in role.steps if isinstance(step, PutPackets) for target in step.targets))
    return StepRow(KIND_PACKETS, number, source=slot(put.src), target=slot(total.dst), counter=inbox,
                   per_call=_first(slot, total.others), size=put.src.size,
                   rows=-(-(put.src.size // PACKET_BYTES) // role.blocks))


def _one_shot(put: PutPackets, total: SumPackets, rank: int, world: int) -> tuple[Step, ...]:
    """What a rank does whose part goes whole to every peer, and lies there behind those of the ranks before it."""
    a, inbox, out, size = put.src.buffer, put.dst.buffer, total.dst.buffer, put.src.size
    part = Region(a, rank, 0, size)
    first, *others = (Region(inbox, peer, rank * size, size) for peer in _peers(rank, world))
    sources = tuple(part if s == rank else Region(inbox, rank, s * size, size) for s in range(world))
    return (PutPackets(part, first, tuple(others)),
            SumPackets(sources, Region(out, rank, 0, total.dst.size), total.element, total.out, total.extras, total.then))


def _two_shots(put: PutPackets, total: SumPackets, rank: int, world: int) -> tuple[Step, ...]:
    """What a rank does that sends every owner its rows, as many for each, and hands out the sum of its own."""
    a, inbox, out, result, size = put.src.buffer, put.dst.buffer, total.dst.buffer, total.others[0].buffer, put.src.size
    peers = _peers(rank, world)
    puts = (PutPackets(Region(a, rank, peer * size, size), Region(inbox, peer, rank * size, size)) for peer in peers)
    sources = tuple(Region(a if s == rank else inbox, rank, s * size, size) for s in range(world))
    summed = SumPackets(sources, Region(out, rank, rank * size, size), total.element, total.out, total.extras, total.then,
                        others=tuple(Region(result, peer, rank * size, size) for peer in peers))
    gets = (GetPackets(Region(result, rank, peer * size, size), Region(out, rank, peer * size, size)) for peer in peers)
    return *puts, summed, *gets


def _peers(rank: int, world: int) -> list[int]:
    return [(rank + d) % world for d in range(1, world)]


def _first(slot: Slot, targets: Iterable[Region]) -> int:
    """The number of rank 0's pointer, behind which those of the others lie; 0 without targets."""
    slots = {target.rank: slot(target) for target in targets}
    first = min((at - rank for rank, at in slots.items()), default=0)
    if any(at != first + rank for rank, at in slots.items()):
        raise PlanError("pointers to the packets of ranks follow each other", sorted(slots.items()), "keep their order")
    return first
