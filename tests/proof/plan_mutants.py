"""Changes of plans: every kind is a function from a plan to its mutants, each with the place that was changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from types import UnionType
from typing import TypeVar

from tilescale.schedules.footprint import accesses
from tilescale.schedules.plan import (
    Clear,
    Contract,
    Copy,
    Gemm,
    Launch,
    PacketStep,
    Pieces,
    Plan,
    PutPackets,
    Ragged,
    Reduce,
    Region,
    Role,
    SharedGemm,
    Signal,
    Step,
    Sum,
    SumPackets,
    Wait,
)

S = TypeVar("S", bound=Step)
SITES = 3


@dataclass(frozen=True)
class Mutant:
    """`place` in words. `step` is the step that was changed, `rank` its rank (-1: the whole plan)."""

    kind: str
    place: str
    plan: Plan
    rank: int = -1
    step: Step | None = None


Steps = list[Step]
Rewrite = Callable[[Plan, int, Steps, int], Steps | None]  # plan, rank, the steps of a role, index in it
KINDS: dict[str, Callable[[Plan], Iterator[Mutant]]] = {}


def spread(found: list[S], count: int = SITES) -> list[S]:
    """First, middle and last."""
    return found if len(found) <= count else [found[i * (len(found) - 1) // (count - 1)] for i in range(count)]


def rewrite_role(plan: Plan, rank: int, launch: int, role: int, steps: Iterable[Step]) -> Plan:
    old = plan.ranks[rank][launch]
    roles = (*old.roles[:role], replace(old.roles[role], steps=tuple(steps)), *old.roles[role + 1 :])
    return with_launch(plan, rank, launch, replace(old, roles=roles))


def with_launch(plan: Plan, rank: int, index: int, launch: Launch) -> Plan:
    launches = (*plan.ranks[rank][:index], launch, *plan.ranks[rank][index + 1 :])
    return replace(plan, ranks=(*plan.ranks[:rank], launches, *plan.ranks[rank + 1 :]))


def sites(plan: Plan, rank: int, wanted: type | tuple[type, ...] | UnionType) -> list[tuple[int, int, int]]:
    """(launch, role, index) of the steps of a kind."""
    return [
        (i, j, k)
        for i, launch in enumerate(plan.ranks[rank])
        for j, role in enumerate(launch.roles)
        for k, step in enumerate(role.steps)
        if isinstance(step, wanted)
    ]


def kind(name: str, wanted: type | tuple[type, ...] | UnionType) -> Callable[[Rewrite], Rewrite]:
    """Registers a change of one step: on a single rank at several places, and at one place on all ranks alike."""

    def register(rewrite: Rewrite) -> Rewrite:
        def apply(plan: Plan, rank: int, site: tuple[int, int, int]) -> Plan | None:
            steps = list(plan.ranks[rank][site[0]].roles[site[1]].steps)
            changed = rewrite(plan, rank, steps, site[2])
            return None if changed is None else rewrite_role(plan, rank, site[0], site[1], changed)

        def mutants(plan: Plan) -> Iterator[Mutant]:
            rank = plan.world - 1
            fitting = [site for site in sites(plan, rank, wanted) if apply(plan, rank, site) not in (None, plan)]
            for site in spread(fitting):
                step = plan.ranks[rank][site[0]].roles[site[1]].steps[site[2]]
                changed = apply(plan, rank, site)
                assert changed is not None
                yield Mutant(name, f"rank {rank} {_where(plan, rank, site)}", changed, rank, step)
            for site in fitting[len(fitting) // 2 :][:1]:
                whole: Plan | None = plan
                for every in range(plan.world):
                    alike = sites(plan, every, wanted) == sites(plan, rank, wanted)
                    whole = apply(whole, every, site) if whole is not None and alike else None
                step = plan.ranks[rank][site[0]].roles[site[1]].steps[site[2]]
                if whole is not None:
                    yield Mutant(name, f"all ranks {_where(plan, rank, site)}", whole, rank, step)

        KINDS[name] = mutants
        return rewrite

    return register


def _where(plan: Plan, rank: int, site: tuple[int, int, int]) -> str:
    launch = plan.ranks[rank][site[0]]
    return f"{launch.name}/{launch.roles[site[1]].name} step {site[2]} of {len(launch.roles[site[1]].steps)}"


def put(steps: Steps, index: int, *new: Step) -> Steps:
    return [*steps[:index], *new, *steps[index + 1 :]]


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


def moved(step: Step, source: Region, target: Region) -> Step:
    assert isinstance(step, Copy | Reduce)
    return replace(step, src=source, dst=target)


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
def _shift(plan: Plan, region: Region, by: int) -> Region | None:
    size = plan.buffer(region.buffer).size
    for offset in (region.offset + by, region.offset - by):
        if offset >= 0 and offset + region.size <= size:
            return replace(region, offset=offset)
    return None


@kind("wrong chunk read", (Copy, Reduce))
def _wrong_chunk(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Copy | Reduce)
    source = _shift(plan, step.src, step.src.size)
    return None if source is None else put(steps, at, moved(step, source, step.dst))


@kind("wrong chunk written", (Copy, Reduce))
def _wrong_place(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Copy | Reduce)
    target = _shift(plan, step.dst, step.dst.size)
    return None if target is None else put(steps, at, moved(step, step.src, target))


@kind("offset off by one row", (Copy, Reduce))
def _off_by_row(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Copy | Reduce)
    source = _shift(plan, step.src, plan.goal.row_bytes)
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
    source = _shift(plan, step.a, step.a.size) or _shift(plan, step.a, plan.goal.row_bytes)
    return None if source is None else put(steps, at, replace(step, a=source))


@kind("product of a wrong shape", Gemm)
def _shape(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Gemm)
    return put(steps, at, replace(step, m=step.m + 1))


# -- segments of a contraction ------------------------------------------------------------------------------------------
@kind("drop segment", Contract)
def _drop_segment(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at)


@kind("segment twice", Contract)
def _segment_twice(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    return put(steps, at, replace(step, last=False), replace(step, first=False))


@kind("segment not multiplied, another twice", Contract)
def _segment_for_another(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    other = next((s for s in steps if isinstance(s, Contract) and s is not step and s.k == step.k), None)
    return None if other is None else put(steps, at, replace(other, first=step.first, last=step.last))


@kind("segment met by other rows", Contract)
def _segment_shifted(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    return put(steps, at, replace(step, at=step.at + 1 if step.at == 0 else step.at - 1))


@kind("segment of other rows", Contract)
def _segment_rows(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    source = _shift(plan, step.segment, step.segment.size) or _shift(plan, step.segment, plan.goal.row_bytes)
    if source is None:
        return None
    return put(steps, at, replace(step, b=source) if step.gathered else replace(step, a=source))


@kind("segment of a wrong shape", Contract)
def _segment_shape(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    return put(steps, at, replace(step, k=step.k + 1))


@kind("product that starts anew", Contract)
def _anew(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    return put(steps, at, replace(step, first=not step.first))


@kind("product that ends early", Contract)
def _ends_early(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    return put(steps, at, replace(step, last=not step.last))


# -- tiles that blocks share --------------------------------------------------------------------------------------------
@kind("drop pieces", Pieces)
def _drop_pieces(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at)


@kind("pieces left elsewhere", Pieces)
def _elsewhere(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Pieces)
    return put(steps, at, replace(step, parts=tuple(replace(part, offset=part.offset + 16) for part in step.parts)))


@kind("pieces of other rows", Pieces)
def _other_rows(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Pieces)
    return put(steps, at, replace(step, a=replace(step.a, offset=step.a.offset + plan.goal.row_bytes)))


@kind("pieces left at a wrong peer", Pieces)
def _left_at_peer(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Pieces)
    return put(steps, at, replace(step, parts=tuple(replace(part, rank=(rank + 1) % plan.world) for part in step.parts)))


@kind("pieces not added", SharedGemm)
def _not_added(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, SharedGemm)
    return put(steps, at, replace(step, parts=step.parts[:-1]))


@kind("product of its own beside pieces", SharedGemm)
def _plain_product(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, SharedGemm)
    return put(steps, at, Gemm(step.a, step.b, step.out, step.m, step.n, step.k, step.extras, step.then))


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


@kind("epilogue left out", (Gemm, Sum))
def _epilogue_left_out(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Gemm | Sum)
    return put(steps, at, replace(step, then=step.then[:-1])) if step.then else None


@kind("epilogue applied twice", (Gemm, Sum))
def _epilogue_twice(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Gemm | Sum)
    return put(steps, at, replace(step, then=(*step.then, plan.goal.then[-1]))) if plan.goal.then else None


@kind("extra operand cut short", (Gemm, Sum))
def _extra_cut_short(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
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
    source = _shift(plan, step.srcs[-1], row)
    return None if source is None else put(steps, at, replace(step, srcs=(*step.srcs[:-1], source)))


@kind("sum to other rows", Sum)
def _sum_off_by_row(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Sum)
    target = _shift(plan, step.dst, plan.goal.output_row_bytes)
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
    target = _shift(plan, step.others[-1], step.dst.size) if step.others else None
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
    changed = _read(step, found[-1], _shift(plan, step.reads[found[-1]], stride)) if found else None
    return None if changed is None else put(steps, at, changed)


@kind("segment of a wrong target", Ragged)
def _wrong_inbox(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Ragged)
    if not step.writes or step.writes[0].buffer != "inbox":
        return None
    moved_ = _shift(plan, step.writes[0], plan.buffer("inbox").size // plan.world)
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


# -- order -------------------------------------------------------------------------------------------------------------
@kind("signal before its data", Signal)
def _early(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    if at == 0 or isinstance(steps[at - 1], Signal | Wait):
        return None
    return [*steps[: at - 1], steps[at], steps[at - 1], *steps[at + 1 :]]


@kind("use before its wait", Wait)
def _late(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
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


# -- whole launches and plans ------------------------------------------------------------------------------------------
def whole(name: str) -> Callable[[Callable[[Plan], Iterator[tuple[str, Plan]]]], None]:
    def register(changes: Callable[[Plan], Iterator[tuple[str, Plan]]]) -> None:
        KINDS[name] = lambda plan: (Mutant(name, place, changed) for place, changed in changes(plan))

    return register


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
