"""Lowering of an exchange: the launches, roles and steps of one rank.

Counters of a rank, with `chunks` chunks a piece:
  arrived(source, chunk)  the chunk of `source` has landed in the inbox      (push, signalled by source)
  ready(source, chunk)    the chunk of `source` may be read                  (pull, signalled by source)
  begun(target)           `target`, which this rank only sends to, has begun the call
  released                peers have read the operand of this rank           (pull from symmetric operands)

Who receives from a peer knows that the peer has begun the call. Who only sends to it is told, and ends its own call no
sooner: so no sender is two calls ahead of a receiver, and buffers of two versions suffice. (One counter for all targets
would be met by those that are ahead of the others.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilescale.schedules.exchanges import ExchangeGeometry
from tilescale.schedules.gather import SIGNAL_THREADS
from tilescale.schedules.geometry import Chunk
from tilescale.schedules.plan import Copy, Launch, Role, Signal, Step, Wait

Transfer = tuple[int, Chunk]  # peer, and rows of the piece


@dataclass(frozen=True)
class ExchangeShape:
    """What the schedule fixes for every rank. `comm_blocks` send, or do everything; `work_blocks` take what arrives."""

    order: str
    engine: bool
    depth: int
    comm_blocks: int
    work_blocks: int
    copy_threads: int
    copy_shared: int


def counters(geo: ExchangeGeometry) -> int:
    return 2 * geo.world * geo.max_chunks + geo.world + 1


class ExchangePlan:
    """Builds the launches of one rank."""

    def __init__(self, geo: ExchangeGeometry, shape: ExchangeShape, rank: int) -> None:
        self.geo, self.shape, self.rank = geo, shape, rank
        self.launches: list[Launch] = []
        self.targets, self.sources = geo.exchange.targets(rank), geo.exchange.sources(rank)
        self.gang = 1 if shape.engine else shape.comm_blocks // shape.depth
        self.outgoing = self._transfers([(peer, geo.chunks((rank, peer))) for peer in self.targets])
        self.incoming = self._transfers([(peer, geo.chunks((peer, rank))) for peer in self.sources])

    def _transfers(self, peers: Sequence[tuple[int, tuple[Chunk, ...]]]) -> list[Transfer]:
        found = [(peer, chunk) for peer, chunks in peers for chunk in chunks]
        return found if self.shape.order == "peer_major" else sorted(found, key=lambda transfer: transfer[1].index)

    # -- counters ------------------------------------------------------------------------------------------------------
    def arrived(self, source: int, chunk: Chunk) -> int:
        return source * self.geo.max_chunks + chunk.index

    def ready(self, source: int, chunk: int) -> int:
        return (self.geo.world + source) * self.geo.max_chunks + (chunk if self.geo.stages else 0)

    def begun(self, target: int) -> int:
        return 2 * self.geo.world * self.geo.max_chunks + target

    @property
    def released(self) -> int:
        return counters(self.geo) - 1

    # -- steps ---------------------------------------------------------------------------------------------------------
    def greet(self) -> list[Step]:
        """Tell those who only send to this rank that it has begun the call."""
        return [Signal(peer, self.begun(self.rank)) for peer in self.sources if peer not in self.targets]

    def farewell(self, greeters: int, readers: int) -> list[Step]:
        """What the end of the call waits for. `greeters`, `readers`: blocks that greet, or that read a chunk."""
        steps: list[Step] = [Wait(self.begun(peer), greeters) for peer in self.targets if peer not in self.sources]
        if self.reads_operands and self.outgoing:
            steps.append(Wait(self.released, len(self.outgoing) * readers))
        return steps

    @property
    def reads_operands(self) -> bool:
        """Whether peers read the operand where the caller holds it: the call may end only when they have."""
        return not self.geo.push and not self.geo.stages

    def own(self) -> list[Step]:
        copy = self.geo.own(self.rank)
        return [] if copy is None else [copy]

    def give(self) -> list[list[Step]]:
        """What a rank does for its peers: lists that may be dealt over gangs, of a copy and the signals behind it."""
        if self.geo.push:
            return [[self.geo.put(self.rank, peer, chunk), Signal(peer, self.arrived(self.rank, chunk))]
                    for peer, chunk in self.outgoing]
        if not self.geo.stages:
            return [[Signal(peer, self.ready(self.rank, 0)) for peer in self.targets]]
        staged: dict[Step, list[Step]] = {}  # what several peers read is staged once
        for peer, chunk in self.outgoing:
            copy = self.geo.stage(self.rank, peer, chunk)
            staged.setdefault(copy, []).append(Signal(peer, self.ready(self.rank, chunk.index)))
        return [[copy, *signals] for copy, signals in staged.items()]

    def receive(self, senders: int) -> list[list[Step]]:
        """What a rank does for itself, likewise. `senders`: blocks that signal a chunk."""
        found: list[list[Step]] = []
        for peer, chunk in self.incoming:
            if self.geo.push:
                found.append([Wait(self.arrived(peer, chunk), senders), self.geo.take(peer, self.rank, chunk)])
                continue
            steps: list[Step] = [Wait(self.ready(peer, chunk.index), senders), self.geo.get(peer, self.rank, chunk)]
            found.append([*steps, Signal(peer, self.released)] if self.reads_operands else steps)
        return found

    # -- launches ------------------------------------------------------------------------------------------------------
    def add(self, name: str, stream: int, roles: Sequence[Role]) -> None:
        """Append a launch of blocks; roles without steps are left out."""
        kept = tuple(role for role in roles if role.steps)
        if kept:
            self.launches.append(
                Launch(name, stream, kept, (), "copy", self.shape.copy_threads, self.shape.copy_shared))

    def small(self, name: str, stream: int, steps: Sequence[Step], after: Sequence[str] = ()) -> None:
        """A kernel of one block that only signals and waits."""
        role = Role(name, "blocks", 1, tuple(steps))
        self.launches.append(Launch(name, stream, (role,), tuple(after), "signal", SIGNAL_THREADS, 0))

    def by_engine(self, name: str, stream: int, steps: Sequence[Step]) -> None:
        """Host-recorded copies, and small kernels for the waits and signals between them."""
        between: list[Step] = []

        def pause(at: int) -> None:
            if between:
                self.small(f"{name}.{at}.meet", stream, between)
                between.clear()

        for at, step in enumerate(steps):
            if isinstance(step, Copy):
                pause(at)
                role = Role(f"{name}.{at}", "copy_engine", 1, (step,))
                self.launches.append(Launch(role.name, stream, (role,), (), "copy_engine"))
            else:
                between.append(step)
        pause(len(steps))

    def finish(self) -> None:
        """The launch that ends the call: it follows all streams. One stream that ends with a kernel needs none."""
        tails = {launch.stream: launch for launch in self.launches}
        if len(tails) == 1 and self.launches[-1].agent == "blocks":
            return
        self.small("finish", 0, (), [launch.name for stream, launch in sorted(tails.items()) if stream != 0])


def _flat(groups: Sequence[Sequence[Step]]) -> list[Step]:
    return [step for group in groups for step in group]


def _copies_last(groups: Sequence[Sequence[Step]]) -> list[Step]:
    """All waits before all copies before all signals: the fewest small kernels between copies by an engine."""
    steps = _flat(groups)
    return [*(s for s in steps if isinstance(s, Wait)), *(s for s in steps if isinstance(s, Copy)),
            *(s for s in steps if isinstance(s, Signal))]


# -- whole calls -------------------------------------------------------------------------------------------------------
def exchange_none(plan: ExchangePlan) -> None:
    """One thing after the other on one stream. Blocks that copy do all of it in one launch of one gang."""
    if plan.shape.engine:
        steps = [*plan.greet(), *_copies_last(plan.give()), *plan.own(), *_copies_last(plan.receive(1)),
                 *plan.farewell(1, 1)]
        plan.by_engine("all", 0, steps)
    else:
        blocks = plan.shape.comm_blocks
        steps = [*plan.greet(), *_flat(plan.give()), *plan.own(), *_flat(plan.receive(blocks)),
                 *plan.farewell(blocks, blocks)]
        plan.add("all", 0, [Role("all", "blocks", blocks, tuple(steps))])
    plan.finish()


def exchange_fused(plan: ExchangePlan) -> None:
    """Gangs that send beside a gang that takes what arrives, in one kernel; gangs that fetch, where ranks pull. Copy
    engines send from other streams."""
    shape, depth, gang, work = plan.shape, plan.shape.depth, plan.gang, plan.shape.work_blocks
    give = plan.give()
    if shape.engine:
        for g in range(depth):
            plan.by_engine(f"give.{g}", 1 + g, _flat(give[g::depth]))
        taken = (*plan.greet(), *plan.own(), *_flat(plan.receive(1)))
        plan.add("work", 0, [Role("work", "blocks", work, taken)])
        if last := plan.farewell(work, 1):
            plan.small("release", 0, last)
    elif plan.geo.push:
        last, senders = plan.farewell(work, 1), [_flat(give[g::depth]) for g in range(depth)]
        roles = [Role(f"comm.{g}", "blocks", gang, (*steps, *(last if g == 0 else ()))) for g, steps in enumerate(senders)]
        taken = (*plan.greet(), *plan.own(), *_flat(plan.receive(gang)))
        plan.add("fused", 0, [*roles, Role("work", "blocks", work, taken)])
    else:
        get, roles = plan.receive(gang), []
        for g in range(depth):
            first = [*plan.greet(), *plan.own()] if g == 0 else []
            last = plan.farewell(gang, gang) if g == 0 else []
            roles.append(Role(f"comm.{g}", "blocks", gang, (*_flat(give[g::depth]), *first, *_flat(get[g::depth]), *last)))
        plan.add("fused", 0, roles)
    plan.finish()
