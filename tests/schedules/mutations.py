"""Random changes of signals, waits, copies and order of hand-built plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from handmade import edit

from tilescale.schedules.plan import Copy, Plan, Signal, Step, Wait

# (rank, number, kind) with large integers, taken modulo what the plan has
Mutation = tuple[int, int, int]
KINDS = 12


def mutate(plan: Plan, mutations: Sequence[Mutation]) -> Plan:
    """Apply the mutations in turn; those that do not fit a step leave the plan as it is."""
    for rank, number, kind in mutations:
        rank %= plan.world
        steps = [step for _, _, _, step in plan.steps_of(rank)]
        number %= len(steps)
        if kind % KINDS == 10:
            plan = replace(plan, buffers=tuple(replace(b, versions=1) for b in plan.buffers))
        elif kind % KINDS == 11 and number + 1 < len(steps) and _same_role(plan, rank, number):
            following = steps[number + 1]
            plan = edit(
                edit(plan, rank, number + 1, lambda step: []), rank, number, lambda step, f=following: [f, step]
            )
        else:
            plan = edit(plan, rank, number, lambda step, p=plan, k=kind % KINDS: _change(p, k, step))
    return plan


def _same_role(plan: Plan, rank: int, number: int) -> bool:
    places = [(launch.name, role.name) for _, launch, role, _ in plan.steps_of(rank)]
    return places[number] == places[number + 1]


def _change(plan: Plan, kind: int, step: Step) -> list[Step]:
    if kind == 0 and isinstance(step, Signal | Wait):
        return []
    if kind == 1:
        return [step, step]
    if isinstance(step, Wait):
        if kind in (2, 3):
            return [replace(step, value=max(1, step.value + (1 if kind == 2 else -1)))]
        if kind == 4:
            return [replace(step, counter=(step.counter + 1) % plan.counters)]
    if isinstance(step, Signal):
        if kind == 5:
            return [replace(step, rank=(step.rank + 1) % plan.world)]
        if kind == 6:
            return [replace(step, counter=(step.counter + 1) % plan.counters)]
        if kind == 7:
            return [replace(step, value=step.value + 1)]
    if isinstance(step, Copy) and kind == 8:
        return [replace(step, dst=replace(step.dst, rank=(step.dst.rank + 1) % plan.world))]
    if kind == 9:
        return []
    return [step]


def changed(plan: Plan, change: Callable[[Step], Step | None]) -> Plan:
    """The plan with every step of every rank changed; None drops it."""
    def steps(found: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(new for new in map(change, found) if new is not None)

    return replace(plan, ranks=tuple(tuple(
        replace(launch, roles=tuple(replace(role, steps=steps(role.steps)) for role in launch.roles))
        for launch in rank) for rank in plan.ranks))
