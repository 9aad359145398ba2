"""Lowering of a sum over ranks: the launches, roles and steps of one rank.

Counters of a rank, with `chunks` chunks an owner at most:
  arrived(source, chunk)  the part of `source` for own rows has landed, or may be read       (signalled by source)
  made(owner, chunk)      the own product for rows of `owner` is complete                    (own multiplying blocks)
  result(owner, chunk)    `owner` has added up its rows                                      (two shots)
  released                peers have read the operand of this rank                           (pull from symmetric operands)

Every rank signals every other one in every call, also where it has no rows for it: so nobody is more than one call
ahead, and buffers of two versions suffice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from tilescale.schedules.algorithms.direct import outgoing
from tilescale.schedules.gather import SIGNAL_THREADS, batched
from tilescale.schedules.geometry import Chunk
from tilescale.schedules.plan import Copy, Launch, Role, Signal, Step, Wait
from tilescale.schedules.sums import SumGeometry

Target = tuple[int, Chunk]  # owner, and some of its rows


@dataclass(frozen=True)
class SumShape:
    """What the schedule fixes for every rank. `comm_blocks` copy, `work_blocks` multiply, `sum_blocks` add up: `beside`
    the products, or behind them."""

    order: str
    overlap: str
    engine: bool
    library: bool
    depth: int
    comm_blocks: int
    work_blocks: int
    sum_blocks: int
    copy_threads: int
    copy_shared: int
    beside: bool = False


class SumPlan:
    """Builds the launches of one rank."""

    def __init__(self, geo: SumGeometry, shape: SumShape, rank: int) -> None:
        self.geo, self.shape, self.rank = geo, shape, rank
        self.peers = tuple((rank + d) % geo.world for d in range(1, geo.world))
        self.launches: list[Launch] = []
        self.gang = max(1, 1 if shape.engine else shape.comm_blocks // shape.depth)
        self.targets = [(t.target, geo.chunks(t.target)[t.chunk])
                        for t in outgoing(rank, geo.world, geo.max_chunks, shape.order)
                        if t.chunk < len(geo.chunks(t.target))]
        self.own = geo.chunks(rank)

    # -- counters ------------------------------------------------------------------------------------------------------
    def _counter(self, kind: int, rank: int, chunk: Chunk) -> int:
        return (kind * self.geo.world + rank) * self.geo.max_chunks + chunk.index

    def arrived(self, source: int, chunk: Chunk) -> int:
        return self._counter(0, source, chunk)

    def made(self, owner: int, chunk: Chunk) -> int:
        return self._counter(1, self.rank if self.geo.whole else owner, chunk)

    def result(self, owner: int, chunk: Chunk) -> int:
        return self._counter(2, owner, chunk)

    @property
    def released(self) -> int:
        return counters(self.geo) - 1

    # -- steps ---------------------------------------------------------------------------------------------------------
    def put(self, target: Target) -> list[Step]:
        """Send the part for rows of a peer, and say so."""
        owner, chunk = target
        there = self.geo.inbox(owner, self.rank, chunk)
        copies: list[Step] = [Copy(self.geo.part(self.rank, owner, chunk), there)] if chunk.rows else []
        return [*copies, Signal(owner, self.arrived(self.rank, chunk))]

    def stage(self) -> list[list[Step]]:
        """Make the parts readable, and say so; a list a chunk. One shot stages every row once, for all peers."""
        geo = self.geo
        own = (self.rank,) if self.adds_own_copy else ()  # told like a peer
        if geo.whole:
            groups: list[tuple[Chunk, tuple[int, ...]]] = [(chunk, (*self.peers, *own)) for chunk in self.own]
        else:
            mine = [(self.rank, chunk) for chunk in self.own] if own else []
            groups = [(chunk, (owner,)) for owner, chunk in [*self.targets, *mine]]
        found: list[list[Step]] = []
        for chunk, owners in groups:
            steps: list[Step] = []
            if geo.stages and chunk.rows:
                steps.append(Copy(geo.operand(self.rank, chunk), geo.readable(self.rank, chunk)))
            found.append(steps + [Signal(owner, self.arrived(self.rank, chunk)) for owner in owners])
        return found

    def give(self) -> list[list[Step]]:
        """What a rank does for its peers, in lists that may be dealt over gangs."""
        return [self.put(target) for target in self.targets] if self.geo.push else self.stage()

    def totals(self, senders: int, signallers: int) -> list[Step]:
        """Add up the own rows as parts come in. `senders`: blocks that signal a part; `signallers`: those of this role."""
        steps = flat(self.total(chunk, senders) for chunk in self.own)
        if self.reads_operands:
            steps += [Signal(peer, self.released) for peer in self.peers]
            steps.append(Wait(self.released, len(self.peers) * signallers))
        return steps

    def total(self, chunk: Chunk, senders: int) -> list[Step]:
        """Add up a chunk of the own rows, and say so where peers fetch it."""
        sources = [(self.rank - d) % self.geo.world for d in range(1, self.geo.world)]
        sources += [self.rank] if self.adds_own_copy else []
        steps: list[Step] = [Wait(self.arrived(source, chunk), senders) for source in sources]
        if self.shape.beside:
            steps.append(Wait(self.made(self.rank, chunk), self.shape.work_blocks))
        if chunk.rows:
            steps.append(self.geo.total(self.rank, chunk))
        if self.geo.two_shot:
            steps += [Signal(rank, self.result(self.rank, chunk)) for rank in (*self.peers, self.rank)]
        return steps

    @property
    def adds_own_copy(self) -> bool:
        """Whether the own part is added where other blocks have made it readable: a switch reads it there."""
        return self.geo.multicast and not self.geo.sum.computes

    @property
    def reads_operands(self) -> bool:
        """Whether peers read the operand where the caller holds it: the call may end only when they have."""
        return not self.geo.push and self.geo.sum.symmetric and not self.geo.sum.computes

    def collect(self, signallers: int) -> list[list[Step]]:
        """Fetch the sums of all owners (two shots); a list a chunk. `signallers`: blocks that signal a result."""
        if not self.geo.two_shot:
            return []
        return [self.fetch(owner, chunk, signallers)
                for owner in (*self.peers, self.rank) for chunk in self.geo.chunks(owner)]

    def fetch(self, owner: int, chunk: Chunk, signallers: int) -> list[Step]:
        """Wait for a sum of `owner`, and fetch it."""
        fetched = self.geo.fetched(self.rank, owner, chunk) if chunk.rows else []
        return [Wait(self.result(owner, chunk), signallers), *fetched]

    def products(self) -> list[tuple[int, Chunk, bool]]:
        """(owner, chunk, whether peers wait for it), in the order in which they are made: the own rows last."""
        if self.geo.whole:
            return [(self.rank, chunk, True) for chunk in self.own]
        if self.shape.beside:  # which adds up a chunk when the own part of it is there, too
            every = [*((*target, True) for target in self.targets), *((self.rank, chunk, False) for chunk in self.own)]
            return sorted(every, key=lambda product: product[1].index)
        return [(owner, chunk, True) for owner, chunk in self.targets] + [(self.rank, chunk, False) for chunk in self.own]

    def groups(self) -> list[list[tuple[int, Chunk, bool]]]:
        """Products between which nothing is told: one each. Of those that are stored at their owners all; or, where chunks
        of all owners come in turn, those of a chunk, and the own ones."""
        products = self.products()
        if self.geo.scatter and self.shape.overlap == "none":
            return [products]
        if not (self.geo.scatter and self.shape.order == "chunk_major"):
            return [[product] for product in products]
        if self.shape.beside:
            return [list(group) for _, group in groupby(products, lambda p: p[1].index)]
        return [list(group) for _, group in groupby(products, lambda p: p[1].index if p[2] else -1)]

    def tell(self, owner: int, chunk: Chunk) -> list[Step]:
        """Signals of the multiplying blocks behind a product that peers wait for."""
        if self.geo.push and not self.geo.scatter:
            return [Signal(self.rank, self.made(owner, chunk))]
        owners: Iterable[int] = self.peers if self.geo.whole else (owner,)
        return [Signal(peer, self.arrived(self.rank, chunk)) for peer in owners]

    # -- launches ------------------------------------------------------------------------------------------------------
    def add(self, name: str, stream: int, roles: Sequence[Role], after: Sequence[str] = (), family: str = "sum") -> str:
        roles = [role for role in roles if role.steps]
        if roles:
            shape = self.shape
            self.launches.append(
                Launch(name, stream, tuple(roles), tuple(after), family, shape.copy_threads, shape.copy_shared))
        return name

    def blocks(self, name: str, blocks: int, steps: Iterable[Step]) -> Role:
        return Role(name, "blocks", blocks, tuple(steps))

    def small(self, name: str, stream: int, steps: Sequence[Step], after: Sequence[str] = ()) -> str:
        """A kernel of one block that only signals and waits."""
        self.launches.append(
            Launch(name, stream, (self.blocks(name, 1, steps),), tuple(after), "signal", SIGNAL_THREADS, 0))
        return name

    def host_copy(self, name: str, stream: int, copy: Step, after: Sequence[str] = ()) -> str:
        self.launches.append(Launch(name, stream, (Role(name, "copy_engine", 1, (copy,)),), tuple(after), "copy_engine"))
        return name

    def multiply(self, name: str, steps: Sequence[Step]) -> str:
        """Products without waits or signals, on stream 0; the name of the last launch."""
        if self.shape.library:
            for i, step in enumerate(steps):
                name_i = f"{name}.{i}"
                self.launches.append(Launch(name_i, 0, (Role(name_i, "library", 1, (step,)),), (), "library"))
            return f"{name}.{len(steps) - 1}"
        return self.add(name, 0, [self.blocks(name, self.shape.work_blocks, steps)], family="gemm")

    def sum_up(self, senders: int, after: Sequence[str] = ()) -> None:
        """The launch that adds up, and fetches where owners hand out."""
        blocks = self.shape.sum_blocks
        fetched = flat(self.collect(blocks))
        steps = [*self.totals(senders, blocks), *(batched(fetched) if self.shape.overlap == "none" else fetched)]
        self.add("sum", 0, [self.blocks("sum", blocks, steps)], after)

    def sum_beside(self, senders: int) -> None:
        """The launch that adds up beside the products: what is complete is fetched while the next chunk is added up."""
        blocks, geo = self.shape.sum_blocks, self.geo
        steps: list[Step] = []
        for index in range(geo.max_chunks + 1):
            steps += flat(self.total(chunk, senders) for chunk in self.own[index : index + 1])
            if geo.two_shot and index:
                steps += flat(self.fetch(owner, chunk, blocks) for owner in (*self.peers, self.rank)
                              for chunk in geo.chunks(owner)[index - 1 : index])
        self.add("sum", 1, [self.blocks("sum", blocks, steps)])

    def finish(self) -> None:
        """The launch that ends the call: it follows all streams. One stream that ends with a kernel needs none."""
        tails = {launch.stream: launch for launch in self.launches}
        if len(tails) == 1 and self.launches[-1].agent == "blocks":
            return
        self.small("finish", 0, (), [launch.name for stream, launch in sorted(tails.items()) if stream != 0])


def counters(geo: SumGeometry) -> int:
    """Counters of every rank."""
    return 3 * geo.world * geo.max_chunks + 1


def flat(groups: Iterable[Iterable[Step]]) -> list[Step]:
    return [step for group in groups for step in group]


# -- whole calls -------------------------------------------------------------------------------------------------------
def sum_none(plan: SumPlan) -> None:
    """One thing after the other on one stream: the product, the parts for the peers, the sums. Without a product and with
    blocks that copy, all of it is one launch of one gang: what small messages want."""
    geo, shape = plan.geo, plan.shape
    if geo.scatter:  # products of one group: nothing is sent but by their stores
        sum_fused(plan)
        return
    if geo.sum.computes and geo.sum.rows:
        whole = Chunk(0, 0, geo.sum.rows)
        plan.multiply("work", [geo.product(plan.rank, plan.rank, whole)])
    if shape.engine:
        for owner, chunk in plan.targets:
            if chunk.rows:
                copy = Copy(geo.part(plan.rank, owner, chunk), geo.inbox(owner, plan.rank, chunk))
                plan.host_copy(f"put.{owner}.{chunk.index}", 0, copy)
        plan.small("put.signal", 0, [Signal(owner, plan.arrived(plan.rank, chunk)) for owner, chunk in plan.targets])
        plan.sum_up(1)
    elif geo.sum.computes:
        blocks = shape.comm_blocks if geo.push else 1
        if geo.push:
            plan.add("give", 0, [plan.blocks("give", blocks, flat(plan.give()))])
        else:
            plan.small("give", 0, flat(plan.give()))
        plan.sum_up(blocks)
    else:
        blocks = shape.comm_blocks
        steps = [*batched(flat(plan.give())), *plan.totals(blocks, blocks), *batched(flat(plan.collect(blocks)))]
        plan.add("all", 0, [plan.blocks("all", blocks, steps)])
    plan.finish()


def sum_fused(plan: SumPlan) -> None:
    """Gangs that copy beside a gang that works, in one kernel: it multiplies, or adds up what comes in. What was
    multiplied is added up by a second kernel on all SMs."""
    if plan.geo.sum.computes:
        _fused_product(plan)
    else:
        _fused_copies(plan)
    plan.finish()


def _fused_copies(plan: SumPlan) -> None:
    shape, depth = plan.shape, plan.shape.depth
    blocks = shape.sum_blocks
    if shape.engine:
        _engine_puts(plan, wait=False)
        plan.sum_up(1)
        return
    give, collect = plan.give(), plan.collect(blocks)
    roles = [plan.blocks(f"comm.{g}", plan.gang, [*flat(give[g::depth]), *flat(collect[g::depth])]) for g in range(depth)]
    plan.add("fused", 0, [*roles, plan.blocks("sum", blocks, plan.totals(plan.gang, blocks))])


def _fused_product(plan: SumPlan) -> None:
    geo, shape = plan.geo, plan.shape
    work: list[Step] = []
    late: list[Step] = []  # signals of what is stored at peers, behind the next products: these are multiplied meanwhile
    for group in plan.groups():
        work += [geo.product(plan.rank, owner, chunk) for owner, chunk, _ in group if chunk.rows]
        told = [step for owner, chunk, awaited in group if awaited for step in plan.tell(owner, chunk)]
        if shape.beside:
            told += [Signal(plan.rank, plan.made(plan.rank, chunk)) for owner, chunk, _ in group if owner == plan.rank]
        work += late if geo.scatter else told
        late = told
    work += late if geo.scatter else []
    worker = plan.blocks("work", shape.work_blocks, work)
    if not geo.push or geo.scatter:
        plan.add("work", 0, [worker], family="gemm")
        if shape.beside:
            plan.sum_beside(shape.work_blocks)
        else:
            plan.sum_up(shape.work_blocks)
    elif shape.engine:
        _engine_puts(plan, wait=True)
        plan.add("work", 0, [worker], family="gemm")
        plan.sum_up(1)
    else:
        gangs = []
        for g in range(shape.depth):
            steps = [step for owner, chunk in plan.targets[g :: shape.depth] for step in
                     (Wait(plan.made(owner, chunk), shape.work_blocks), *plan.put((owner, chunk)))]
            gangs.append(plan.blocks(f"comm.{g}", plan.gang, steps))
        plan.add("fused", 0, [*gangs, worker], family="fused")
        plan.sum_up(plan.gang)


def _engine_puts(plan: SumPlan, wait: bool) -> None:
    """`depth` streams of host-recorded copies, each between the small kernels that wait for its part and announce it."""
    for i, (owner, chunk) in enumerate(plan.targets):
        stream, name = 1 + i % plan.shape.depth, f"put.{owner}.{chunk.index}"
        if wait:
            plan.small(f"{name}.wait", stream, [Wait(plan.made(owner, chunk), plan.shape.work_blocks)])
        _engine_put(plan, name, stream, (owner, chunk), ())


def _engine_put(plan: SumPlan, name: str, stream: int, target: Target, after: Sequence[str]) -> None:
    *copies, signal = plan.put(target)
    for copy in copies:
        plan.host_copy(name, stream, copy, after)
    plan.small(f"{name}.signal", stream, [signal], () if copies else after)


def sum_chunked(plan: SumPlan) -> None:
    """Products chunk by chunk on stream 0, the copies of each on one of `depth` other streams as soon as it is complete."""
    geo, shape = plan.geo, plan.shape
    senders, tails = 1, {}
    for i, (owner, chunk, awaited) in enumerate(plan.products()):
        name = f"work.{owner}.{chunk.index}"
        last = [plan.multiply(name, [geo.product(plan.rank, owner, chunk)])] if chunk.rows else []
        if not awaited:
            continue
        stream, to = 1 + i % shape.depth, f"give.{owner}.{chunk.index}"
        targets = [(peer, chunk) for peer in plan.peers] if geo.whole else [(owner, chunk)]
        if not geo.push:
            plan.small(to, stream, plan.tell(owner, chunk), last)
        elif shape.engine:
            for target in targets:
                _engine_put(plan, f"{to}.{target[0]}", stream, target, last)
        else:
            senders = plan.gang
            plan.add(to, stream, [plan.blocks(to, plan.gang, flat(map(plan.put, targets)))], last)
        tails[stream] = plan.launches[-1].name
    plan.sum_up(senders, [name for _, name in sorted(tails.items())])
    plan.finish()
