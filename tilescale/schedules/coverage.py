"""Coverage: what is written in one call, and whether that is all of the outputs and all that is read."""

from __future__ import annotations

from tilescale.schedules.footprint import accesses, places
from tilescale.schedules.plan import Clear, Plan, Reduce
from tilescale.schedules.story import Counterexample, Place

Intervals = list[tuple[int, int, Place]]


def check_coverage(plan: Plan) -> Counterexample | None:
    """Every output byte of every rank is written exactly once a call, and nothing is read that nothing writes.

    Outputs that are added to are left to the data flow, which knows what each holds.
    """
    summed = {
        (step.dst.rank, step.dst.buffer) for _, _, step in places(plan) if isinstance(step, Reduce | Clear)
    }
    writes: dict[tuple[int, str], Intervals] = {}
    reads: dict[tuple[int, str], Intervals] = {}
    roles = {b.name: b.role for b in plan.buffers}
    for place, _, step in places(plan):
        for region, write in accesses(step):
            if roles[region.buffer] != "input":
                table = writes if write else reads
                table.setdefault((region.rank, region.buffer), []).append((region.offset, region.end, place))
    for rank in range(plan.world):
        for buffer in plan.buffers:
            if buffer.role == "output" and (rank, buffer.name) not in summed:
                size = plan.goal.output_span(rank, buffer.size)[1] if buffer.name == plan.goal.output else buffer.size
                problem = _exactly_once(rank, buffer.name, size, writes.get((rank, buffer.name), []))
                if problem:
                    return problem
    for (rank, name), wanted in sorted(reads.items()):
        problem = _all_written(rank, name, wanted, writes.get((rank, name), []))
        if problem:
            return problem
    return None


def _exactly_once(rank: int, name: str, size: int, writes: Intervals) -> Counterexample | None:
    reached, last = 0, Place(rank)
    for low, high, place in sorted(writes, key=lambda w: w[:2]):
        if low > reached:
            return Counterexample(
                "coverage",
                f"nothing writes bytes {reached} to {low} of output {name} of rank {rank}",
                (Place(rank),),
                name,
                rank,
                reached,
                low - reached,
            )
        if low < reached:
            return Counterexample(
                "coverage",
                f"output {name} of rank {rank} is written twice in one call",
                (place, last),
                name,
                rank,
                low,
                min(high, reached) - low,
            )
        reached, last = high, place
    if reached < size:
        return Counterexample(
            "coverage",
            f"nothing writes bytes {reached} to {size} of output {name} of rank {rank}",
            (Place(rank),),
            name,
            rank,
            reached,
            size - reached,
        )
    return None


def _all_written(rank: int, name: str, reads: Intervals, writes: Intervals) -> Counterexample | None:
    merged: list[list[int]] = []
    for low, high, _ in sorted(writes, key=lambda w: w[:2]):
        if merged and low <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    index = 0
    for low, high, place in sorted(reads, key=lambda r: r[:2]):
        while index < len(merged) and merged[index][1] <= low:
            index += 1
        covered = index < len(merged) and merged[index][0] <= low
        if not covered or merged[index][1] < high:
            gap = merged[index][1] if covered else low
            return Counterexample(
                "data_flow",
                f"nothing writes byte {gap} of {name} of rank {rank}, which is read",
                (place,),
                name,
                rank,
                low,
                high - low,
            )
    return None
