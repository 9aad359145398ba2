"""Provenance where bytes only move: which byte of which rank's operand every byte of every buffer holds, in which call.

A piece of a buffer holds a box of an operand, possibly with its dimensions in another order: its first byte, and how far
apart in the operand the bytes are that follow each other in every dimension. That is all of it, for any box of any size.
The run is followed over all calls, as in dataflow.py; `Goal.pieces` says what outputs must hold in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tilescale.schedules.agents import CALLER, Model, Work
from tilescale.schedules.boxes import Box, Grids, axes, meet, pitches, remaining, span, without
from tilescale.schedules.following import Following
from tilescale.schedules.footprint import describe
from tilescale.schedules.order import Run
from tilescale.schedules.plan import Copy, MultimemStore, Region
from tilescale.schedules.story import Counterexample, Place


class Origin(NamedTuple):
    """What a box holds: byte `first` of the operand of `rank` as of `call` at its first place, and `steps` bytes further
    in the operand for every index of each dimension (0 where the box has one index)."""

    rank: int
    call: int
    first: int
    steps: tuple[int, ...]

    def within(self, box: Box, part: Box) -> Origin:
        """What a part of the box holds."""
        first = self.first + sum((p[0] - b[0]) * step for p, b, step in zip(part, box, self.steps, strict=True))
        return self._replace(first=first, steps=tuple(
            step if high - low > 1 else 0 for (low, high), step in zip(part, self.steps, strict=True)))


Piece = tuple[Box, Origin]


class BoxContents:
    """What one version of one buffer holds: boxes that do not overlap; bytes in none were never written."""

    def __init__(self, dims: int) -> None:
        self.boxes: list[Box] = []
        self.origins: list[Origin] = []
        self.index: dict[Box, int] = {}
        self.corners = np.zeros((16, 2, dims), dtype=np.int64)  # first and end; both 0 for what was replaced

    def _touched(self, box: Box) -> list[int]:
        low, high = np.array(box, dtype=np.int64).T
        found = self.corners[: len(self.boxes)]
        return [int(at) for at in np.flatnonzero(((found[:, 0] < high) & (low < found[:, 1])).all(axis=1))]

    def pieces(self, box: Box) -> Iterator[Piece]:
        """What the box holds, in parts; less where it was never written."""
        at = self.index.get(box)
        for each in [at] if at is not None else self._touched(box):
            shared = meet(self.boxes[each], box)
            if shared is not None:
                yield shared, self.origins[each].within(self.boxes[each], shared)

    def write(self, box: Box, origin: Origin) -> None:
        """Replace what the box holds."""
        at = self.index.get(box)
        if at is not None:
            self.origins[at] = origin
            return
        for each in self._touched(box):
            old, held = self.boxes[each], self.origins[each]
            del self.index[old]
            self.corners[each] = 0
            for part in without(old, box):
                self._add(part, held.within(old, part))
        self._add(box, origin)

    def _add(self, box: Box, origin: Origin) -> None:
        at = len(self.boxes)
        if at == len(self.corners):
            self.corners = np.concatenate([self.corners, np.zeros_like(self.corners)])
        self.index[box] = at
        self.boxes.append(box)
        self.origins.append(origin)
        self.corners[at] = np.array(box, dtype=np.int64).T


class Movement(Following):
    """Follows the data of a plan that only copies along `run`."""

    def __init__(self, model: Model, run: Run) -> None:
        super().__init__(model, run)
        self.grids = Grids(model.plan)
        self.memory: dict[tuple[int, str, int], BoxContents] = {}

    def _contents(self, rank: int, buffer: str, call: int) -> BoxContents:
        key = (rank, buffer, call % self.versions[buffer])
        if key not in self.memory:
            self.memory[key] = BoxContents(self.grids.dims(buffer))
        return self.memory[key]

    def _caller(self, rank: int, call: int) -> Counterexample | None:
        """Looks at the outputs of the call before, then writes the operand."""
        problem = self._outputs(rank, call - 1) if call else None
        if problem is None and call < self.model.calls:
            grid = self.grids.of(self.goal.operand, rank)
            whole = tuple((0, size) for size in grid)
            origin = Origin(rank, call, 0, pitches(grid)).within(whole, whole)
            self._contents(rank, self.goal.operand, call).write(whole, origin)
        return problem

    def _outputs(self, rank: int, call: int) -> Counterexample | None:
        contents = self._contents(rank, self.goal.output, call)
        for target, source in self.goal.pieces:
            if target.rank != rank:
                continue
            box = self.grids.box(target)
            grid = self.grids.of(source.buffer, source.rank)
            whole = Origin(source.rank, call, 0, pitches(grid))
            cut = whole.within(tuple((0, size) for size in grid), self.grids.box(source))
            wanted = self._turned(source, target, cut).within(box, box)
            held = list(contents.pieces(box))
            left = remaining(box, (part for part, _ in held))
            wrong = [(part, origin) for part, origin in held if origin != wanted.within(box, part)]
            if left or wrong:
                part = left[0] if left else wrong[0][0]
                low, high = span(part, self.grids.of(target.buffer, target.rank))
                found = "nothing" if left else _say(wrong[0][1])
                return Counterexample(
                    "data_flow", f"output {target.buffer} of rank {rank} must hold {_say(wanted.within(box, part))}; it "
                    f"holds {found}", (Place(rank, CALLER, call=call),), target.buffer, rank, low, high - low)
        return None

    def _step(self, rank: int, work: Work, call: int) -> Counterexample | None:
        step = work.step
        if not isinstance(step, Copy) or isinstance(step, MultimemStore):
            return self._refuse(rank, work, call, None, "must be a copy: the operation only moves bytes")
        box = self.grids.box(step.src)
        held = list(self._contents(step.src.rank, step.src.buffer, call).pieces(box))
        stale = any(origin.call != call for _, origin in held)
        if stale or remaining(box, (part for part, _ in held)):
            message = f"reads bytes of {step.src.buffer} of rank {step.src.rank} that were not written in this call"
            return self._refuse(rank, work, call, step.src, message)
        target = self._contents(step.dst.rank, step.dst.buffer, call)
        for part, origin in held:
            landed = self._landed(step, box, part)
            target.write(landed, self._turned(step.src, step.dst, origin).within(landed, landed))
        return None

    def _axes(self, source: Region, target: Region) -> tuple[tuple[int, int], ...]:
        found = axes(source, target, tuple(self.grids.of(end.buffer, end.rank) for end in (source, target)))
        assert found is not None  # check_steps and check_structure have seen to it
        return found

    def _landed(self, step: Copy, box: Box, part: Box) -> Box:
        """Where a part of the source lands."""
        landed = list(self.grids.box(step.dst))
        for dim, to in self._axes(step.src, step.dst):
            first = landed[to][0] - box[dim][0]
            landed[to] = (first + part[dim][0], first + part[dim][1])
        return tuple(landed)

    def _turned(self, source: Region, target: Region, origin: Origin) -> Origin:
        """An origin of a part of the source, with its dimensions in the order of the target's."""
        steps = [0] * self.grids.dims(target.buffer)
        for dim, to in self._axes(source, target):
            steps[to] = origin.steps[dim]
        return origin._replace(steps=tuple(steps))

    def _refuse(self, rank: int, work: Work, call: int, region: Region | None, message: str) -> Counterexample:
        place = Place(rank, work.launch, work.role, work.number, call, describe(work.step))
        story = f"step {work.number} of rank {rank} {message}"
        if region is None:
            return Counterexample("data_flow", story, (place,))
        return Counterexample("data_flow", story, (place,), region.buffer, region.rank, region.offset, region.size)


def _say(origin: Origin) -> str:
    steps = ", ".join(str(step) for step in origin.steps if step)
    return (f"bytes from {origin.first} on (steps {steps or 'none'}) of the operand of rank {origin.rank} of call "
            f"{origin.call}")
