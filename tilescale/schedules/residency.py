"""Checks of launches against the machine: blocks resident together, threads and shared memory, counter range."""

from __future__ import annotations

from tilescale.schedules.footprint import counter_totals
from tilescale.schedules.plan import Launch, PacketStep, Plan, Signal, Wait
from tilescale.schedules.story import Counterexample, Place

COUNTER_LIMIT = 2**31


def check_resources(plan: Plan) -> Counterexample | None:
    """Threads and shared bytes of a block within the limits of the plan."""
    for rank, launches in enumerate(plan.ranks):
        for launch in launches:
            if launch.threads > plan.threads_limit:
                return Counterexample(
                    "resources",
                    f"a block has {launch.threads} threads, the limit is {plan.threads_limit}",
                    (Place(rank, launch.name),),
                    found=launch.threads,
                    wanted=plan.threads_limit,
                )
            if launch.shared_bytes > plan.smem_limit:
                return Counterexample(
                    "resources",
                    f"a block uses {launch.shared_bytes} bytes of shared memory, the limit is {plan.smem_limit}",
                    (Place(rank, launch.name),),
                    found=launch.shared_bytes,
                    wanted=plan.smem_limit,
                )
    return None


def check_residency(plan: Plan) -> Counterexample | None:
    """Blocks that wait, or that others wait for, must all be resident at once: one block an SM.

    A block that spins keeps its SM, so a block it waits for may never start. Launches of one stream follow each other;
    launches of different streams may run together, so the largest concerned launch of each stream counts.
    """
    waited = {
        (rank, step.counter)
        for rank, launches in enumerate(plan.ranks)
        for launch in launches
        for step in launch.steps
        if isinstance(step, Wait)
    }
    for rank, launches in enumerate(plan.ranks):
        largest: dict[int, Launch] = {}
        for launch in launches:
            if launch.agent == "blocks" and _concerned(launch, waited):
                largest[launch.stream] = max(largest.get(launch.stream, launch), launch, key=lambda found: found.blocks)
        blocks = sum(launch.blocks for launch in largest.values())
        if blocks > plan.sm_share:
            names = ", ".join(f"{launch.name} ({launch.blocks})" for _, launch in sorted(largest.items()))
            return Counterexample(
                "co_residency",
                f"rank {rank} needs {blocks} blocks resident at once and may use "
                f"{plan.sm_share} SMs, one block each: {names}",
                tuple(Place(rank, launch.name) for _, launch in sorted(largest.items())),
                found=blocks,
                wanted=plan.sm_share,
            )
    return None


def _concerned(launch: Launch, waited: set[tuple[int, int]]) -> bool:
    return any(
        isinstance(step, Wait | PacketStep) or (isinstance(step, Signal) and (step.rank, step.counter) in waited)
        for step in launch.steps
    )


def check_counters(plan: Plan, calls: int) -> Counterexample | None:
    """Counters wrap; the comparison is right while two values in use differ by less than 2^31."""
    for rank, totals in enumerate(counter_totals(plan)):
        for counter, total in enumerate(totals):
            if total * calls >= COUNTER_LIMIT:
                return Counterexample(
                    "counter_range",
                    f"counter {counter} grows by {total} a call; {calls} calls must stay below {COUNTER_LIMIT}",
                    (Place(rank),),
                    counter=counter,
                    counter_rank=rank,
                    found=total * calls,
                    wanted=COUNTER_LIMIT - 1,
                )
    return None
