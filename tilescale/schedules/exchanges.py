"""Sizes and regions of an operation that only moves parts of tensors between ranks: who holds what, and where it goes.

All of it follows from what the operation says that a rank receives (`Operation.holds`): the shards of some ranks joined
along a dimension, a part of that along another, its dimensions in another order. The *piece* of a pair of ranks is what one
sends the other: a box of the operand that becomes a box of the output. Dimensions that no cut and no turn separates are
taken as one, the last of them in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import gcd, prod

from tilescale.schedules.boxes import Box, pitches
from tilescale.schedules.geometry import Chunk, cut
from tilescale.schedules.plan import Buffer, Copy, Goal, Region
from tilescale.spec.op import Spec
from tilescale.spec.result import Result, result_of

Pair = tuple[int, int]  # source, target
Ends = tuple[Box, Box]  # in the operand, in the output; dimensions of the declared tensor


def exchanges(spec: Spec) -> bool:
    """Whether ranks only exchange parts of what they hold."""
    return any(move.kind == "exchange" for move in spec.operation.moves)


@dataclass(frozen=True)
class Exchange:
    """What does not depend on the schedule. `operands`, `outputs`: the grids of the local tensors of every rank, that of
    rank 0 being the largest; `pieces`: by pair, boxes of these; `turn[d]`: dimension of the output's grid that dimension d
    of the operand's becomes. Rows of a piece are `unit` indices of dimension `along` of the operand's grid.
    """

    world: int
    operands: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    pieces: tuple[tuple[Pair, Ends], ...]
    turn: tuple[int, ...]
    along: int
    unit: int
    symmetric: bool

    @property
    def operand(self) -> tuple[int, ...]:
        return self.operands[0]

    @property
    def output(self) -> tuple[int, ...]:
        return self.outputs[0]

    def rows_of(self, pair: Pair) -> int:
        """Rows of a piece."""
        low, high = self.by_pair[pair][0][self.along]
        return (high - low) // self.unit

    @cached_property
    def rows(self) -> int:
        """Of the largest piece."""
        return max(self.rows_of(pair) for pair in self.by_pair)

    @cached_property
    def by_pair(self) -> dict[Pair, Ends]:
        return dict(self.pieces)

    def targets(self, rank: int) -> tuple[int, ...]:
        """Peers that receive something from `rank`, the next one first."""
        found = ((rank + d) % self.world for d in range(1, self.world))
        return tuple(peer for peer in found if (rank, peer) in self.by_pair)

    def sources(self, rank: int) -> tuple[int, ...]:
        """Peers that `rank` receives something from, the one before it first."""
        found = ((rank - d) % self.world for d in range(1, self.world))
        return tuple(peer for peer in found if (peer, rank) in self.by_pair)

    @property
    def peers(self) -> int:
        """Most peers that a rank sends to."""
        return max(len(self.targets(rank)) for rank in range(self.world))

    @property
    def alignment(self) -> int:
        """What offsets, rows and pitches of all copies are multiples of, in bytes."""
        edges = [edge for _, ends in self.pieces for box in ends for edge in box[-1]]
        last = self.unit if self.along == len(self.operand) - 1 else 0
        return gcd(last, *edges, *(pitch for grid in (*self.operands, *self.outputs) for pitch in pitches(grid)[:-1]))

    @property
    def contiguous(self) -> bool:
        """Whether a piece, and any rows of it, are contiguous on both sides."""
        return len(self.operand) == 1


@lru_cache(maxsize=64)
def exchange_of(spec: Spec) -> Exchange:
    """The exchange that `spec` declares."""
    world, tensor = spec.world, spec.inputs[0]
    results = [result_of(spec, rank) for rank in range(world)]
    found: dict[Pair, Ends] = {}
    for target, result in enumerate(results):
        first, (factor,) = 0, result.terms[0]
        for source in factor.ranks:
            local = tensor.local_shape(source, world)
            ends = _ends(result, local, first)
            first += local[factor.dim] if len(factor.ranks) > 1 else 0
            if ends is not None:
                found[source, target] = ends
    order = (*(results[0].order or range(tensor.ndim)), tensor.ndim)  # behind all dimensions, the bytes of an element
    groups = _groups(order, {dim for result in results for dim in _cuts(result)}, tensor.ndim)
    operands, outputs = ([each.local_shape(rank, world) for rank in range(world)] for each in (tensor, spec.output))
    taken = sorted(groups, key=lambda group: order.index(group[0]))
    turned = tuple(tuple(order.index(dim) for dim in group) for group in taken)
    size = tensor.itemsize
    pieces = tuple((pair, (_merged(one, groups, operands[0], size), _merged(other, turned, outputs[0], size)))
                   for pair, (one, other) in sorted(found.items()))
    along, unit = _rows(pieces[0][1][0], groups, operands[0], size)
    return Exchange(
        world, tuple(_grid(groups, local, size) for local in operands),
        tuple(_grid(turned, local, size) for local in outputs), pieces, tuple(taken.index(group) for group in groups),
        along, unit, spec.placement == "symmetric")


def _cuts(result: Result) -> set[int]:
    """Dimensions along which shards are joined or parts are taken."""
    factor = result.terms[0][0]
    return ({factor.dim} if len(factor.ranks) > 1 else set()) | ({result.dim} if result.size is not None else set())


def _ends(result: Result, local: tuple[int, ...], begin: int) -> Ends | None:
    """The piece of a source of a result whose shard begins at `begin` of the joined tensor, in dimensions of the tensor;
    None where it is empty."""
    factor = result.terms[0][0]
    one, other = [], []
    for dim, size in enumerate(local):
        first = begin if dim == factor.dim else 0  # of this shard in the joined tensor
        low, high = first, first + size
        start = 0
        if dim == result.dim and result.size is not None:
            start = result.start
            low, high = max(low, start), min(high, start + result.size)
        if low >= high:
            return None
        one.append((low - first, high - first))
        other.append((low - start, high - start))
    return tuple(one), tuple(other[dim] for dim in result.order or range(len(local)))


def _groups(order: tuple[int, ...], cuts: set[int], ndim: int) -> tuple[tuple[int, ...], ...]:
    """Dimensions that stay together: neighbours in operand and output, of which none but the first is cut."""
    following = dict(pairwise(order))
    groups: list[tuple[int, ...]] = [(0,)]
    for dim in range(1, ndim + 1):
        if dim not in cuts and following.get(dim - 1) == dim:
            groups[-1] = (*groups[-1], dim)
        else:
            groups.append((dim,))
    return tuple(groups)


def _sizes(local: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return (*local, itemsize)


def _grid(groups: tuple[tuple[int, ...], ...], local: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    sizes = _sizes(local, itemsize)
    return tuple(prod(sizes[dim] for dim in group) for group in groups)


def _merged(box: Box, groups: tuple[tuple[int, ...], ...], local: tuple[int, ...], itemsize: int) -> Box:
    """A box of the tensor in dimensions of the grid: what is merged behind the first of a group is whole, on every rank."""
    sizes, ranges, found = _sizes(local, itemsize), (*box, (0, itemsize)), []
    for first, *rest in groups:
        inner = prod(sizes[dim] for dim in rest)
        found.append((ranges[first][0] * inner, ranges[first][1] * inner))
    return tuple(found)


def _rows(box: Box, groups: tuple[tuple[int, ...], ...], local: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """The dimension of the grid that chunks cut, and how many of its indices are a row: where most rows of the piece are, a
    row being all of the last dimension of the tensor."""
    sizes, found = _sizes(local, itemsize), []
    for at, group in enumerate(groups):
        whole = [dim for dim in group if dim >= len(local) - 1]
        unit = prod(sizes[dim] for dim in whole)
        if len(whole) < len(group):
            found.append((-((box[at][1] - box[at][0]) // unit), at, unit))
    if not found:  # a tensor of one dimension
        found.append((-((box[0][1] - box[0][0]) // itemsize), 0, itemsize))
    _, along, unit = min(found)
    return along, unit


@dataclass(frozen=True)
class ExchangeGeometry:
    """Regions of an exchange under a schedule."""

    exchange: Exchange
    push: bool
    chunk_rows: int

    @property
    def world(self) -> int:
        return self.exchange.world

    @property
    def stages(self) -> bool:
        """Whether the operand is first copied to where peers can read it."""
        return not self.push and not self.exchange.symmetric

    def chunks(self, pair: Pair) -> tuple[Chunk, ...]:
        """The rows of a piece, in parts."""
        return cut(self.exchange.rows_of(pair), self.chunk_rows)

    @cached_property
    def max_chunks(self) -> int:
        return len(cut(self.exchange.rows, self.chunk_rows))

    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers of the plan. Two versions where a peer may be one call ahead or behind."""
        e = self.exchange
        found = [self._buffer("a", "input", e.operands, e.symmetric and not self.push),
                 self._buffer("out", "output", e.outputs)]
        if self.push:
            found.append(self._buffer("inbox", "workspace", e.outputs, True, 2))
        if self.stages:
            found.append(self._buffer("staging", "workspace", e.operands, True, 2))
        return tuple(found)

    def _buffer(self, name: str, role: str, grids: tuple[tuple[int, ...], ...], visible: bool = False, versions: int = 1
                ) -> Buffer:
        """A buffer that holds local tensors of these grids, by rank."""
        grid, differing = () if self.exchange.contiguous else grids[0], grids if len({*grids}) > 1 else ()
        return Buffer(name, role, prod(grids[0]), visible, versions, grid=grid, rank_grids=differing)

    def goal(self) -> Goal:
        pieces = (self._regions(pair, None, "a", "out") for pair, _ in self.exchange.pieces)
        return Goal("a", "out", (), 1, 1, False, pieces=tuple((there, here) for here, there in pieces))

    # -- copies: `None` for a chunk is the whole piece -----------------------------------------------------------------
    def own(self, rank: int) -> Copy | None:
        """What a rank keeps of its own operand."""
        return Copy(*self._regions((rank, rank), None, "a", "out")) if (rank, rank) in self.exchange.by_pair else None

    def put(self, source: int, target: int, chunk: Chunk) -> Copy:
        return Copy(*self._regions((source, target), chunk, "a", "inbox"))

    def take(self, source: int, target: int, chunk: Chunk) -> Copy:
        """What has arrived, to where the caller wants it."""
        (box,) = self._boxes((source, target), chunk)[1:]
        inbox, out = self._pair((("inbox", target, box), ("out", target, box)), self.exchange.outputs[target],
                                self.exchange.outputs[target], tuple(range(len(box))))
        return Copy(inbox, out)

    def get(self, source: int, target: int, chunk: Chunk) -> Copy:
        return Copy(*self._regions((source, target), chunk, "staging" if self.stages else "a", "out"))

    def stage(self, source: int, target: int, chunk: Chunk) -> Copy:
        """What a peer will read, to where it can."""
        box = self._boxes((source, target), chunk)[0]
        a, staging = self._pair((("a", source, box), ("staging", source, box)), self.exchange.operands[source],
                                self.exchange.operands[source], tuple(range(len(box))))
        return Copy(a, staging)

    def _boxes(self, pair: Pair, chunk: Chunk | None) -> Ends:
        here, there = self.exchange.by_pair[pair]
        if chunk is None:
            return here, there
        e, found = self.exchange, []
        for box, dim in ((here, e.along), (there, e.turn[e.along])):
            first = box[dim][0] + chunk.first * e.unit
            found.append((*box[:dim], (first, first + chunk.rows * e.unit), *box[dim + 1:]))
        return found[0], found[1]

    def _regions(self, pair: Pair, chunk: Chunk | None, source: str, target: str) -> tuple[Region, Region]:
        here, there = self._boxes(pair, chunk)
        e = self.exchange
        return self._pair(((source, pair[0], here), (target, pair[1], there)), e.operands[pair[0]], e.outputs[pair[1]],
                          e.turn)

    @staticmethod
    def _pair(ends: tuple[tuple[str, int, Box], tuple[str, int, Box]], source: tuple[int, ...], target: tuple[int, ...],
              turn: tuple[int, ...]) -> tuple[Region, Region]:
        """Both sides of a copy, rows taken in the order of the target. `turn`: as in Exchange."""
        (name, rank, here), (other, peer, there) = ends
        read, written = pitches(source), pitches(target)
        row, loops = 1, list[tuple[int, int, int]]()
        for to in reversed(range(len(target))):
            dim, count = turn.index(to), there[to][1] - there[to][0]
            if not loops and read[dim] == written[to] == row:
                row *= count
            elif count > 1:
                loops.insert(0, (count, read[dim], written[to]))
        size = row * prod(count for count, _, _ in loops)
        first, landed = (sum(low * pitch for (low, _), pitch in zip(box, steps, strict=True))
                         for box, steps in ((here, read), (there, written)))
        return (Region(name, rank, first, size, tuple((count, pitch) for count, pitch, _ in loops)),
                Region(other, peer, landed, size, tuple((count, pitch) for count, _, pitch in loops)))


@lru_cache(maxsize=256)
def exchange_geometry(spec: Spec, direction: str, chunk_rows: int) -> ExchangeGeometry:
    return ExchangeGeometry(exchange_of(spec), direction == "push", chunk_rows)
