"""Changes of packets, of sums that hand out more, and of ragged steps."""

from __future__ import annotations

from dataclasses import replace

from plan_changes import (
    Steps,
    kind,
    put,
    shifted,
)

from tilescale.schedules.plan import (
    Copy,
    PacketStep,
    Plan,
    PutPackets,
    Ragged,
    Region,
    Signal,
    Step,
    Sum,
    SumAside,
    SumPackets,
)


# -- packets -----------------------------------------------------------------------------------------------------------
@kind("packets to a peer less", PutPackets)
def _peer_less(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, PutPackets)
    return put(steps, at, replace(step, others=step.others[:-1])) if step.others else None


@kind("packets to a peer twice", PutPackets)
def _peer_twice(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, PutPackets)
    return put(steps, at, replace(step, others=(*step.others[:-1], step.dst))) if step.others else None


@kind("packets in the place of another rank", PutPackets)
def _another_place(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, PutPackets)
    target = shifted(plan, step.others[-1], step.dst.size) if step.others else None
    return None if target is None else put(steps, at, replace(step, others=(*step.others[:-1], target)))


@kind("packets awaited before they are sent", SumPackets)
def _awaited_first(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return [steps[at], *steps[:at], *steps[at + 1 :]] if at else None


@kind("packets stored as plain bytes", PutPackets)
def _stored_plainly(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, PutPackets)
    return put(steps, at, *(Copy(step.src, target) for target in step.targets))


@kind("packets read as plain bytes", SumPackets)
def _read_plainly(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, SumPackets)
    return put(steps, at, Sum(step.srcs, step.dst, step.element, step.out, step.extras, step.then))


# -- sums that hand out more -------------------------------------------------------------------------------------------
@kind("what is handed out besides left out", SumAside)
def _aside_left_out(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, SumAside)
    return put(steps, at, Sum(step.srcs, step.dst, step.element, step.out, step.extras, step.then))


@kind("what is handed out besides in the place of the result", SumAside)
def _aside_exchanged(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, SumAside)
    return put(steps, at, replace(step, dst=step.aside[0], aside=(step.dst,)))


@kind("what is handed out besides of other rows", SumAside)
def _aside_of_other_rows(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, SumAside)
    moved = shifted(plan, step.aside[0], plan.goal.output_row_bytes)
    return None if moved is None else put(steps, at, replace(step, aside=(moved,)))


@kind("signal beside packets", PacketStep)
def _signal_beside(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at, steps[at], Signal((rank + 1) % plan.world, 0))


# -- steps whose sizes the device knows --------------------------------------------------------------------------------
@kind("drop ragged step", Ragged)
def _drop_ragged(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at)


@kind("ragged step for a wrong peer", Ragged)
def _ragged_peer(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Ragged)
    if step.task in ("route", "total", "tally"):
        return None
    return put(steps, at, replace(step, peer=(step.peer + 1) % plan.world))


def _read(step: Step, at: int, region: Region | None) -> Step | None:
    assert isinstance(step, Ragged)
    if region is None or region == step.reads[at]:
        return None
    return replace(step, reads=(*step.reads[:at], region, *step.reads[at + 1 :]))


@kind("segment of a wrong source", Ragged)
def _wrong_segment(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Ragged)
    found = [i for i, region in enumerate(step.reads) if region.buffer == "inbox"]
    stride = plan.buffer("inbox").size // plan.world
    changed = _read(step, found[-1], shifted(plan, step.reads[found[-1]], stride)) if found else None
    return None if changed is None else put(steps, at, changed)


@kind("segment of a wrong target", Ragged)
def _wrong_inbox(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Ragged)
    if not step.writes or step.writes[0].buffer != "inbox":
        return None
    moved_ = shifted(plan, step.writes[0], plan.buffer("inbox").size // plan.world)
    return None if moved_ is None else put(steps, at, replace(step, writes=(moved_, *step.writes[1:])))


@kind("segment at a wrong rank", Ragged)
def _wrong_holder(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Ragged)
    if not step.writes or step.writes[0].buffer != "inbox":
        return None
    other = replace(step.writes[0], rank=(step.writes[0].rank + 1) % plan.world)
    return put(steps, at, replace(step, writes=(other, *step.writes[1:])))


@kind("ragged step that reads less", Ragged)
def _reads_less(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Ragged)
    return put(steps, at, replace(step, reads=step.reads[:-1])) if step.reads else None


@kind("ragged step that reads one thing twice", Ragged)
def _reads_twice(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Ragged)
    changed = _read(step, len(step.reads) - 1, step.reads[0]) if len(step.reads) > 1 else None
    return None if changed is None else put(steps, at, changed)


@kind("ragged step that writes less", Ragged)
def _writes_less(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Ragged)
    return put(steps, at, replace(step, writes=step.writes[:-1])) if step.writes else None


@kind("ragged step outside of its segment", Ragged)
def _too_far(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Ragged)
    if not step.writes:
        return None
    last = step.writes[-1]
    return put(steps, at, replace(step, writes=(*step.writes[:-1], replace(last, size=last.size + 16))))


@kind("ragged step before the one it needs", Ragged)
def _too_early(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    before = [i for i in range(at) if isinstance(steps[i], Ragged)]
    if not before:
        return None
    return put(put(steps, at, steps[before[-1]]), before[-1], steps[at])
