"""Packets: what a block sends and waits for by itself, and the rules of the launches that exchange them.

A packet holds PACKET_BYTES of data and, beside each half of them, the mark of the call, so that no half can be taken for
what it is not. The mark is the epoch with its highest bit set: it differs from what calls before have left there, and from
the zeros of a new workspace. Whoever finds the mark has the data, so a packet needs no fence, no signal and no counter: one
trip over the link. For the same reason it orders nothing else. So a launch that exchanges packets does nothing besides, and
all else that it touches is its rank's own.

Why two versions are enough for one shot: rank r writes a version again two calls later. It has then ended the call between,
for which it waited for the packets of every peer; a peer sent these only after its call before had ended, in which it read
what r had written. For two shots one version is enough: a rank ends a call with packets from every peer, each of which has
then read what the rank sent. The verifier proves this for each plan, and finds the race where a version is missing.
"""

from __future__ import annotations

from dataclasses import replace

from tilescale.schedules.plan import (
    PACKET_BYTES,
    Buffer,
    Copy,
    GetPackets,
    Launch,
    PacketStep,
    Plan,
    PutPackets,
    Region,
    Role,
    Step,
    SumPackets,
)

Problem = tuple[str, str]
Key = tuple[int, str, int, int]  # rank, buffer, offset and size: bytes that tell by themselves that they are there


def exchanges_packets(role: Role) -> bool:
    """Whether blocks of a role send or await packets, each those of its own share."""
    return any(isinstance(step, PacketStep) for step in role.steps)


def of_block(step: Step, block: int, blocks: int, whole: frozenset[str] = frozenset()) -> Step | None:
    """What block `block` of `blocks` does of a step that exchanges packets; None where nothing is left for it. Operands in
    `whole` are read whole. Other steps are as they are."""
    if not isinstance(step, PacketStep):
        return step
    units = (step.srcs[0] if isinstance(step, SumPackets) else step.src).size // PACKET_BYTES
    each = -(-units // blocks)
    low, high = min(each * block, units), min(each * (block + 1), units)
    if low == high:
        return None

    def part(region: Region) -> Region:
        unit = region.size // units
        return replace(region, offset=region.offset + low * unit, size=(high - low) * unit)

    if isinstance(step, GetPackets):
        return replace(step, src=part(step.src), dst=part(step.dst))
    others = tuple(map(part, step.others))
    if isinstance(step, PutPackets):
        return replace(step, src=part(step.src), dst=part(step.dst), others=others)
    extras = tuple(region if region.buffer in whole else part(region) for region in step.extras)
    return replace(step, srcs=tuple(map(part, step.srcs)), dst=part(step.dst), extras=extras, others=others)


def key_of(region: Region) -> Key:
    return region.rank, region.buffer, region.offset, region.size


def sent(step: Step) -> tuple[Region, ...]:
    """The packets that a step sends."""
    return step.targets if isinstance(step, PutPackets) else step.others if isinstance(step, SumPackets) else ()


def awaited(step: Step, buffers: frozenset[str]) -> tuple[Region, ...]:
    """The packets that a step waits for; `buffers` hold packets."""
    read = step.srcs if isinstance(step, SumPackets) else (step.src,) if isinstance(step, GetPackets) else ()
    return tuple(region for region in read if region.buffer in buffers)


def buffers_of(plan: Plan) -> frozenset[str]:
    """The buffers of packets."""
    return frozenset(buffer.name for buffer in plan.buffers if buffer.packets)


# -- rules -------------------------------------------------------------------------------------------------------------
def check_buffer(buffer: Buffer) -> bool:
    """Whether a buffer of packets begins without marks, where peers can store them."""
    whole = buffer.size % PACKET_BYTES == 0 and not buffer.grid
    return not buffer.packets or (buffer.role == "workspace" and buffer.zeroed and buffer.peer_visible and whole)


def check_launch(plan: Plan, launch: Launch) -> Problem | None:
    """A launch that exchanges packets does nothing else, and what else it touches no peer can see: packets order their own
    bytes alone, and threads of a block do not wait for each other."""
    if not any(isinstance(step, PacketStep) for step in launch.steps):
        return None
    if launch.agent != "blocks" or not all(isinstance(step, PacketStep) for step in launch.steps):
        return "packets", "a launch of blocks that exchanges packets does nothing else, since they order nothing else"
    packets, visible = buffers_of(plan), {buffer.name for buffer in plan.buffers if buffer.peer_visible}
    for step in launch.steps:
        touched = (step.src, step.dst) if isinstance(step, Copy) else (*step.srcs, *step.extras, step.dst) \
            if isinstance(step, SumPackets) else ()
        seen = [r.buffer for r in touched if r.buffer in visible - packets and plan.buffer(r.buffer).role != "input"]
        if seen:
            return "packets", f"what packets go with is seen by no peer, since they do not order it; got {seen[0]}"
    return None


def check_packets(plan: Plan, rank: int, step: Step) -> Problem | None:
    """Packets go to peers, in whole ones, and are awaited where they lie. What comes or goes besides is plain."""
    packets, plain = buffers_of(plan), list[Region]()
    if isinstance(step, SumPackets):
        read, plain = step.srcs, [*step.extras, step.dst]
        wrong = step.carried != "" or any(region.size != step.dst.size for region in step.others)
    elif isinstance(step, GetPackets):
        read, plain, wrong = (step.src,), [step.dst], False
    elif isinstance(step, PutPackets):
        read, plain = (), [step.src]
        wrong = any(region.size != step.src.size for region in step.targets)
    else:
        return None
    there, here = sent(step), awaited(step, packets)
    if wrong or any(region.buffer in packets or region.rank != rank for region in plain) or any(
            region.buffer not in packets or region.rank == rank for region in there) or any(
            region.rank != rank for region in read) or (read and not here):
        return "packets", "packets go to peers, and are awaited by the rank where they lie; all else is plain, and its own"
    regions = (*there, *here, *plain[-1:], *read)
    if any(region.loops or region.offset % PACKET_BYTES or region.size % PACKET_BYTES for region in regions):
        return "packets", f"what travels as packets is whole packets of {PACKET_BYTES} bytes"
    return None
