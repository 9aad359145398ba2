"""Races: two accesses to the same bytes, one of them a write, that nothing orders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from tilescale.schedules.agents import CALLER, Model, Work
from tilescale.schedules.boxes import Box, Grids, grid_of, meet, span, walk_of
from tilescale.schedules.footprint import accesses
from tilescale.schedules.order import needs
from tilescale.schedules.plan import (
    Buffer,
    Contract,
    Gemm,
    MultimemReduce,
    MultimemStore,
    Pass,
    Pieces,
    Ragged,
    Reduce,
    Step,
    Sum,
)
from tilescale.spec.epilogue import EPILOGUES

Ints = npt.NDArray[np.int64]
TILES = -1  # all passes of a role are dealt alike
CHUNK = 1 << 22  # entries of one overlap matrix


@dataclass(frozen=True)
class Access:
    """One access of one call: by `agent` at `position`, to a box of a buffer of a rank: bytes low to high where its grid is
    plain bytes. `walk`: in which order its bytes are taken, 0 for that of memory, TILES for sums that a block leaves for
    itself."""

    agent: int
    position: int
    box: Box
    write: bool
    work: Work | None  # None: the caller's
    walk: int = 0


@dataclass(frozen=True)
class Race:
    """Two unordered accesses, each with its call; bytes low to high of `buffer` of `rank`."""

    rank: int
    buffer: str
    low: int
    high: int
    first: tuple[Access, int]
    second: tuple[Access, int]


Memory = dict[tuple[int, str], list[Access]]


def shared_by_bytes(step: Step) -> bool:
    """Whether the blocks of a role share equal regions alike in all such steps: copies, reductions, clearings, and sums
    whose result has the size of a source, that carry nothing on and do not share rows. What goes through a multicast
    address counts units of its own."""
    if isinstance(step, MultimemStore | MultimemReduce):
        return False
    if isinstance(step, Sum):
        rows = any(EPILOGUES[name].whole_rows for name in step.then)
        return step.dst.size == step.srcs[0].size and not step.carried and not rows
    return not isinstance(step, Gemm | Contract | Ragged | Pieces)


def footprints(model: Model) -> Memory:
    """The accesses of one call to each buffer of each rank that anything touches."""
    memory: Memory = {}
    plan, grids, walks = model.plan, Grids(model.plan), dict[tuple[tuple[int, int], ...], int]()
    for index, agent in enumerate(model.agents):
        for work in agent.work:
            for region, write in accesses(work.step):
                order = walk_of(region) if region.loops else ()
                walk = walks.setdefault(order, len(walks) + 1) if len(order) > 1 else 0
                walk = TILES if isinstance(work.step, Pass) and region in work.step.sums else walk
                memory.setdefault((region.rank, region.buffer), []).append(
                    Access(index, work.position, grids.box(region), write, work, walk)
                )
        if agent.label == CALLER:
            for buffer in plan.buffers:
                if buffer.role != "workspace":
                    written, grid = buffer.role == "input", grids.of(buffer.name, agent.rank)
                    whole = tuple((0, size) for size in grid)
                    memory.setdefault((agent.rank, buffer.name), []).append(
                        Access(index, 0 if written else len(agent.operations), whole, written, None)
                    )
    return memory


class RaceCheck:
    """Checks all conflicting pairs; `pairs` and `runs` count what was done.

    With `symmetric`, rank 0's agents are stopped and rank 0's memory is checked: the rotation of ranks, which maps the
    plan onto itself, carries the result to every other rank.
    """

    def __init__(self, model: Model, symmetric: bool) -> None:
        self.model = model
        self.symmetric = symmetric
        self.pairs = 0
        self.runs = 0
        self.stride = model.positions // max(1, model.plan.world)
        self.agents_per_rank = len(model.agents) // max(1, model.plan.world)
        self.base = np.array(model.base, dtype=np.int64)
        self.lengths = np.array([len(a.operations) for a in model.agents], dtype=np.int64)
        self.ranks = np.array([a.rank for a in model.agents], dtype=np.int64)
        self.needs = self._needs()

    def _needs(self) -> npt.NDArray[np.int32]:
        stop = range(self.agents_per_rank if self.symmetric else len(self.model.agents))
        self.runs = len(stop)
        return np.stack([needs(self.model, agent) for agent in stop])

    def first(self) -> Race | None:
        """The first race, in the order of ranks, buffers and places; None when every pair is ordered."""
        memory = footprints(self.model)
        buffers = {b.name: b for b in self.model.plan.buffers}
        for (rank, name), found in sorted(memory.items(), key=lambda item: item[0]):
            if self.symmetric and rank:
                break
            race = self._check(rank, buffers[name], found)
            if race is not None:
                return race
        return None

    def _check(self, rank: int, buffer: Buffer, found: list[Access]) -> Race | None:
        agent = np.array([a.agent for a in found], dtype=np.int64)
        position = np.array([a.position for a in found], dtype=np.int64)
        for every_xs, every_ys, again in _overlaps(self.model, found):
            for call_x, call_y in product(range(self.model.calls), repeat=2):
                if (call_x - call_y) % buffer.versions:
                    continue
                xs, ys = (every_xs[~again], every_ys[~again]) if call_x == call_y and again.any() else (every_xs, every_ys)
                at_x = call_x * self.lengths[agent[xs]] + position[xs]
                at_y = call_y * self.lengths[agent[ys]] + position[ys]
                bad = ~(self._before(agent[xs], at_x, agent[ys], at_y) | self._before(agent[ys], at_y, agent[xs], at_x))
                self.pairs += len(xs)
                if bad.any():
                    which = int(np.argmax(bad))
                    x, y = found[int(xs[which])], found[int(ys[which])]
                    shared = meet(x.box, y.box)
                    assert shared is not None
                    low, last = span(shared, grid_of(buffer, rank))
                    return Race(rank, buffer.name, low, last, (x, call_x), (y, call_y))
        return None

    def _before(self, agent_x: Ints, at_x: Ints, agent_y: Ints, at_y: Ints) -> npt.NDArray[np.bool_]:
        """Whether x must happen before y: y is only reached once x's block has gone past x."""
        target = self.base[agent_y] + at_y
        if not self.symmetric:
            reached: npt.NDArray[np.bool_] = self.needs[agent_x, target] > at_x
            return reached
        rotated = (target - self.ranks[agent_x] * self.stride) % self.model.positions
        reached = self.needs[agent_x % self.agents_per_rank, rotated] > at_x
        return reached


