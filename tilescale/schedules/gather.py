"""Lowering of a gather and what consumes it: the launches, roles and steps of one rank.

Counters of a rank, with `chunks` chunks a shard and `world` ranks:
  arrived(source, chunk)  rows of `source` have landed here           (push: signalled by who sent them; pull: by the own
                          getter)
  ready(source, chunk)    `source` has staged the chunk for its peers (pull)
  released                peers have read the operand of this rank    (pull from symmetric operands)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilescale.schedules.algorithms import Algorithm, Transfer
from tilescale.schedules.geometry import Chunk, Geometry
from tilescale.schedules.plan import Copy, Launch, MultimemStore, Role, Signal, Step, Wait

SIGNAL_THREADS = 32  # small enough to share an SM's registers with a persistent product


@dataclass(frozen=True)
class Shape:
    """What the schedule fixes for every rank: gangs, blocks, threads and shared memory of the kernels."""

    algorithm: Algorithm
    order: str
    overlap: str
    engine: bool            # copies by a copy engine instead of blocks
    library: bool           # products by a library call
    depth: int
    comm_blocks: int
    work_blocks: int        # blocks that multiply or copy out
    copy_threads: int
    copy_shared: int
    work_threads: int
    work_shared: int
    multicast: bool = False  # one store reaches every rank


class RankPlan:
    """Builds the launches of one rank.

    `one_product`: all that arrives becomes one product, which waits for it itself, even beside copies on streams.
    """

    one_product = False

    def __init__(self, geo: Geometry, shape: Shape, rank: int) -> None:
        self.geo, self.shape, self.rank = geo, shape, rank
        self.peers = tuple((rank + d) % geo.world for d in range(1, geo.world))
        self.launches: list[Launch] = []
        self.own_chunks = geo.chunks(rank)
        self.incoming = self._there(shape.algorithm.incoming(rank, geo.world, geo.max_chunks, shape.order))
        self.outgoing = self._there(shape.algorithm.outgoing(rank, geo.world, geo.max_chunks, shape.order))
        if geo.span > 1:
            self.incoming, self.outgoing = self._spanning()
        self.gang = 1 if shape.engine else shape.comm_blocks // shape.depth
        # Blocks that announce a chunk: those that have staged it, or one where it lies ready.
        self.announcers = self.gang if geo.stages or shape.overlap == "fused" else 1

    def _there(self, transfers: Sequence[Transfer]) -> list[Transfer]:
        """Those of chunks that their owners have: smaller shards have fewer."""
        return [t for t in transfers if t.chunk < len(self.geo.chunks(t.source))]

    def _spanning(self) -> tuple[list[Transfer], list[Transfer]]:
        """What is received and sent where a product spans shards: first among those of the own product, then one product
        after the other; at any time every rank sends to one peer and receives from one."""
        span, products = self.geo.span, self.geo.world // self.geo.span
        mine, place = divmod(self.rank, span)
        turns = [(d, i) for d in range(products) for i in range(span) if (d, i) != (0, 0)]
        sources = [(mine + d) % products * span + (place - i) % span for d, i in turns]
        targets = [(mine - d) % products * span + (place + i) % span for d, i in turns]
        return [Transfer(s, self.rank, 0) for s in sources], [Transfer(self.rank, t, 0) for t in targets]

    def chunk_of(self, transfer: Transfer) -> Chunk:
        return self.geo.chunks(transfer.source)[transfer.chunk]

    # -- counters ------------------------------------------------------------------------------------------------------
    def arrived(self, source: int, chunk: int) -> int:
        return source * self.geo.max_chunks + chunk

    def ready(self, source: int, chunk: int) -> int:
        return (self.geo.world + source) * self.geo.max_chunks + (chunk if self.geo.stages else 0)

    @property
    def released(self) -> int:
        return 2 * self.geo.world * self.geo.max_chunks

    # -- steps ---------------------------------------------------------------------------------------------------------
    def move(self, transfer: Transfer) -> list[Step]:
        """The put (push) or get (pull) of a transfer; of an empty chunk there is none."""
        chunk, source = self.chunk_of(transfer), transfer.source
        if not chunk.rows:
            return []
        if self.geo.push:
            held = self.geo.own(source, chunk) if source == self.rank else self.geo.gathered(self.rank, source, chunk)
            return [Copy(held, self.geo.gathered(transfer.target, source, chunk))]
        return [Copy(self.geo.staged(source, chunk), self.geo.gathered(self.rank, source, chunk))]

    def before(self, transfer: Transfer) -> tuple[Step, ...]:
        """What a pull waits for, or who passes on what it received. Other pushes need nothing, since the buffer has two
        versions."""
        if self.geo.push:
            passed = transfer.source != self.rank
            return (Wait(self.arrived(transfer.source, transfer.chunk), self.gang),) if passed else ()
        return (Wait(self.ready(transfer.source, transfer.chunk), self.announcers),)

    def after(self, transfer: Transfer, local: bool) -> tuple[Step, ...]:
        """Signals behind a transfer. `local`: someone on this rank waits for it by counter."""
        if self.geo.push:
            return (Signal(transfer.target, self.arrived(transfer.source, transfer.chunk)),)
        steps: list[Step] = []
        if local and self.geo.gathers:
            steps.append(Signal(self.rank, self.arrived(transfer.source, transfer.chunk)))
        if not self.geo.stages:
            steps.append(Signal(transfer.source, self.released))
        return tuple(steps)

    def give(self, chunks: Sequence[Chunk], transfers: Sequence[Transfer], local: bool) -> list[Step]:
        """Put what is pushed: each transfer, or where a switch hands on each of `chunks` once, to all ranks."""
        if not self.shape.multicast:
            return [step for t in transfers for step in (*self.before(t), *self.move(t), *self.after(t, local))]
        steps: list[Step] = []
        for chunk in chunks:
            if chunk.rows:
                others = tuple(self.geo.gathered(peer, self.rank, chunk) for peer in self.peers)
                here = self.geo.gathered(self.rank, self.rank, chunk)
                steps.append(MultimemStore(self.geo.own(self.rank, chunk), here, others))
            steps += [Signal(peer, self.arrived(self.rank, chunk.index)) for peer in self.peers]
        return steps

    def announce(self, chunk: Chunk) -> tuple[Step, ...]:
        """Tell every peer that the chunk may be read."""
        return tuple(Signal(peer, self.ready(self.rank, chunk.index)) for peer in self.peers)

    def stage(self, chunk: Chunk) -> list[Step]:
        return [Copy(self.geo.own(self.rank, chunk), self.geo.staged(self.rank, chunk))] if chunk.rows else []

    def wait_released(self) -> Wait:
        return Wait(self.released, len(self.peers) * len(self.own_chunks) * self.gang)

    def segments(self, waits: bool) -> list[Step]:
        """Own rows first, then the others in the order they are expected, each behind its wait."""
        if self.geo.span > 1:
            return self._spans()
        steps = self.own_rows()
        for t in self.incoming:
            steps += [*([Wait(self.arrived(t.source, t.chunk), self.gang)] if waits else []), *self.received_rows(t)]
        return steps

    def gather_own(self) -> list[Step]:
        """The own rows to where those of the others land, for a product that takes them together."""
        whole = self.geo.whole(self.rank)
        return [Copy(self.geo.own(self.rank, whole), self.geo.gathered(self.rank, self.rank, whole))]

    def _spans(self) -> list[Step]:
        """Products of several shards, that of the own one first, each behind what it waits for."""
        steps: list[Step] = []
        for first in range(0, self.geo.world, self.geo.span):
            mine = (first + self.rank // self.geo.span * self.geo.span) % self.geo.world
            rows = Chunk(0, 0, self.geo.span * self.geo.rows)
            steps += [Wait(self.arrived(source, 0), self.gang) for source in range(mine, mine + self.geo.span)]
            steps.append(self.geo.consume(self.rank, mine, rows, self.geo.gathered(self.rank, mine, rows)))
        return steps

    def own_rows(self) -> list[Step]:
        whole = self.geo.whole(self.rank)
        return [self.geo.consume(self.rank, self.rank, whole, self.geo.own(self.rank, whole))] if whole.rows else []

    def received_rows(self, transfer: Transfer) -> list[Step]:
        chunk = self.chunk_of(transfer)
        landed = self.geo.gathered(self.rank, transfer.source, chunk)
        return [self.geo.consume(self.rank, transfer.source, chunk, landed)] if chunk.rows else []

    def kept(self, transfers: Sequence[Transfer], waits: bool) -> list[Step]:
        """Copies of what has been received to the output that holds it, where there is one."""
        steps: list[Step] = []
        for t in transfers if self.geo.keeps else ():
            copies = self.geo.keep(self.rank, t.source, self.chunk_of(t))
            steps += [*([Wait(self.arrived(t.source, t.chunk), self.gang)] if waits and copies else []), *copies]
        return steps

    def keep_own(self) -> list[Step]:
        return [*self.geo.keep(self.rank, self.rank, self.geo.whole(self.rank))] if self.geo.keeps else []

    # -- launches ------------------------------------------------------------------------------------------------------
    def copies(self, name: str, stream: int, steps: Sequence[Step]) -> None:
        """Launches that wait and copy, by blocks or by a copy engine."""
        if steps and not self.shape.engine:
            self.add(name, stream, [Role(name, "blocks", self.gang, tuple(steps))])
        for i, step in enumerate(steps if self.shape.engine else ()):
            if isinstance(step, Wait):
                self.small(f"{name}.{i}.wait", stream, [step])
            else:
                self.host_copy(f"{name}.{i}", stream, [step])

    def add(self, name: str, stream: int, roles: Sequence[Role], after: Sequence[str] = (), *, work: bool = False,
            family: str = "copy") -> str:
        """Append a launch of blocks, sized for the work it holds."""
        shape = self.shape
        threads, shared = (shape.work_threads, shape.work_shared) if work else (shape.copy_threads, shape.copy_shared)
        self.launches.append(Launch(name, stream, tuple(roles), tuple(after), family, threads, shared))
        return name

    def small(self, name: str, stream: int, steps: Sequence[Step], after: Sequence[str] = ()) -> str:
        """A kernel of one block that only signals and waits."""
        role = Role(name, "blocks", 1, tuple(steps))
        self.launches.append(Launch(name, stream, (role,), tuple(after), "signal", SIGNAL_THREADS, 0))
        return name

    def host_copy(self, name: str, stream: int, copies: Sequence[Step], after: Sequence[str] = ()) -> str:
        """A copy by a copy engine, where there is one; the name of the last launch on the stream."""
        for copy in copies:
            role = Role(name, "copy_engine", 1, (copy,))
            self.launches.append(Launch(name, stream, (role,), tuple(after), "copy_engine"))
            return name
        return next((launch.name for launch in reversed(self.launches) if launch.stream == stream), "")

    def work(self, name: str, stream: int, steps: Sequence[Step], after: Sequence[str] = ()) -> None:
        """Launches that multiply or copy out `steps`, which need no waits of their own."""
        if not steps:
            return
        if self.geo.computes and self.shape.library:
            for i, step in enumerate(steps):
                role = Role(f"{name}.{i}", "library", 1, (step,))
                self.launches.append(Launch(role.name, stream, (role,), tuple(after), "library"))
        elif self.geo.computes:
            self.add(name, stream, [Role(name, "blocks", self.shape.work_blocks, tuple(steps))], after, work=True,
                     family="gemm")
        elif self.shape.engine:
            for i, step in enumerate(steps):
                self.host_copy(f"{name}.{i}", stream, [step], after)
        else:
            self.add(name, stream, [Role(name, "blocks", self.shape.work_blocks, tuple(steps))], after)

    def finish(self) -> None:
        """The launch that ends the call: it follows all streams. One stream that ends with a kernel needs none."""
        tails = {launch.stream: launch for launch in self.launches}
        if len(tails) == 1 and self.launches[-1].agent == "blocks":
            return
        self.small("finish", 0, (), [launch.name for stream, launch in sorted(tails.items()) if stream != 0])


# -- whole calls -------------------------------------------------------------------------------------------------------
def lower_fused(plan: RankPlan) -> None:
    """One kernel: gangs that copy beside a gang that works. Copy engines feed the same kernel from other streams."""
    if plan.shape.engine:
        _engine_streams(plan)
        if plan.geo.gathers:
            steps = tuple(plan.segments(waits=True))
            role = Role("work", "blocks", plan.shape.work_blocks, steps)
            plan.add("work", 0, [role], work=plan.geo.computes, family="gemm" if plan.geo.computes else "copy")
        else:
            plan.host_copy("own", 0, plan.own_rows())
        _release(plan)
    else:
        roles = [Role(f"comm.{g}", "blocks", plan.gang, tuple(_gang_steps(plan, g))) for g in range(plan.shape.depth)]
        if plan.geo.gathers:
            roles.append(Role("work", "blocks", plan.shape.work_blocks, tuple(plan.segments(waits=True))))
        plan.add("fused", 0, roles, work=plan.geo.computes, family="fused" if plan.geo.computes else "copy")
    plan.finish()


def _gang_steps(plan: RankPlan, gang: int) -> list[Step]:
    """What copy gang `gang` of a fused kernel does: its share of the chunks to stage, then of the transfers."""
    geo, depth = plan.geo, plan.shape.depth
    steps: list[Step] = []
    if geo.stages:
        for chunk in plan.own_chunks[gang::depth]:
            steps += [*plan.stage(chunk), *plan.announce(chunk)]
    elif not geo.push and gang == 0:
        steps += plan.announce(plan.own_chunks[0])
    if geo.span > 1 and gang == 0:
        steps += [*plan.gather_own(), Signal(plan.rank, plan.arrived(plan.rank, 0))]
    if not geo.gathers and gang == 0:
        steps += plan.own_rows()
    if geo.push:
        steps += plan.give(plan.own_chunks[gang::depth], plan.outgoing[gang::depth], local=True)
    else:
        for transfer in plan.incoming[gang::depth]:
            steps += [*plan.before(transfer), *plan.move(transfer), *plan.after(transfer, local=True)]
    kept = plan.kept(plan.incoming[gang::depth], waits=geo.push)  # what was pulled, its own blocks have copied
    steps += [*(plan.keep_own() if gang == 0 else []), *kept]
    if not geo.push and geo.symmetric and gang == 0:
        steps.append(plan.wait_released())
    return steps


def _engine_streams(plan: RankPlan) -> None:
    """`depth` streams of host-recorded copies, each copy with the small kernels that wait and signal around it."""
    _engine_staging(plan)
    if plan.geo.span > 1:
        plan.host_copy("own", 1, plan.gather_own())
        plan.small("own.signal", 1, [Signal(plan.rank, plan.arrived(plan.rank, 0))])
    transfers = plan.outgoing if plan.geo.push else plan.incoming
    _engine_transfers(plan, transfers, [1 + i % plan.shape.depth for i in range(len(transfers))], local=True)
    plan.copies("keep.own", 1, plan.keep_own())
    for i, t in enumerate(plan.incoming):
        plan.copies(f"keep.{t.source}.{t.chunk}", 1 + i % plan.shape.depth, plan.kept([t], waits=plan.geo.push))


def _engine_transfers(plan: RankPlan, transfers: Sequence[Transfer], streams: Sequence[int], local: bool) -> str:
    """Transfers one by one, each between what it waits for and its signals; the name of the last launch."""
    last = ""
    for t, stream in zip(transfers, streams, strict=True):
        name = f"copy.{t.source}.{t.target}.{t.chunk}"
        if before := plan.before(t):
            plan.small(f"{name}.wait", stream, before)
        last = plan.host_copy(name, stream, plan.move(t))
        if after := plan.after(t, local):
            last = plan.small(f"{name}.signal", stream, after)
    return last


def _engine_staging(plan: RankPlan) -> None:
    geo, depth = plan.geo, plan.shape.depth
    if geo.stages:
        for chunk in plan.own_chunks:
            stream = 1 + chunk.index % depth
            plan.host_copy(f"stage.{chunk.index}", stream, plan.stage(chunk))
            plan.small(f"stage.{chunk.index}.signal", stream, plan.announce(chunk))
    elif not geo.push:
        plan.small("announce", 1, plan.announce(plan.own_chunks[0]))


def _release(plan: RankPlan) -> None:
    """Behind everything else, wait until the peers have read a symmetric operand: the caller may write it then."""
    if not plan.geo.push and plan.geo.symmetric:
        tails = {launch.stream: launch.name for launch in plan.launches}
        plan.small("release", 0, [plan.wait_released()], [name for s, name in sorted(tails.items()) if s != 0])


def lower_chunked(plan: RankPlan) -> None:
    """Copies on `depth` streams, chunk by chunk; work on stream 0 as chunks have arrived from every rank."""
    geo, shape = plan.geo, plan.shape
    _stage_chunks(plan, [1 + c.index % shape.depth for c in plan.own_chunks])
    if not plan.one_product:
        plan.work("own", 0, plan.own_rows())
    plan.copies("keep.own", 1, plan.keep_own())
    for chunk in range(geo.max_chunks):
        tail = _communicate(plan, chunk, 1 + chunk % shape.depth, plan.one_product)
        if plan.one_product:
            continue
        _receive(plan, chunk, [chunk])
        if geo.gathers:
            received = [step for t in plan.incoming if t.chunk == chunk for step in plan.received_rows(t)]
            plan.work(f"work.{chunk}", 0, received, [tail] if tail and not geo.push else ())
    for chunk in range(geo.max_chunks):
        arriving = [t for t in plan.incoming if t.chunk == chunk]
        plan.copies(f"keep.{chunk}", 1 + chunk % shape.depth, plan.kept(arriving, waits=geo.push))
    if plan.one_product:
        role = Role("work", "blocks", shape.work_blocks, tuple(plan.segments(waits=True)))
        plan.add("work", 0, [role], work=True, family="gemm")
    _release(plan)
    plan.finish()


def batched(steps: Sequence[Step]) -> list[Step]:
    """Waits first, side by side; then copies, which are taken together where they are small; then signals, behind one
    fence. For steps of which none waits for what another one tells."""
    return sorted(steps, key=lambda step: isinstance(step, Signal) - isinstance(step, Wait))


def lower_none(plan: RankPlan) -> None:
    """First all copies, then all the work, on one stream."""
    geo, shape = plan.geo, plan.shape
    _stage_chunks(plan, [0 for _ in plan.own_chunks])
    gathered, own = geo.computes and (shape.library or geo.span > 1), geo.whole(plan.rank)
    if gathered and own.rows and not shape.multicast:  # which stores the own rows, too
        copy = Copy(geo.own(plan.rank, own), geo.gathered(plan.rank, plan.rank, own))
        if shape.engine:
            plan.host_copy("own", 0, [copy])
        else:
            plan.add("own", 0, [Role("own", "blocks", shape.comm_blocks, (copy,))])
    for number in range(geo.max_chunks):
        _communicate(plan, number, 0, at_once=not shape.algorithm.forwards)
    _receive(plan, 0, range(geo.max_chunks))
    plan.copies("keep", 0, [*plan.keep_own(), *plan.kept(plan.incoming, waits=False)])
    if gathered and geo.total:
        everything = Chunk(0, 0, geo.total)
        operand = geo.gathered(plan.rank, 0, everything)
        plan.work("work", 0, [geo.consume(plan.rank, 0, everything, operand)])
    elif geo.gathers:
        plan.work("work", 0, plan.segments(waits=False))
    else:
        plan.work("own", 0, plan.own_rows())
    _release(plan)
    plan.finish()


def _stage_chunks(plan: RankPlan, streams: Sequence[int]) -> None:
    """Make the operand readable for peers: staged chunk by chunk, or announced where it lies."""
    if plan.geo.push:
        return
    if not plan.geo.stages:
        plan.small("announce", streams[0], plan.announce(plan.own_chunks[0]))
        return
    for chunk, stream in zip(plan.own_chunks, streams, strict=True):
        name = f"stage.{chunk.index}"
        if plan.shape.engine:
            plan.host_copy(name, stream, plan.stage(chunk))
            plan.small(f"{name}.signal", stream, plan.announce(chunk))
        else:
            steps = (*plan.stage(chunk), *plan.announce(chunk))
            plan.add(name, stream, [Role(name, "blocks", plan.gang, steps)])


def _communicate(plan: RankPlan, chunk: int, stream: int, local: bool = False, at_once: bool = False) -> str:
    """All transfers of the chunks of one number on `stream`; the name of the launch after which they are complete, "" where
    there are none. `local`: see RankPlan.after. `at_once`: nobody goes on before all of them are complete."""
    transfers = [t for t in (plan.outgoing if plan.geo.push else plan.incoming) if t.chunk == chunk]
    name = f"comm.{chunk}"
    if not transfers:
        return ""
    before = [s for t in transfers for s in plan.before(t)]
    after = [s for t in transfers for s in plan.after(t, local)]
    if not plan.shape.engine:
        steps: list[Step] = []
        if plan.geo.push:
            steps += plan.give([c for c in plan.own_chunks if c.index == chunk], transfers, local)
        else:
            for t in transfers:
                steps += [*plan.before(t), *plan.move(t), *plan.after(t, local)]
        return plan.add(name, stream, [Role(name, "blocks", plan.gang, tuple(batched(steps) if at_once else steps))])
    if plan.shape.algorithm.forwards:
        return _engine_transfers(plan, transfers, [stream] * len(transfers), local=False)
    if before:
        plan.small(f"{name}.wait", stream, before)
    tail = name
    for t in transfers:
        tail = plan.host_copy(f"{name}.{t.source}.{t.target}", stream, plan.move(t))
    return plan.small(f"{name}.signal", stream, after) if after else tail


def _receive(plan: RankPlan, name: int, chunks: Sequence[int]) -> None:
    """On stream 0, wait until the chunks have arrived from every peer; what was pulled is here with its launch."""
    if plan.geo.push:
        waits = [Wait(plan.arrived(t.source, t.chunk), plan.gang) for t in plan.incoming if t.chunk in chunks]
        if waits:
            plan.small(f"receive.{name}", 0, waits)
