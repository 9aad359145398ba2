"""Products that are walked as one (include/tilescale/gemm_owners.cuh): their tiles lie one above the other, so that a
column of tiles of B is read once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from tilescale.schedules import tile
from tilescale.schedules.plan import Gemm, Launch, Step, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

SHIFT = 8  # of their number, in the field that says how many versions A has


def runs(schedule: Schedule, steps: Sequence[Step]) -> dict[int, int]:
    """How many products are walked as one, by the number of the first: those that follow each other and have as many rows,
    one of each peer. Own ones stay apart where they come last so that what is sent before is on its way meanwhile."""
    found: dict[int, list[Gemm]] = {}
    last: list[Gemm] = []
    for at, step in enumerate(steps):
        if type(step) is not Gemm:
            last = []
        elif last and _joins(schedule, last, step):
            last.append(step)
        else:
            last = found[at] = [step]
    return {first: len(products) for first, products in found.items()}


def _joins(schedule: Schedule, before: Sequence[Gemm], product: Gemm) -> bool:
    remote = product.out.rank != product.a.rank
    if remote and any(each.out.rank == product.out.rank for each in before):
        return False
    apart = schedule.overlap == "fused" and remote != (before[0].out.rank != before[0].a.rank)
    return product.m == before[0].m and not apart


def together(spec: Spec, schedule: Schedule, launch: Launch) -> bool:
    """Whether blocks of a launch walk products as one: there are some, and blocks wait for nothing in between."""
    if schedule.overlap == "fused" and schedule.chunk_order != "chunk_major":
        return False  # each chunk of an owner is told of behind it
    steps = list(launch.steps)
    if launch.family != "gemm" or len(launch.roles) > 1 or tile.mma_sync(spec) or tile.cluster(schedule) > 1:
        return False
    return not any(isinstance(step, Wait) for step in steps) and max(runs(schedule, steps).values(), default=1) > 1

