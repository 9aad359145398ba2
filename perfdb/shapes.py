"""How far shapes are from each other."""

from __future__ import annotations

import math


def shape_distance(one: str, other: str) -> float:
    """Distance of two shapes ("4096x10240x8192"): the sum of |log2| of the ratios; inf if not comparable."""
    if one == other:
        return 0.0
    sizes = [text.split("x") for text in (one, other)]
    if len(sizes[0]) != len(sizes[1]) or not all(size.isdigit() and int(size) for row in sizes for size in row):
        return math.inf
    return sum(abs(math.log2(int(a) / int(b))) for a, b in zip(*sizes, strict=True))
