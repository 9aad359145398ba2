"""Sizes, regions and launches of dispatch and combine of expert parallelism, whose sizes are known on the device alone.

A rank reserves a *segment* of its inbox for every rank, which that rank fills from the start, so a rank needs no number of
a peer to know where its rows go: what is read and written is bounded by segments, whatever the routing. Memory: a segment
of a dispatch that pushes has room for all tokens of its source, of a combine that pushes for all their rows (`top_k` times
as many); what pulls has segments of a few words a token, or an expert.

Counters of a rank: arrived(source); met, by the own gang; released, where peers read the operand of this rank in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tilescale.schedules.plan import Buffer, Copy, Goal, Launch, Plan, Ragged, Region, Role, Signal, Step, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.ops._counts import count_attribute
from tilescale.spec.ops._moe import combines, shares_of, tokens_of
from tilescale.spec.routed import is_routed

THREADS = 512
WARP = 32
WORD = 4
SEGMENT_UNIT = 128


def ragged(spec: Spec) -> bool:
    """Whether how much goes where is known on the device alone."""
    return is_routed(spec)


def aligned(size: int) -> int:
    """The next multiple of SEGMENT_UNIT."""
    return -(-size // SEGMENT_UNIT) * SEGMENT_UNIT


@dataclass(frozen=True)
class RaggedGeometry:
    """Buffers and regions. `tokens`: of each rank; `room`: rows that a rank has room for; `blocks`: of the gang.
    `symmetric`: peers may read the operand where the caller holds it. `shares`: of all rows, those of the experts of each
    rank, as declared.
    """

    combines: bool
    tokens: tuple[int, ...]
    top_k: int
    experts: int
    row_bytes: int
    itemsize: int
    push: bool
    symmetric: bool
    blocks: int
    shares: tuple[float, ...]

    @property
    def held(self) -> str:
        """The buffer whose tokens or rows are sent."""
        return "a"

    @property
    def world(self) -> int:
        return len(self.tokens)

    @property
    def local(self) -> int:
        """Experts of a rank."""
        return self.experts // self.world

    @property
    def most(self) -> int:
        """Tokens of the rank with most."""
        return max(self.tokens)

    @property
    def entries(self) -> int:
        return self.most * self.top_k

    @property
    def room(self) -> int:
        return sum(self.tokens) * self.top_k

    @property
    def keys(self) -> int:
        """Experts and ranks, which a block counts rows and tokens of."""
        return self.experts + self.world

    @property
    def stages(self) -> bool:
        """Whether tokens are first copied to where peers can read them."""
        return not self.push and not self.symmetric

    @property
    def pullable(self) -> bool:
        """Whether peers could read the operand: it lies where they can, or every rank first copies as many tokens there."""
        return self.symmetric or (not self.combines and len(set(self.tokens)) == 1)

    @property
    def in_place(self) -> bool:
        """Whether peers read the operand where the caller holds it: the call may end only when they have."""
        return not self.push and self.symmetric

    @property
    def head_bytes(self) -> int:
        """Of a segment, before its tokens or rows."""
        if self.combines:
            return aligned(self.local * WORD)
        words = (self.local + 4) // 4 * 4 + self.most * (self.top_k + 1)
        return aligned(words * WORD)

    @property
    def segment_bytes(self) -> int:
        rows = self.entries if self.combines else self.most
        return aligned(self.head_bytes + (rows * self.row_bytes if self.push else 0))

    @property
    def shared_bytes(self) -> int:
        """Of a block: what MoeShared of moe.cuh holds."""
        words = 2 * THREADS + (THREADS // WARP + 3) * self.keys + 3 * self.experts + self.world + 1
        return aligned(words * WORD)

    # -- buffers -------------------------------------------------------------------------------------------------------
    @cached_property
    def operand_bytes(self) -> int:
        return (self.room if self.combines else self.most) * self.row_bytes

    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers of the plan. Two versions where a peer may be one call ahead or behind: not where the call ends only
        when all have read."""
        counts = self.experts * WORD
        made = (self.most if self.combines else self.room) * self.row_bytes
        found = [Buffer("a", "input", self.operand_bytes, self.in_place),
                 Buffer("indices", "input", self.entries * WORD)]
        if self.combines:
            found += [Buffer("weights", "input", self.entries * WORD), Buffer("counts", "input", counts)]
        found.append(Buffer("out", "output", made))
        if not self.combines:
            found.append(Buffer("counts", "output", counts))
        found.append(Buffer("routes", "workspace", (2 * self.entries + self.blocks * self.keys) * WORD))
        found.append(Buffer("inbox", "workspace", self.world * self.segment_bytes, True, 1 if self.in_place else 2))
        if self.stages:
            found.append(Buffer("staging", "workspace", self.operand_bytes, True, 2))
        return tuple(found)

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {buffer.name: buffer.size for buffer in self.buffers()}

    def whole(self, buffer: str, rank: int) -> Region:
        return Region(buffer, rank, 0, self.sizes[buffer])

    def segment(self, holder: int, source: int, *, rows: bool) -> Region:
        """That of `source` at `holder`, with its tokens or rows or without."""
        size = self.segment_bytes if rows else self.head_bytes
        return Region("inbox", holder, source * self.segment_bytes, size)

    def packed(self, holder: int, source: int) -> Region:
        """The tokens or rows of a segment."""
        return Region("inbox", holder, source * self.segment_bytes + self.head_bytes,
                      self.segment_bytes - self.head_bytes)

    def block_counts(self, rank: int) -> Region:
        first = 2 * self.entries * WORD
        return Region("routes", rank, first, self.sizes["routes"] - first)

    def readable(self, rank: int) -> Region:
        """The operand of `rank`, where peers read it."""
        return self.whole("staging" if self.stages else "a", rank)

    # -- what is expected, for cost models -----------------------------------------------------------------------------
    def expected_rows(self, source: int, holder: int) -> int:
        """Rows of the tokens of `source` for experts of `holder`, where tokens are routed as declared."""
        return round(self.tokens[source] * self.top_k * self.shares[holder])

    def expected_tokens(self, source: int, holder: int) -> int:
        """Tokens of `source` with an expert of `holder`: as if they drew one after the other."""
        return round(self.tokens[source] * (1.0 - (1.0 - self.shares[holder]) ** self.top_k))

    # -- steps ---------------------------------------------------------------------------------------------------------
    def route(self, rank: int) -> Ragged:
        """Numbers the entries of the rank's tokens: reads indices, writes numbers."""
        return Ragged("route", (self.whole("indices", rank),), (self.whole("routes", rank),), rank)

    def total(self, rank: int) -> Ragged:
        """Adds up what blocks have counted, into shared memory."""
        return Ragged("total", (self.block_counts(rank),), (), rank)

    def send(self, rank: int, peer: int) -> Ragged:
        """Fills the segment of `rank` at `peer`. Reads tokens, indices, numbers."""
        reads = tuple(self.whole(name, rank) for name in ("a", "indices", "routes"))
        moved = self.expected_tokens(rank, peer) if self.push and peer != rank else 0
        return Ragged("send", reads, (self.segment(peer, rank, rows=self.push and peer != rank),), peer,
                      moved * self.row_bytes)

    def place(self, rank: int) -> Ragged:
        """Takes what has arrived to where it belongs. Reads the segment of every source, then its tokens: the own ones,
        and those that are pulled, where they are. Writes rows and counts."""
        everyone = range(self.world)
        heads = tuple(self.segment(rank, source, rows=False) for source in everyone)
        tokens = tuple(self.whole("a", rank) if source == rank else
                       self.packed(rank, source) if self.push else self.readable(source) for source in everyone)
        moved = sum(self.expected_tokens(source, rank) for source in everyone)
        return Ragged("place", (*heads, *tokens), (self.whole("out", rank), self.whole("counts", rank)), rank,
                      moved * self.row_bytes)

    def tally(self, rank: int) -> Ragged:
        """Where rows begin by source and expert, into shared memory: reads the counts of the dispatch."""
        return Ragged("tally", (self.whole("counts", rank),), (), rank)

    def give(self, rank: int, peer: int) -> Ragged:
        """Gives `peer` its rows, or tells it where they begin. Reads rows."""
        target = self.packed(peer, rank) if self.push else self.segment(peer, rank, rows=False)
        moved = self.expected_rows(peer, rank) if self.push else 0
        rows = (self.whole(self.held, rank),) if self.push else ()
        return Ragged("return", rows, (target,), peer, moved * self.row_bytes)

    def weigh(self, rank: int) -> Ragged:
        """Adds up the rows of each token. Reads weights, indices, numbers, the rows at every rank and, of those that are
        pulled, where they begin."""
        everyone = range(self.world)
        rows = tuple(self.whole(self.held, rank) if holder == rank else
                     self.packed(rank, holder) if self.push else self.readable(holder) for holder in everyone)
        heads = () if self.push else tuple(self.segment(rank, holder, rows=False) for holder in everyone if holder != rank)
        own = tuple(self.whole(name, rank) for name in ("weights", "indices", "routes"))
        moved = sum(self.expected_rows(rank, holder) for holder in everyone)
        return Ragged("weigh", (*own, *rows, *heads), (self.whole("out", rank),), rank, moved * self.row_bytes)


