"""Changes of plans: every kind is a function from a plan to its mutants, each with the place that was changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, takewhile

import moved_mutants  # noqa: F401  its kinds, and those of the next
import product_mutants  # noqa: F401
from plan_changes import (
    KINDS,
    Mutant,
    Steps,
    kind,
    moved,
    put,
    shifted,
    whole,
    with_launch,
)

from tilescale.schedules.footprint import accesses
from tilescale.schedules.plan import (
    Clear,
    Copy,
    Gemm,
    Grouped,
    PacketStep,
    Plan,
    Reduce,
    Role,
    Signal,
    Step,
    Sum,
    Wait,
)


# -- lost and repeated -------------------------------------------------------------------------------------------------
@kind("drop signal", Signal)
def _drop_signal(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at)


@kind("drop wait", Wait)
def _drop_wait(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at)


@kind("drop copy", (Copy, Reduce))
def _drop_copy(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at)


@kind("drop product", Gemm)
def _drop_product(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at)


@kind("drop clear", Clear)
def _drop_clear(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at)


@kind("duplicate signal", Signal)
def _duplicate_signal(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at, steps[at], steps[at])


@kind("duplicate write of an output", (Copy, Gemm))
def _duplicate_output(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    written = [region for region, write in accesses(steps[at]) if write]
    whole = bool(written) and plan.buffer(written[0].buffer).role == "output"
    return put(steps, at, steps[at], steps[at]) if whole else None


@kind("duplicate sum", Reduce)
def _duplicate_sum(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at, steps[at], steps[at])


# -- counts ------------------------------------------------------------------------------------------------------------
@kind("wait one long", Wait)
def _long(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Wait)
    return put(steps, at, replace(step, value=step.value + 1))


@kind("wait one short", Wait)
def _short(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Wait)
    return put(steps, at, replace(step, value=step.value - 1))


@kind("signal of another value", Signal)
def _value(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Signal)
    return put(steps, at, replace(step, value=step.value + 1))


@kind("counter out of range", Signal)
def _huge(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Signal)
    return put(steps, at, replace(step, value=2**30))


# -- wrong addressee ---------------------------------------------------------------------------------------------------
@kind("signal to a wrong peer", Signal)
def _wrong_peer(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Signal)
    return put(steps, at, replace(step, rank=(step.rank + 1) % plan.world))


@kind("signal of a wrong counter", Signal)
def _wrong_counter(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Signal)
    return put(steps, at, replace(step, counter=(step.counter + 1) % plan.counters)) if plan.counters > 1 else None


@kind("wait for a wrong counter", Wait)
def _wrong_wait(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Wait)
    return put(steps, at, replace(step, counter=(step.counter + 1) % plan.counters)) if plan.counters > 1 else None


@kind("data to a wrong peer", (Copy, Reduce))
def _wrong_target(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Copy | Reduce)
    if step.dst.rank == rank and plan.buffer(step.dst.buffer).role == "output":
        return None
    return put(steps, at, moved(step, step.src, replace(step.dst, rank=(step.dst.rank + 1) % plan.world)))


@kind("data of a wrong peer", (Copy, Reduce))
def _wrong_source(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Copy | Reduce)
    return put(steps, at, moved(step, replace(step.src, rank=(step.src.rank + 1) % plan.world), step.dst))


# -- wrong bytes -------------------------------------------------------------------------------------------------------


@kind("wrong chunk read", (Copy, Reduce))
def _wrong_chunk(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Copy | Reduce)
    source = shifted(plan, step.src, step.src.size)
    return None if source is None else put(steps, at, moved(step, source, step.dst))


@kind("wrong chunk written", (Copy, Reduce))
def _wrong_place(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Copy | Reduce)
    target = shifted(plan, step.dst, step.dst.size)
    return None if target is None else put(steps, at, moved(step, step.src, target))


@kind("offset off by one row", (Copy, Reduce))
def _off_by_row(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Copy | Reduce)
    source = shifted(plan, step.src, plan.goal.row_bytes)
    return None if source is None else put(steps, at, moved(step, source, step.dst))


@kind("bytes too few", (Copy, Reduce))
def _few(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Copy | Reduce)
    less = step.src.size - 16
    return put(steps, at, moved(step, replace(step.src, size=less), replace(step.dst, size=less))) if less > 0 else None


@kind("bytes too many", (Copy, Reduce))
def _many(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Copy | Reduce)
    more = step.src.size + plan.goal.row_bytes
    return put(steps, at, moved(step, replace(step.src, size=more), replace(step.dst, size=more)))


@kind("sizes that differ", (Copy, Reduce))
def _sizes(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Copy | Reduce)
    return put(steps, at, moved(step, step.src, replace(step.dst, size=step.dst.size - 4)))


@kind("wrong rows multiplied", Gemm)
def _wrong_rows(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Gemm)
    source = shifted(plan, step.a, step.a.size) or shifted(plan, step.a, plan.goal.row_bytes)
    return None if source is None else put(steps, at, replace(step, a=source))


@kind("product of a wrong shape", Gemm)
def _shape(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Gemm)
    return put(steps, at, replace(step, m=step.m + 1))


@kind("sum turned into a copy", Reduce)
def _copied(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Reduce)
    return put(steps, at, Copy(step.src, step.dst))


# -- sums of several sources -------------------------------------------------------------------------------------------
@kind("drop sum", Sum)
def _drop_sum(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at)


@kind("sum of a source less", Sum)
def _source_less(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Sum)
    return put(steps, at, replace(step, srcs=step.srcs[:-1])) if len(step.srcs) > 1 else None


@kind("sum of a source twice", Sum)
def _source_twice(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Sum)
    return put(steps, at, replace(step, srcs=(*step.srcs[:-1], step.srcs[0])))


@kind("sum of a source too many", Sum)
def _source_more(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Sum)
    return put(steps, at, replace(step, srcs=(*step.srcs, step.srcs[0])))


@kind("epilogue left out", (Gemm, Sum, Grouped))
def _epilogue_left_out(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Gemm | Sum | Grouped)
    return put(steps, at, replace(step, then=step.then[:-1])) if step.then else None


@kind("epilogue applied twice", (Gemm, Sum, Grouped))
def _epilogue_twice(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Gemm | Sum | Grouped)
    return put(steps, at, replace(step, then=(*step.then, plan.goal.then[-1]))) if step.then or (
        plan.goal.then and not isinstance(step, Grouped)) else None


@kind("extra operand cut short", (Gemm, Sum, Grouped))
def _extra_cut_short(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    if isinstance(step, Grouped):
        names = {extra.buffer for extra in plan.goal.extras}
        reads = tuple(replace(region, size=region.size // 2) if region.buffer in names else region for region in step.reads)
        return put(steps, at, replace(step, reads=reads)) if reads != step.reads else None
    assert isinstance(step, Gemm | Sum)
    short = tuple(replace(region, size=region.size // 2) for region in step.extras)
    return put(steps, at, replace(step, extras=short)) if short else None


@kind("other rows of an extra operand", (Gemm, Sum))
def _other_rows_of_an_extra(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step, rows = steps[at], {extra.buffer: extra.row_bytes for extra in plan.goal.extras}
    assert isinstance(step, Gemm | Sum)
    moved = []
    for region in step.extras:
        room = plan.buffer(region.buffer).size - region.end
        by = rows[region.buffer] if room else -rows[region.buffer]
        moved.append(replace(region, offset=region.offset + by) if region.offset + by >= 0 else region)
    return put(steps, at, replace(step, extras=tuple(moved)))


@kind("sum of other rows", Sum)
def _other_rows(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Sum)
    row = plan.goal.part_row_bytes or plan.goal.row_bytes
    source = shifted(plan, step.srcs[-1], row)
    return None if source is None else put(steps, at, replace(step, srcs=(*step.srcs[:-1], source)))


@kind("sum to other rows", Sum)
def _sum_off_by_row(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Sum)
    target = shifted(plan, step.dst, plan.goal.output_row_bytes)
    return None if target is None else put(steps, at, replace(step, dst=target))


@kind("sum at a wrong peer", Sum)
def _sum_elsewhere(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Sum)
    return put(steps, at, replace(step, dst=replace(step.dst, rank=(step.dst.rank + 1) % plan.world)))


@kind("sum of another element", Sum)
def _element(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Sum)
    return put(steps, at, replace(step, element="bfloat16" if step.element == "float32" else "float32"))


@kind("sum cut short", Sum)
def _cut_sum(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Sum)
    part, out = plan.goal.part_row_bytes or plan.goal.row_bytes, plan.goal.output_row_bytes
    if step.dst.size <= out:
        return None
    sources = tuple(replace(source, size=source.size - part) for source in step.srcs)
    return put(steps, at, replace(step, srcs=sources, dst=replace(step.dst, size=step.dst.size - out)))


@kind("sum turned into a copy", Sum)
def _sum_copied(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Sum)
    return put(steps, at, Copy(step.srcs[0], step.dst)) if step.srcs[0].size == step.dst.size else None


# -- order -------------------------------------------------------------------------------------------------------------
@kind("signal before its data", Signal)
def _early(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    if at == 0 or isinstance(steps[at - 1], Signal | Wait):
        return None
    return [*steps[: at - 1], steps[at], steps[at - 1], *steps[at + 1 :]]


@kind("use before its wait", Wait)
def _late(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    first = at - len(list(takewhile(lambda step: isinstance(step, Wait), reversed(steps[:at]))))
    waits = len(list(takewhile(lambda step: isinstance(step, Wait), steps[first:])))
    copies = len(list(takewhile(lambda step: isinstance(step, Copy), steps[first + waits :])))
    if waits == copies > 1:  # waited for side by side, a copy each
        use = at + waits
        return [*steps[:at], steps[use], *steps[at:use], *steps[use + 1 :]]
    if at + 1 >= len(steps) or isinstance(steps[at + 1], Signal | Wait):
        return None
    return [*steps[:at], steps[at + 1], steps[at], *steps[at + 2 :]]


@kind("signal delayed past the waits", Signal)
def _delayed(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    waits = [index for index, step in enumerate(steps) if isinstance(step, Wait) and index > at]
    if not waits:
        return None
    return [*steps[:at], *steps[at + 1 : waits[-1] + 1], steps[at], *steps[waits[-1] + 1 :]]


@kind("counters of two waits swapped", Wait)
def _swapped(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    waits = [index for index, step in enumerate(steps) if isinstance(step, Wait)]
    following = next((b for a, b in pairwise(waits) if a == at), None)
    # Neighbours are waited for in either order.
    if following is None or following == at + 1 or steps[at] == steps[following]:
        return None
    return put(put(steps, at, steps[following]), following, steps[at])


@whole("one version instead of two")
def _versions(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for buffer in plan.buffers:
        if buffer.versions == 2:
            buffers = tuple(replace(b, versions=1) if b is buffer else b for b in plan.buffers)
            yield buffer.name, replace(plan, buffers=buffers)


@whole("zeros never made")
def _zeros(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for buffer in plan.buffers:
        if buffer.zeroed:
            yield buffer.name, replace(plan, buffers=tuple(replace(b, zeroed=False) for b in plan.buffers))


@whole("packets without marks")
def _without_marks(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for buffer in plan.buffers:
        if buffer.packets:
            yield buffer.name, replace(plan, buffers=tuple(replace(b, packets=False) for b in plan.buffers))


@whole("packets of another number of blocks")
def _blocks_of_packets(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for index, launch in enumerate(plan.ranks[0]):
        if any(isinstance(step, PacketStep) for step in launch.steps):
            role = replace(launch.roles[0], blocks=launch.roles[0].blocks - 1)
            yield launch.name, with_launch(plan, 0, index, replace(launch, roles=(role,)))


@whole("buffer too small")
def _small(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for buffer in plan.buffers:
        if buffer.role == "workspace":
            smaller = replace(buffer, size=buffer.size - 16)
            yield buffer.name, replace(plan, buffers=tuple(smaller if b is buffer else b for b in plan.buffers))


@whole("buffer that peers cannot see")
def _hidden(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for buffer in plan.buffers:
        if buffer.peer_visible and plan.world > 1:
            hidden = replace(buffer, peer_visible=False)
            yield buffer.name, replace(plan, buffers=tuple(hidden if b is buffer else b for b in plan.buffers))


@whole("too many blocks")
def _blocks(plan: Plan) -> Iterator[tuple[str, Plan]]:
    waited = {(rank, s.counter) for rank in range(plan.world) for _, _, _, s in plan.steps_of(rank) if isinstance(s, Wait)}
    for index, launch in enumerate(plan.ranks[0]):
        meets = any(
            isinstance(s, Wait | PacketStep) or (isinstance(s, Signal) and (s.rank, s.counter) in waited)
            for s in launch.steps
        )
        if launch.agent == "blocks" and meets:
            yield launch.name, replace(plan, sm_share=launch.blocks - 1)
            role = launch.roles[-1]
            more = replace(role, blocks=role.blocks + plan.sm_share)
            yield launch.name, with_launch(plan, 0, index, replace(launch, roles=(*launch.roles[:-1], more)))
            return


@whole("gang of another size")
def _gang(plan: Plan) -> Iterator[tuple[str, Plan]]:
    waited = {(rank, s.counter) for rank in range(plan.world) for _, _, _, s in plan.steps_of(rank) if isinstance(s, Wait)}
    for index, launch in enumerate(plan.ranks[0]):
        for number, role in enumerate(launch.roles):
            counted = any(isinstance(s, Signal) and (s.rank, s.counter) in waited for s in role.steps)
            if role.agent == "blocks" and role.blocks > 1 and counted:
                fewer = replace(role, blocks=role.blocks - 1)
                roles = (*launch.roles[:number], fewer, *launch.roles[number + 1 :])
                yield f"{launch.name}/{role.name}", with_launch(plan, 0, index, replace(launch, roles=roles))
                return


@whole("launch that starts too early")
def _after(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for index, launch in enumerate(plan.ranks[0]):
        if launch.after and any(accesses(step) for step in launch.steps):
            yield launch.name, with_launch(plan, 0, index, replace(launch, after=()))


@whole("launch on a stream of its own")
def _stream(plan: Plan) -> Iterator[tuple[str, Plan]]:
    free = 1 + max(launch.stream for launch in plan.ranks[0])
    launches = plan.ranks[0]
    waited: set[int] = set()  # streams on which something has waited for other ranks
    for index, launch in enumerate(launches):
        if launch.stream in waited and not launch.after and any(accesses(step) for step in launch.steps):
            yield launch.name, with_launch(plan, 0, index, replace(launch, stream=free))
            return
        if any(isinstance(step, Wait) for step in launch.steps):
            waited.add(launch.stream)


@whole("too many threads")
def _threads(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for index, launch in enumerate(plan.ranks[0]):
        if launch.agent == "blocks":
            yield launch.name, with_launch(plan, 0, index, replace(launch, threads=plan.threads_limit + 32))
            return


@whole("too much shared memory")
def _shared(plan: Plan) -> Iterator[tuple[str, Plan]]:
    for index, launch in enumerate(plan.ranks[0]):
        if launch.agent == "blocks":
            yield launch.name, with_launch(plan, 0, index, replace(launch, shared_bytes=plan.smem_limit + 1))
            return


@whole("fewer stages than phases")
def _phases(plan: Plan) -> Iterator[tuple[str, Plan]]:
    if plan.phases:
        first = plan.phases[0]
        yield "two arrivals", replace(plan, phases=(replace(first, arrivals=2), *plan.phases[1:]))


def mutants(plan: Plan) -> Iterator[Mutant]:
    """All mutants of a plan, kind by kind."""
    for name in KINDS:
        yield from KINDS[name](plan)


def role_of(plan: Plan, rank: int, step: Step) -> Role | None:
    return next((role for launch in plan.ranks[rank] for role in launch.roles if step in role.steps), None)
