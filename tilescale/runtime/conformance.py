"""Conformance: what each step read, wrote, signalled and waited for must equal what the plan declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from tilescale.codegen.program import Program
from tilescale.runtime.conformance_parts import Parts
from tilescale.runtime.emulator_report import Range, RunReport, Signalled, StepLog, Waited
from tilescale.schedules.contracting import BOTH
from tilescale.schedules.packets import buffers_of
from tilescale.schedules.plan import (
    PACKET_COST,
    Clear,
    Contract,
    Copy,
    Gemm,
    Grouped,
    MultimemStore,
    Pass,
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
    Wait,
)


def deviations(plan: Plan, program: Program, report: RunReport, calls: int, first_call: int = 0) -> Iterator[str]:
    """One line for every step whose logged accesses differ from its declared ones, and for accesses outside steps.

    `first_call`: the epoch of the workspace when the run began.
    """
    strides = {placed.buffer: placed.stride for placed in program.placed}
    packets = buffers_of(plan)
    partly = {extra.buffer for extra in plan.goal.extras if extra.partly}
    log = {(s.call, s.rank, s.step): s for s in report.log}
    for call in range(calls):
        parts = Parts(call, first_call + call, strides)
        for rank in range(plan.world):
            totals = plan.counter_totals(rank)
            for number, launch, role, step in plan.steps_of(rank):
                found = log.pop((call, rank, number), StepLog(call, rank, number))
                declared = _declared(step, role, rank, number, first_call + call, strides, packets, totals)
                wanted = replace(declared, call=call)
                if isinstance(step, Gemm) and plan.buffer(step.a.buffer).role == "input":
                    found = _within(found, wanted)
                if isinstance(step, Gemm) and partly:
                    found = _partly(found, wanted, partly)
                if isinstance(step, Sum):
                    # Of a number a column, a sum of less than a row reads those of its own columns.
                    found = _partly(found, wanted, {each.buffer for each in step.extras if each.size > step.dst.size})
                if isinstance(step, Contract) and step.gathered != BOTH:
                    found = _of_inputs(found, wanted, (step.local,))
                if isinstance(step, Pieces | SharedGemm):
                    found = _of_inputs(found, wanted, (step.a, step.b))
                if isinstance(step, Grouped):
                    parts.add(step, found)
                if isinstance(step, Ragged):
                    found = _bounded(found, wanted)
                place = f"call {call} rank {rank} launch {launch.name} step {number} ({type(step).__name__})"
                yield from _differences(place, wanted, found)
        yield from parts.shared()
    for (call, rank, number), rest in sorted(log.items()):
        if number >= 0 and (rest.reads or rest.writes or rest.signals):
            yield f"call {call} rank {rank}: step {number} is not in the plan, and was carried out"
        elif number < 0 and rest.signals:
            yield f"call {call} rank {rank}: signals outside of any step: {rest.signals[0]}"


def _declared(step: Step, role: Role, rank: int, number: int, call: int, strides: dict[str, int],
              packets: frozenset[str], totals: tuple[int, ...]) -> StepLog:
    def where(region: Region) -> Range:
        base, cost = strides.get(region.buffer, 0) * (call % 2), PACKET_COST if region.buffer in packets else 1
        return Range(region.rank, region.buffer, base + region.offset * cost, base + region.end * cost)

    if isinstance(step, Clear):
        return StepLog(call, rank, number, writes=(where(step.dst),))
    if isinstance(step, MultimemStore | PutPackets):
        return StepLog(call, rank, number, reads=(where(step.src),), writes=_joined(map(where, step.targets)))
    if isinstance(step, Copy | Reduce):
        return StepLog(call, rank, number, reads=_joined(map(where, rows_of(step.src))),
                       writes=_joined(map(where, rows_of(step.dst))))
    if isinstance(step, Sum):
        return StepLog(call, rank, number, reads=_joined(map(where, (*step.srcs, *step.extras))),
                       writes=_joined(map(where, step.targets)))
    if isinstance(step, Grouped):  # by the ranges that its parts lie in
        reads, writes = step.within[:len(step.reads)], step.within[len(step.reads):]
        return StepLog(call, rank, number, reads=_joined(map(where, reads)), writes=_joined(map(where, writes)))
    if isinstance(step, Ragged):
        return StepLog(call, rank, number, reads=_joined(map(where, step.reads)), writes=_joined(map(where, step.writes)))
    if isinstance(step, Signal):
        amount = step.value * role.blocks
        return StepLog(call, rank, number, signals=(Signalled(step.rank, step.counter, amount),))
    if isinstance(step, Wait):
        target = (call * totals[step.counter] + step.value) % 2**32  # counters and epochs wrap
        return StepLog(call, rank, number, waits=(Waited(step.counter, target, target),))
    if isinstance(step, Pieces):
        return StepLog(call, rank, number, reads=tuple(sorted(map(where, (step.a, step.b)))),
                       writes=tuple(map(where, step.parts)))
    if isinstance(step, Pass):
        read = (step.a, step.b, *(() if step.first else step.sums))
        written = (step.out,) if step.last else step.sums
        return StepLog(call, rank, number, reads=tuple(sorted(map(where, read))), writes=tuple(map(where, written)))
    extras = step.extras if isinstance(step, Gemm) else ()
    extras += step.parts if isinstance(step, SharedGemm) else ()
    stored = (where(step.out),) if not isinstance(step, Contract) or step.last else ()
    return StepLog(call, rank, number, reads=tuple(sorted(map(where, (step.a, step.b, *extras)))), writes=stored)


def rows_of(region: Region) -> Iterator[Region]:
    """The contiguous parts of a region."""
    if not region.loops:
        yield region
        return
    for index in product(*(range(count) for count, _ in region.loops)):
        at = sum(i * pitch for i, (_, pitch) in zip(index, region.loops, strict=True))
        yield Region(region.buffer, region.rank, region.offset + at, region.row)


def _joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sorted, with neighbours in one."""
    found: list[Range] = []
    for part in sorted(ranges):
        last = found[-1] if found else None
        if last is not None and (last.rank, last.buffer, last.end) == (part.rank, part.buffer, part.begin):
            found[-1] = replace(last, end=part.end)
        else:
            found.append(part)
    return tuple(found)


