"""How plans are changed: what the kinds of change share. A kind is a function from a plan to its mutants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import UnionType
from typing import TypeVar

from tilescale.schedules.plan import (
    Copy,
    Launch,
    Plan,
    Reduce,
    Region,
    Step,
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


def moved(step: Step, source: Region, target: Region) -> Step:
    assert isinstance(step, Copy | Reduce)
    return replace(step, src=source, dst=target)


def shifted(plan: Plan, region: Region, by: int) -> Region | None:
    size = plan.buffer(region.buffer).size
    for offset in (region.offset + by, region.offset - by):
        if offset >= 0 and offset + region.size <= size:
            return replace(region, offset=offset)
    return None


def whole(name: str) -> Callable[[Callable[[Plan], Iterator[tuple[str, Plan]]]], None]:
    def register(changes: Callable[[Plan], Iterator[tuple[str, Plan]]]) -> None:
        KINDS[name] = lambda plan: (Mutant(name, place, changed) for place, changed in changes(plan))

    return register