def _overlaps(model: Model, found: list[Access]) -> Iterator[tuple[Ints, Ints, npt.NDArray[np.bool_]]]:
    """Pairs (write, any) of accesses that overlap and may be made by different blocks; whether in different calls alone."""
    dims = range(len(found[0].box) if found else 0)
    low = [np.array([a.box[dim][0] for a in found], dtype=np.int64) for dim in dims]
    high = [np.array([a.box[dim][1] for a in found], dtype=np.int64) for dim in dims]
    walk = np.array([a.walk for a in found])
    agent = np.array([a.agent for a in found], dtype=np.int64)
    shared = np.array([a.work is not None and a.work.blocks > 1 for a in found])
    copies = np.array([a.work is not None and (shared_by_bytes(a.work.step) or a.walk == TILES) for a in found])
    adds = np.array([a.write and a.work is not None and isinstance(a.work.step, Reduce) for a in found])
    number = np.array([a.work.number if a.work is not None else -1 for a in found])
    ragged = np.array([a.work is not None and isinstance(a.work.step, Ragged) for a in found])
    writes = np.flatnonzero(np.array([a.write for a in found]))
    rows = max(1, CHUNK // max(1, len(found)))
    for start in range(0, len(writes), rows):
        w = writes[start : start + rows]
        overlap = np.ones((len(w), len(found)), dtype=np.bool_)
        for first, last in zip(low, high, strict=True):
            overlap &= (first[w][:, None] < last[None, :]) & (first[None, :] < last[w][:, None])
        i, ys = np.nonzero(overlap)
        xs = w[i]
        # One block is ordered with itself. The blocks of a role share a copy by its bytes, so two copies of the same
        # bytes, taken in the same order, are made by the same blocks, and so is the same step in another call.
        same = (agent[xs] == agent[ys]) & ~(shared[xs] & shared[ys])
        same_bytes = copies[xs] & copies[ys] & (walk[xs] == walk[ys])
        for first, last in zip(low, high, strict=True):
            same_bytes &= (first[xs] == first[ys]) & (last[xs] == last[ys])
        # A ragged step is shared anew in every call: within one, its blocks write different bytes.
        step = (agent[xs] == agent[ys]) & (number[xs] == number[ys])
        same |= ((agent[xs] == agent[ys]) & same_bytes) | (step & ~ragged[xs])
        same |= adds[xs] & adds[ys]  # additions commute
        yield xs[~same], ys[~same], step[~same]
