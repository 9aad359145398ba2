"""Whether what steps touch of different parts of a buffer is different, wherever the device found that these lie.

A proof takes the parts of different groups for different bytes (see Grouped in plan.py). Here they are looked at in a run:
of two steps that name parts without a byte in common, of which one writes, no byte may have been touched by both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from tilescale.runtime.emulator_report import Range, StepLog
from tilescale.schedules.plan import Grouped, Region

Touched = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Part:
    """A part that a step named, and what it touched of the range that the part lies in."""

    rank: int
    step: int
    region: Region
    writes: bool
    touched: Touched


class Parts:
    """The parts that all steps of one call have named. `strides`: from one version of a buffer to the next."""

    def __init__(self, call: int, epoch: int, strides: dict[str, int]) -> None:
        self.call, self.epoch, self.strides = call, epoch, strides
        self.named: dict[Region, list[Part]] = {}

    def add(self, step: Grouped, found: StepLog) -> None:
        """What a step has touched, as `found` has logged it."""
        for at, (region, within) in enumerate(zip((*step.reads, *step.writes), step.within, strict=True)):
            writes = at >= len(step.reads)
            base = self.strides.get(within.buffer, 0) * (self.epoch % 2)
            touched = tuple(_inside(found.writes if writes else found.reads, within, base))
            self.named.setdefault(within, []).append(Part(found.rank, found.step, region, writes, touched))

    def shared(self) -> Iterator[str]:
        """One line for every pair of steps that touched the same byte of different parts."""
        for within, parts in self.named.items():
            for one, other in combinations(parts, 2):
                apart = one.region.end <= other.region.offset or other.region.end <= one.region.offset
                byte = _common(one.touched, other.touched) if apart and (one.writes or other.writes) else None
                if byte is not None:
                    who = f"step {one.step} of rank {one.rank} and step {other.step} of rank {other.rank}"
                    yield (f"call {self.call}: {who} touch byte {byte} of {within.buffer} of rank {within.rank}, as of "
                           "different parts")


def _inside(ranges: Iterable[Range], within: Region, base: int) -> Iterator[tuple[int, int]]:
    low, high = base + within.offset, base + within.end
    for each in ranges:
        if (each.rank, each.buffer) == (within.rank, within.buffer) and each.begin < high and low < each.end:
            yield max(low, each.begin), min(high, each.end)


def _common(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> int | None:
    """The first byte that lies in ranges of both; each list is sorted."""
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i][1] <= other[j][0]:
            i += 1
        elif other[j][1] <= one[i][0]:
            j += 1
        else:
            return max(one[i][0], other[j][0])
    return None
