"""The row of a launch that exchanges packets: it says all, and comes with the arguments, so that no table is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tilescale.codegen.table import KIND_PACKETS, StepRow
from tilescale.errors import PlanError
from tilescale.schedules.plan import PACKET_BYTES, Copy, GetPackets, PutPackets, Region, Role, Step, SumPackets

Slot = Callable[[Region], int]


def packet_row(role: Role, rank: int, world: int, number: int, slot: Slot) -> StepRow:
    """The row of the steps of `role`, numbered from `number` on. `slot`: the number of the pointer to a buffer.

    Raises PlanError for steps of another form: kernels find packets by the numbers of their ranks alone.
    """
    put, *rest = role.steps
    if not isinstance(put, PutPackets) or role.steps not in tuple(_forms(put, rest, rank, world)):
        raise PlanError("a launch of packets goes from every rank to every other, for one sum or gather on each",
                        f"other steps on rank {rank}", "lower it so")
    target, handed = next((step.dst, step.others) for step in _last_of_own(rest))
    inbox = _first(slot, (to for step in role.steps if isinstance(step, PutPackets) for to in step.targets))
    return StepRow(KIND_PACKETS, number, source=slot(put.src), target=slot(target), counter=inbox,
                   per_call=_first(slot, handed), size=put.src.size, rows=-(-(put.src.size // PACKET_BYTES) // role.blocks))


def _last_of_own(steps: Iterable[Step]) -> Iterator[SumPackets]:
    """What stores the own rows of the output, as a sum."""
    for step in steps:
        if isinstance(step, SumPackets):
            yield step
        elif type(step) is Copy:
            yield SumPackets((step.src,), step.dst)


def _forms(put: PutPackets, rest: list[Step], rank: int, world: int) -> Iterator[tuple[Step, ...]]:
    """The lists of steps that the kernel carries out, with the buffers of these."""
    total = next((step for step in rest if isinstance(step, SumPackets)), None)
    if total is not None:
        yield _one_shot(put, total, rank, world)
        yield _by_owners(put, total, rank, world)
    elif rest and isinstance(rest[0], Copy):
        yield _gather(put, rest[0], rank, world)


def _to_all(put: PutPackets, rank: int, world: int) -> PutPackets:
    """All that a rank has goes to every peer, and lies there behind what came from the ranks before it."""
    size = put.src.size
    first, *others = (Region(put.dst.buffer, peer, rank * size, size) for peer in _peers(rank, world))
    return PutPackets(Region(put.src.buffer, rank, 0, size), first, tuple(others))


def _one_shot(put: PutPackets, total: SumPackets, rank: int, world: int) -> tuple[Step, ...]:
    sent = _to_all(put, rank, world)
    sources = tuple(sent.src if s == rank else Region(put.dst.buffer, rank, s * put.src.size, put.src.size)
                    for s in range(world))
    stored = Region(total.dst.buffer, rank, 0, total.dst.size)
    return sent, SumPackets(sources, stored, total.element, total.out, total.extras, total.then)


def _by_owners(put: PutPackets, total: SumPackets, rank: int, world: int) -> tuple[Step, ...]:
    """Every owner is sent its rows, as many for each. Sums are handed out where the output holds those of all."""
    a, inbox, out, size, peers = put.src.buffer, put.dst.buffer, total.dst.buffer, put.src.size, _peers(rank, world)
    puts = (PutPackets(Region(a, rank, peer * size, size), Region(inbox, peer, rank * size, size)) for peer in peers)
    sources = tuple(Region(a if s == rank else inbox, rank, s * size, size) for s in range(world))
    kinds = (total.element, total.out, total.extras, total.then)
    if not total.others:
        return *puts, SumPackets(sources, Region(out, rank, 0, total.dst.size), *kinds)
    result = total.others[0].buffer
    summed = SumPackets(sources, Region(out, rank, rank * size, size), *kinds,
                        others=tuple(Region(result, peer, rank * size, size) for peer in peers))
    return *puts, summed, *_gets(result, out, size, rank, world)


def _gather(put: PutPackets, own: Copy, rank: int, world: int) -> tuple[Step, ...]:
    sent, out, size = _to_all(put, rank, world), own.dst.buffer, put.src.size
    return sent, Copy(sent.src, Region(out, rank, rank * size, size)), *_gets(put.dst.buffer, out, size, rank, world)


def _gets(inbox: str, out: str, size: int, rank: int, world: int) -> Iterator[GetPackets]:
    return (GetPackets(Region(inbox, rank, peer * size, size), Region(out, rank, peer * size, size))
            for peer in _peers(rank, world))


def _peers(rank: int, world: int) -> list[int]:
    return [(rank + d) % world for d in range(1, world)]


def _first(slot: Slot, targets: Iterable[Region]) -> int:
    """The number of rank 0's pointer, behind which those of the others lie; 0 without targets."""
    slots = {target.rank: slot(target) for target in targets}
    first = min((at - rank for rank, at in slots.items()), default=0)
    if any(at != first + rank for rank, at in slots.items()):
        raise PlanError("pointers to the packets of ranks follow each other", sorted(slots.items()), "keep their order")
    return first
