"""When a measurement has enough samples, and what clocks say about them. Plain numbers; no device."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Bounds:
    """`minimum` to `maximum` samples, in batches of `batch`, until the standard error of the median is at most
    `target` of it. `warmup`: calls before, which are not kept. `calls`: calls in a graph, back to back; a sample is the
    time of one. An even number, so that schedules that alternate between buffers are measured like all others."""

    minimum: int = 10
    maximum: int = 40
    batch: int = 10
    target: float = 0.005
    warmup: int = 3
    calls: int = 2

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Of each sample the slowest rank's time."""
    return [max(call) for call in zip(*by_rank, strict=True)]


def relative_error(values: Sequence[float]) -> float:
    """Standard error of the median over the median, from the median absolute deviation; infinite for one value."""
    if len(values) < 2:
        return math.inf
    middle = statistics.median(values)
    sigma = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return 1.2533 * sigma / math.sqrt(len(values)) / middle if middle > 0 else math.inf


def enough(by_rank: Sequence[Sequence[float]], bounds: Bounds) -> bool:
    """Whether to stop."""
    values = slowest(by_rank)
    if len(values) < bounds.minimum:
        return False
    return len(values) >= bounds.maximum or relative_error(values) <= bounds.target
