"""Coverage: what is written in one call, and whether that is all of the outputs and all that is read."""

from __future__ import annotations

from math import prod

from tilescale.schedules.boxes import Box, Grids, meet, remaining, span, whole_of
from tilescale.schedules.footprint import accesses, places
from tilescale.schedules.plan import Clear, Plan, Reduce, Region
from tilescale.schedules.story import Counterexample, Place

Intervals = list[tuple[int, int, Place]]


def check_coverage(plan: Plan) -> Counterexample | None:
    """Every output byte of every rank is written exactly once a call, and nothing is read that nothing writes.

    Outputs that are added to are left to the data flow, which knows what each holds.
    """
    grids = Grids(plan)
    if not grids.plain:
        return _check_boxes(plan, grids)
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
                rows = buffer.name in (plan.goal.output, plan.goal.aside)  # of an uneven shard fewer than there is room for
                size = plan.goal.output_span(rank, buffer.size)[1] if rows else buffer.size
                problem = _exactly_once(rank, buffer.name, size, writes.get((rank, buffer.name), []))
                if problem:
                    return problem
    for (rank, name), wanted in sorted(reads.items()):
        problem = _all_written(rank, name, wanted, writes.get((rank, name), []))
        if problem:
            return problem
    return None


def _check_boxes(plan: Plan, grids: Grids) -> Counterexample | None:
    """The same where regions are boxes of grids."""
    roles = {b.name: b.role for b in plan.buffers}
    writes: dict[tuple[int, str], list[tuple[Box, Place]]] = {}
    reads: list[tuple[Region, Place]] = []
    for place, _, step in places(plan):
        for region, write in accesses(step):
            if write:
                writes.setdefault((region.rank, region.buffer), []).append((grids.box(region), place))
            elif roles[region.buffer] != "input":
                reads.append((region, place))
    for rank in range(plan.world):
        for buffer in plan.buffers:
            if buffer.role == "output":
                problem = _boxes_once(rank, buffer.name, grids, writes.get((rank, buffer.name), []))
                if problem:
                    return problem
    exact = {key: {box for box, _ in found} for key, found in writes.items()}
    for region, place in reads:
        box, key = grids.box(region), (region.rank, region.buffer)
        if box in exact.get(key, ()):
            continue
        left = remaining(box, (written for written, _ in writes.get(key, [])))
        if left:
            low, high = span(left[0], grids.of(region.buffer, region.rank))
            return Counterexample("data_flow", f"nothing writes byte {low} of {region.buffer} of rank {region.rank}, which "
                                  "is read", (place,), region.buffer, region.rank, low, high - low)
    return None


def _boxes_once(rank: int, name: str, grids: Grids, writes: list[tuple[Box, Place]]) -> Counterexample | None:
    grid = grids.of(name, rank)
    left = whole_of(grid)
    for at, (box, place) in enumerate(writes):
        rest = [part for each in left for part in remaining(each, [box])]
        if _volume(left) - _volume(rest) < _volume([box]):
            other, twice = next((p, shared) for written, p in writes[:at] if (shared := meet(written, box)) is not None)
            low, high = span(twice, grid)
            return Counterexample("coverage", f"output {name} of rank {rank} is written twice in one call", (place, other),
                                  name, rank, low, high - low)
        left = rest
    if left:
        low, high = span(left[0], grid)
        return Counterexample("coverage", f"nothing writes bytes {low} to {high} of output {name} of rank {rank}",
                              (Place(rank),), name, rank, low, high - low)
    return None


def _volume(boxes: list[Box]) -> int:
    return sum(prod(high - low for low, high in box) for box in boxes)


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
