"""Boxes: what regions with loops cover, against counting every byte."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from tilescale.schedules.boxes import axes, box_of, meet, remaining, span, walk_of
from tilescale.schedules.plan import Region


def bytes_of(region: Region) -> list[int]:
    """Every byte, in the order of the loops."""
    found = []
    for index in product(*(range(count) for count, _ in region.loops)):
        first = region.offset + sum(i * pitch for i, (_, pitch) in zip(index, region.loops, strict=True))
        found += range(first, first + region.row)
    return found


def regions(grid: tuple[int, ...]) -> list[Region]:
    """Contiguous ones at every place, and those with one or two loops at the pitches of the grid and at others."""
    size = prod(grid)
    steps = sorted({prod(grid[dim + 1:]) for dim in range(len(grid))})
    found = [Region("x", 0, low, high - low) for low in range(size) for high in range(low + 1, size + 1)]
    for outer, inner in product([*steps, 5], repeat=2):
        for counts in ((2, 2), (1, 3), (2, 1)):
            for offset, row in product(range(0, size, 3), (1, 2, 4)):
                loops = tuple((count, pitch) for count, pitch in zip(counts, (outer, inner), strict=True) if count > 1)
                region = Region("x", 0, offset, row * prod(c for c, _ in loops), loops)
                if region.end <= size:
                    found.append(region)
    return found


@pytest.mark.parametrize("grid", [(24,), (3, 8), (2, 3, 4), (3, 1, 2, 4)])
def test_a_box_holds_the_bytes_of_its_region_and_no_others(grid: tuple[int, ...]) -> None:
    numbers = np.arange(prod(grid)).reshape(grid)
    boxes = 0
    for region in regions(grid):
        box = box_of(region, grid)
        if box is not None:
            boxes += 1
            held = numbers[tuple(slice(low, high) for low, high in box)].ravel()
            assert sorted(bytes_of(region)) == held.tolist(), region
            assert span(box, grid) == (held.min(), held.max() + 1)
    assert boxes > 20
    # The whole grid, and every single index of its outer dimension, is a box.
    assert box_of(Region("x", 0, 0, prod(grid)), grid) == tuple((0, size) for size in grid)


def test_what_is_no_box_is_told() -> None:
    assert box_of(Region("x", 0, 2, 8), (3, 8)) is None  # over the end of a row
    assert box_of(Region("x", 0, 0, 12), (3, 8)) is None  # a row and a half
    assert box_of(Region("x", 0, 0, 4, ((2, 5),)), (3, 8)) is None  # a pitch that is none
    assert box_of(Region("x", 0, 8, 6, ((3, 8),)), (3, 8)) is None  # behind the last row
    assert box_of(Region("x", 0, 2, 8), (24,)) == ((2, 10),)


def test_boxes_meet_and_leave_each_other_as_sets_do() -> None:
    grid = (4, 5)
    lines = [[(low, high) for low in range(size) for high in range(low + 1, size + 1)] for size in grid]
    boxes = list(product(*lines))[::7]

    def cells(box: tuple[tuple[int, int], ...]) -> set[tuple[int, ...]]:
        return set(product(*(range(low, high) for low, high in box)))

    for one, other in product(boxes, repeat=2):
        shared = meet(one, other)
        assert (cells(shared) if shared else set()) == cells(one) & cells(other)
        left = remaining(one, [other])
        assert sum(len(cells(part)) for part in left) == len(cells(one) - cells(other))
        assert set().union(*map(cells, left)) == cells(one) - cells(other)


def test_a_turning_copy_names_its_dimensions() -> None:
    source, target = (4, 6, 8), (6, 4, 8)  # [h, s, d] to [s, h, d]
    one = Region("a", 0, 0, 4 * 6 * 8, ((6, 8), (4, 48)))
    other = Region("b", 0, 0, 4 * 6 * 8, ((6, 32), (4, 8)))
    assert axes(one, other, (source, target)) == ((1, 0), (0, 1), (2, 2))
    assert axes(one, Region("b", 0, 0, 192, ((4, 8), (6, 32))), (source, target)) is None  # other counts
    assert axes(Region("a", 0, 0, 192), Region("b", 0, 0, 192), (source, (192,))) is None  # rows of other dimensions


def test_the_order_in_which_bytes_are_taken() -> None:
    assert walk_of(Region("a", 0, 0, 192, ((4, 48), (6, 8)))) == walk_of(Region("a", 0, 0, 192)) == ((192, 1),)
    assert walk_of(Region("a", 0, 0, 192, ((6, 8), (4, 48)))) == ((6, 8), (4, 48), (8, 1))