def _within(found: StepLog, wanted: StepLog) -> StepLog:
    """Without what a last tile loads of the rows behind its own: of an input, which only the caller writes."""
    cut = []
    for read in found.reads:
        covers = [w for w in wanted.reads if (w.rank, w.buffer, w.begin) == (read.rank, read.buffer, read.begin)]
        cut.append(replace(read, end=min(read.end, covers[0].end)) if covers else read)
    return replace(found, reads=tuple(cut))


def _partly(found: StepLog, wanted: StepLog, buffers: set[str]) -> StepLog:
    """As declared where it read nothing else of these buffers than that."""
    declared = [w for w in wanted.reads if w.buffer in buffers]
    inside = all(any((w.rank, w.buffer) == (r.rank, r.buffer) and w.begin <= r.begin and r.end <= w.end for w in declared)
                 for r in found.reads if r.buffer in buffers)
    if not inside:
        return found
    return replace(found, reads=tuple(sorted([*(r for r in found.reads if r.buffer not in buffers), *declared])))


def _of_inputs(found: StepLog, wanted: StepLog, operands: Iterable[Region]) -> StepLog:
    """With all of these operands, which only the caller writes, in place of the parts of them that were read."""
    for operand in operands:
        whole = [read for read in wanted.reads if (read.rank, read.buffer) == (operand.rank, operand.buffer)]
        parts = [read for read in found.reads if whole and (read.rank, read.buffer) == (whole[0].rank, whole[0].buffer)]
        if parts and all(whole[0].begin <= part.begin and part.end <= whole[0].end for part in parts):
            found = replace(found, reads=tuple(sorted((*(read for read in found.reads if read not in parts), *whole))))
    return found


def _bounded(found: StepLog, wanted: StepLog) -> StepLog:
    """As declared where all that was touched lies inside what was declared: how much of it is known on the device alone."""
    def inside(touched: tuple[Range, ...], declared: tuple[Range, ...]) -> tuple[Range, ...]:
        outside = [r for r in touched if not any((w.rank, w.buffer) == (r.rank, r.buffer) and w.begin <= r.begin
                                                 and r.end <= w.end for w in declared)]
        return tuple(outside) or declared

    return replace(found, reads=inside(found.reads, wanted.reads), writes=inside(found.writes, wanted.writes))


def _differences(place: str, wanted: StepLog, found: StepLog) -> Iterator[str]:
    for what in ("reads", "writes", "signals"):
        if getattr(wanted, what) != getattr(found, what):
            yield f"{place} {what}: declared {_text(getattr(wanted, what))}, carried out {_text(getattr(found, what))}"
    declared = [(w.counter, w.target) for w in wanted.waits]
    if declared != [(w.counter, w.target) for w in found.waits]:
        yield f"{place} waits: declared {_text(wanted.waits)}, carried out {_text(found.waits)}"


def _text(items: tuple[object, ...]) -> str:
    shown = ", ".join(str(item) for item in items[:3])
    return f"[{shown}{', ...' if len(items) > 3 else ''}]"