@lru_cache(maxsize=256)
def ragged_geometry(spec: Spec, direction: str, blocks: int) -> RaggedGeometry:
    tokens, moved = tokens_of(spec), spec.inputs[0]
    return RaggedGeometry(
        combines(spec), tuple(tokens.local_shape(rank, spec.world)[0] for rank in range(spec.world)),
        count_attribute(spec, "top_k"), count_attribute(spec, "experts"), moved.sizes[1] * moved.itemsize,
        moved.itemsize,
        direction == "push", spec.placement == "symmetric", blocks, shares_of(spec))


class RaggedPlan:
    """Builds the launch of one rank. `senders`: blocks that fill segments; `takers`: those that take what arrives, the same
    ones or others beside them."""

    def __init__(self, geo: RaggedGeometry, rank: int, senders: int, takers: int) -> None:
        self.geo, self.rank, self.senders, self.takers = geo, rank, senders, takers
        self.peers = tuple((rank + d) % geo.world for d in range(1, geo.world))

    @property
    def met(self) -> int:
        return self.geo.world

    @property
    def released(self) -> int:
        return self.geo.world + 1

    def give(self) -> list[Step]:
        """Fills the segments at all ranks."""
        geo, rank = self.geo, self.rank
        steps: list[Step] = []
        if geo.stages and geo.tokens[rank]:
            own = geo.tokens[rank] * geo.row_bytes
            steps.append(Copy(Region("a", rank, 0, own), Region("staging", rank, 0, own)))
        if geo.combines:
            return [*steps, geo.tally(rank), *self._deal(geo.give)]
        return [*steps, *self._number(), *self._deal(geo.send), geo.send(rank, rank), Signal(rank, rank)]

    def take(self) -> list[Step]:
        """Takes what arrives, behind `give` or beside it."""
        geo, rank = self.geo, self.rank
        arrivals: list[Step] = [Wait(peer, self.senders) for peer in self.peers]
        if geo.combines:
            steps = [*self._number(), *arrivals, geo.weigh(rank)]
        else:
            steps = [*arrivals, Wait(rank, self.senders), geo.place(rank)]
        if geo.in_place:
            steps += [*(Signal(peer, self.released) for peer in self.peers),
                      Wait(self.released, self.takers * len(self.peers))]
        return steps

    def _number(self) -> list[Step]:
        """Numbers the entries of the own tokens, by as many blocks as the geometry has."""
        geo, rank = self.geo, self.rank
        return [geo.route(rank), Signal(rank, self.met), Wait(self.met, geo.blocks), geo.total(rank)]

    def _deal(self, step: Callable[[int, int], Ragged]) -> list[Step]:
        """What every peer is given, the next one first, and the signal behind it."""
        return [part for peer in self.peers for part in (step(self.rank, peer), Signal(peer, self.rank))]

    def roles(self, beside: bool) -> tuple[Role, ...]:
        """One gang that does everything, or one that gives and one that takes."""
        if not beside:
            return (Role("all", "blocks", self.senders, (*self.give(), *self.take())),)
        tally = (self.geo.tally(self.rank),) if self.geo.combines else ()
        return (Role("comm", "blocks", self.senders, tuple(self.give())),
                Role("work", "blocks", self.takers, (*tally, *self.take())))


def ragged_structure(spec: Spec, schedule: Schedule, share: int) -> Plan:
    """The plan of a dispatch or a combine. Fused: one gang gives, and the other SMs take."""
    beside, senders = schedule.overlap == "fused", schedule.num_comm_blocks
    takers = share - senders if beside else senders
    numbering = takers if combines(spec) else senders
    geo = ragged_geometry(spec, schedule.direction, numbering)
    ranks = []
    for rank in range(spec.world):
        roles = RaggedPlan(geo, rank, senders, takers).roles(beside)
        ranks.append((Launch("all", 0, roles, (), "moe", THREADS, geo.shared_bytes),))
    goal = Goal("a", "out", (0,) * (spec.world + 1), geo.row_bytes, geo.row_bytes, False, ragged=True)
    return Plan(op=spec.op, buffers=geo.buffers(), counters=geo.world + 2, ranks=tuple(ranks), goal=goal, sm_share=share,
                smem_limit=spec.topology.gpu.smem_bytes)
