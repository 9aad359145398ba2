"""Boxes: what a region covers of the grid of its buffer, exactly. A buffer of plain bytes is a grid of one dimension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from tilescale.schedules.plan import Buffer, Copy, Plan, Region

Box = tuple[tuple[int, int], ...]  # (first, end) in every dimension


def grid_of(buffer: Buffer, rank: int) -> tuple[int, ...]:
    return buffer.rank_grids[rank] if buffer.rank_grids else buffer.grid or (buffer.size,)


def whole_of(grid: Sequence[int]) -> list[Box]:
    """The box of all of a grid; none where it holds nothing."""
    return [tuple((0, size) for size in grid)] if prod(grid) else []


def pitches(grid: Sequence[int]) -> tuple[int, ...]:
    """Bytes from one index to the next, for every dimension."""
    return tuple(prod(grid[dim + 1:]) for dim in range(len(grid)))


def extents(region: Region, grid: Sequence[int]) -> tuple[int, ...] | None:
    """How many indices of every dimension a region covers; None where it is no box of the grid."""
    found, row = [1] * len(grid), region.row
    for dim in reversed(range(len(grid))):
        size = grid[dim]
        found[dim] = min(row, size)
        if row <= size:
            row = 1
            break
        if row % size:
            return None
        row //= size
    if row != 1:
        return None
    steps = pitches(grid)
    for count, pitch in region.loops:
        dims = [dim for dim in range(len(grid)) if steps[dim] == pitch and found[dim] == 1 and grid[dim] > 1]
        if not dims:
            return None
        found[dims[0]] = count
    return tuple(found)


def box_of(region: Region, grid: Sequence[int]) -> Box | None:
    """The box that a region covers; None where it is none."""
    if len(grid) == 1 and not region.loops:
        return ((region.offset, region.offset + region.size),)
    covered = extents(region, grid)
    if covered is None:
        return None
    rest, found = region.offset, []
    for size, pitch, count in zip(grid, pitches(grid), covered, strict=True):
        first, rest = divmod(rest, pitch)
        if first + count > size:
            return None
        found.append((first, first + count))
    return tuple(found)


def axes(one: Region, other: Region, grids: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...] | None:
    """Which dimension of the first grid becomes which of the other when rows go from one region to the other, for those
    of which more than one index is covered. None where rows do not cover the same dimensions on both sides."""
    if tuple(count for count, _ in one.loops) != tuple(count for count, _ in other.loops):
        return None
    sides = []
    for region, grid in zip((one, other), grids, strict=True):
        covered = extents(region, grid)
        if covered is None:
            return None
        steps, left = pitches(grid), {dim for dim, count in enumerate(covered) if count > 1}
        looped = []
        for count, pitch in region.loops:
            dim = next((d for d in sorted(left) if steps[d] == pitch and covered[d] == count), -1)
            left.discard(dim)
            looped.append(dim)
        inner = sorted(left, reverse=True)
        sides.append(([d for d, (count, _) in zip(looped, region.loops, strict=True) if count > 1], inner,
                      [covered[dim] for dim in inner]))
    if sides[0][2] != sides[1][2]:
        return None
    return tuple(zip((*sides[0][0], *sides[0][1]), (*sides[1][0], *sides[1][1]), strict=True))


def meet(one: Box, other: Box) -> Box | None:
    """What two boxes share; None for nothing."""
    found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return found if all(low < high for low, high in found) else None


def without(box: Box, other: Box) -> Iterator[Box]:
    """What is left of a box, in boxes that do not overlap."""
    shared = meet(box, other)
    if shared is None:
        yield box
        return
    for dim, (low, high) in enumerate(shared):
        first, last = box[dim]
        if first < low:
            yield (*box[:dim], (first, low), *box[dim + 1:])
        if high < last:
            yield (*box[:dim], (high, last), *box[dim + 1:])
        box = (*box[:dim], (low, high), *box[dim + 1:])


def remaining(box: Box, others: Iterable[Box]) -> list[Box]:
    """What no box of `others` covers."""
    left = [box]
    for other in others:
        left = [part for each in left for part in without(each, other)]
    return left


def span(box: Box, grid: Sequence[int]) -> tuple[int, int]:
    """First byte of a box in its buffer, and the byte behind its last one."""
    steps = pitches(grid)
    first = sum(low * step for (low, _), step in zip(box, steps, strict=True))
    return first, first + sum((high - low - 1) * step for (low, high), step in zip(box, steps, strict=True)) + 1


class Grids:
    """The boxes of the regions of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._grids = {(buffer.name, rank): grid_of(buffer, rank) for buffer in plan.buffers for rank in range(plan.world)}
        self.plain = not any(buffer.grid for buffer in plan.buffers)

    def of(self, buffer: str, rank: int) -> tuple[int, ...]:
        return self._grids[buffer, rank]

    def dims(self, buffer: str) -> int:
        return len(self._grids[buffer, 0])

    def box(self, region: Region) -> Box:
        """Of a region that check_steps has accepted."""
        if self.plain:
            return ((region.offset, region.offset + region.size),)
        found = box_of(region, self.of(region.buffer, region.rank))
        assert found is not None
        return found

    def axes(self, copy: Copy) -> tuple[tuple[int, int], ...]:
        found = axes(copy.src, copy.dst, (self.of(copy.src.buffer, copy.src.rank), self.of(copy.dst.buffer, copy.dst.rank)))
        assert found is not None
        return found


def walk_of(region: Region) -> tuple[tuple[int, int], ...]:
    """In which order a region is walked: its loops and its row, with loops that continue each other joined."""
    found = [(region.row, 1)]
    for count, pitch in reversed(region.loops):
        size, step = found[0]
        if pitch == size * step:
            found[0] = (count * size, step)
        else:
            found.insert(0, (count, pitch))
    return tuple(found)
