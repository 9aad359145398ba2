"""A discrete-event simulation of one call of a plan: launches, roles, steps, counters, links, copy engines.

Every role of every launch walks its steps in time order. A remote copy takes its link time from two clocks, the
sender's egress and the receiver's ingress, first come first served, as the scale model does on the device; it ends when
its blocks, and both clocks, are done. Products advance by whole waves of tiles over the role's blocks, counted over all
segments, because a block takes every n-th tile whichever segment it belongs to.

Each role carries the breakdown of the path that led it to its present time, so the breakdown of the last one to finish
adds up to the time of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from tilescale.costmodel.costs import Costs
from tilescale.errors import PlanError
from tilescale.schedules.contracting import contraction_size
from tilescale.schedules.packets import Key, awaited, buffers_of, key_of, sent
from tilescale.schedules.plan import (
    PACKET_COST,
    Clear,
    Contract,
    Copy,
    Gemm,
    GetPackets,
    Grouped,
    Launch,
    MultimemReduce,
    MultimemStore,
    Pass,
    Pieces,
    Plan,
    PutPackets,
    Ragged,
    Reduce,
    Region,
    Role,
    Signal,
    Step,
    Sum,
    SumAside,
    SumPackets,
    Wait,
)

PARTS = ("launch", "compute", "copy", "link", "sync")
LAUNCH, COMPUTE, COPY, LINK, SYNC = range(5)
SMALL_THREADS = 32  # launches of so few threads leave their SM to others

Path = list[float]


@dataclass(frozen=True)
class Timeline:
    """The result: microseconds until the last rank has finished, by rank, and by kind of cost along the longest path.

    `sent_bytes`: bytes that each rank's links carried away.
    """

    us: float
    ranks_us: tuple[float, ...]
    parts: tuple[tuple[str, float], ...]
    sent_bytes: tuple[int, ...]


@dataclass
class _Node:
    """A launch of a rank: what it waits for, and what waits for it."""

    rank: int
    launch: Launch
    missing: int = 0
    ready: float = 0.0
    path: Path = field(default_factory=lambda: [0.0] * len(PARTS))
    following: list[tuple[int, bool]] = field(default_factory=list)  # (node, same stream)
    running: int = 0


class _Walker:
    """A role on its way through its steps."""

    __slots__ = ("node", "path", "place", "role", "stored", "tiles", "time")

    def __init__(self, node: int, role: Role, time: float, path: Path) -> None:
        self.node, self.role, self.time, self.path = node, role, time, list(path)
        self.place = 0
        self.tiles = 0.0
        self.stored = (-1, 0.0)  # what was multiplied last: at which peer it is, and when

    def stores(self, peer: int = -1) -> None:
        """Wait for what is being stored at a peer, or at any."""
        if peer in (-1, self.stored[0]):
            self.spend(LINK, max(0.0, self.stored[1] - self.time))

    def spend(self, part: int, us: float) -> None:
        self.time += us
        self.path[part] += us


def simulate(plan: Plan, costs: Costs) -> Timeline:
    """Simulate one call. Raises PlanError where roles wait for ever (`verify` finds such plans, and says why)."""
    return _Simulation(plan, costs).run()


class _Simulation:
    def __init__(self, plan: Plan, costs: Costs) -> None:
        self.plan, self.costs, self.p = plan, costs, costs.parameters
        self.egress = [0.0] * plan.world
        self.ingress = [0.0] * plan.world
        self.engines = [[0.0] * costs.copy_engines for _ in range(plan.world)]
        self.busy = [0] * plan.world  # SMs that running launches of blocks hold
        self.sent = [0] * plan.world
        self.ends = [0.0] * plan.world
        self.counts = [0] * (plan.world * plan.counters)
        self.packets = buffers_of(plan)
        self.filled: dict[Key, int] = {}  # counters of packets, behind those of the plan
        self.waiters: dict[int, list[_Walker]] = {}
        self.queue: list[tuple[float, int, _Walker | None, int, int, Path]] = []
        self.order = 0
        self.last: Path = [0.0] * len(PARTS)
        self.end = 0.0
        self.waiting = 0
        self.itemsize = _itemsize(plan)
        self.nodes: list[_Node] = []
        for rank, launches in enumerate(plan.ranks):
            self._connect(rank, launches)

    def _connect(self, rank: int, launches: Sequence[Launch]) -> None:
        numbers: dict[str, int] = {}
        tails: dict[int, int] = {}
        for launch in launches:
            number = len(self.nodes)
            node = _Node(rank, launch)
            self.nodes.append(node)
            if launch.stream in tails:
                self.nodes[tails[launch.stream]].following.append((number, True))
                node.missing += 1
            for name in launch.after:
                self.nodes[numbers[name]].following.append((number, False))
                node.missing += 1
            numbers[launch.name] = tails[launch.stream] = number

    def run(self) -> Timeline:
        for number, node in enumerate(self.nodes):
            if node.missing == 0:
                node.ready = node.path[LAUNCH] = self.p.graph_us
                self._start(number)
        while self.queue:
            time, _, walker, counter, value, path = heappop(self.queue)
            if walker is not None:
                self._walk(walker)
            else:
                self._arrive(time, counter, value, path)
        if self.waiting:
            stuck = next(w for walkers in self.waiters.values() for w in walkers)
            node = self.nodes[stuck.node]
            raise PlanError(
                "every wait is met",
                f"rank {node.rank} launch {node.launch.name} role {stuck.role.name}",
                "verify the plan",
            )
        parts = tuple(zip(PARTS, self.last, strict=True))
        return Timeline(self.end, tuple(self.ends), parts, tuple(self.sent))

    def _push(self, time: float, walker: _Walker | None, counter: int, value: int, path: Path) -> None:
        self.order += 1
        heappush(self.queue, (time, self.order, walker, counter, value, path))

    def _start(self, number: int) -> None:
        node = self.nodes[number]
        node.running = len(node.launch.roles)
        if node.launch.agent == "blocks" and node.launch.threads > SMALL_THREADS:
            self.busy[node.rank] += node.launch.blocks
        for role in node.launch.roles:
            walker = _Walker(number, role, node.ready, node.path)
            self._push(walker.time, walker, 0, 0, walker.path)

    def _finish(self, walker: _Walker) -> None:
        node = self.nodes[walker.node]
        if walker.time >= node.ready:
            node.ready, node.path = walker.time, walker.path
        node.running -= 1
        if node.running:
            return
        if node.launch.agent == "blocks" and node.launch.threads > SMALL_THREADS:
            self.busy[node.rank] -= node.launch.blocks
        self.ends[node.rank] = max(self.ends[node.rank], node.ready)
        if node.ready >= self.end:
            self.end, self.last = node.ready, node.path
        for number, same in node.following:
            following = self.nodes[number]
            gap = self.p.kernel_gap_us if same else self.p.join_us
            if node.ready + gap >= following.ready:
                following.ready, following.path = node.ready + gap, list(node.path)
                following.path[LAUNCH] += gap
            following.missing -= 1
            if following.missing == 0:
                self._start(number)

    def _arrive(self, time: float, counter: int, value: int, path: Path) -> None:
        self.counts[counter] += value
        walkers = self.waiters.get(counter)
        if not walkers:
            return
        met = [w for w in walkers if _wanted(w) <= self.counts[counter]]
        self.waiters[counter] = [w for w in walkers if _wanted(w) > self.counts[counter]]
        self.waiting -= len(met)
        for walker in met:
            # The one who signalled last is what this role waited for: go on along that path.
            walker.time, walker.path = time, list(path)
            self._push(time, walker, 0, 0, path)

    def _walk(self, walker: _Walker) -> None:
        """Take steps until one that must wait for its turn in time, or for a counter."""
        rank, steps = self.nodes[walker.node].rank, walker.role.steps
        fenced = False
        while walker.place < len(steps):
            step = steps[walker.place]
            if not isinstance(step, Signal) and self.queue and self.queue[0][0] < walker.time:
                self._push(walker.time, walker, 0, 0, walker.path)
                return
            counter = self._missing(step, rank)
            if counter >= 0:
                self.waiters.setdefault(counter, []).append(walker)
                self.waiting += 1
                return
            if isinstance(step, Wait):
                walker.spend(SYNC, self.p.wait_us)
            elif isinstance(step, PutPackets):
                self._put_packets(walker, step, rank)
            elif isinstance(step, SumPackets):
                self._sum_packets(walker, step, rank)
            elif isinstance(step, GetPackets):
                if not isinstance(steps[walker.place - 1], GetPackets):  # neighbours are asked for together
                    walker.spend(SYNC, self.p.packet_us)
                walker.spend(COPY, self.costs.copy_us(-(-(PACKET_COST + 1) * step.src.size // 2), walker.role.blocks))
            elif isinstance(step, Signal):
                walker.stores(step.rank)
                self._signal(walker, step, rank, fenced)
            elif isinstance(step, MultimemStore | MultimemReduce):
                self._multicast(walker, step, rank)
            elif isinstance(step, Copy | Reduce):
                self._copy(walker, step, rank)
            elif isinstance(step, Sum):
                self._sum(walker, step, rank)
            elif isinstance(step, Ragged):
                self._ragged(walker, step, rank)
            elif isinstance(step, Clear):
                walker.spend(COPY, self.costs.copy_us(step.dst.size, walker.role.blocks))
            elif not isinstance(step, Pieces):  # the product that ends their group takes the time of all of it
                self._gemm(walker, step, rank)
            fenced = isinstance(step, Signal)
            walker.place += 1
        self._finish(walker)

    def _missing(self, step: Step, rank: int) -> int:
        """The counter that a step must wait for, -1 where it may go on."""
        if isinstance(step, Wait):
            counter = rank * self.plan.counters + step.counter
            return counter if self.counts[counter] < step.value else -1
        return next((at for at in map(self._filled, awaited(step, self.packets)) if not self.counts[at]), -1)

    def _filled(self, region: Region) -> int:
        key = key_of(region)
        if key not in self.filled:
            self.filled[key] = len(self.counts)
            self.counts.append(0)
        return self.filled[key]

    def _put_packets(self, walker: _Walker, step: PutPackets | SumPackets, rank: int) -> None:
        """Every peer gets the bytes and as many marks. The stores are not waited for: each is there when its links have
        carried it."""
        began, size, own = walker.time, PACKET_COST * step.dst.size, list(walker.path)
        for target in sent(step):
            walker.spend(COPY, self.costs.copy_us(size, walker.role.blocks))
            source = Region("", rank, 0, 0)
            end = max(walker.time, self._cross(source, target.rank, size, rank, began)) + self.costs.link_latency_us
            path = list(own)
            path[COPY] += walker.time - began
            path[LINK] += end - walker.time
            self._push(end, None, self._filled(target), 1, path)

    def _sum_packets(self, walker: _Walker, step: SumPackets, rank: int) -> None:
        """The packets are read as they come, so all that is left once the last is there is to add up and store."""
        walker.spend(SYNC, self.p.packet_us)
        moved = sum(src.size * (PACKET_COST if src.buffer in self.packets else 1) for src in step.srcs) + step.dst.size
        walker.spend(COPY, self.costs.copy_us(-(-moved // 2), walker.role.blocks))
        self._put_packets(walker, step, rank)

    def _signal(self, walker: _Walker, step: Signal, rank: int, fenced: bool) -> None:
        walker.spend(SYNC, self.p.next_signal_us if fenced else self.p.signal_us)
        travel = self.costs.link_latency_us if step.rank != rank else 0.0
        path = list(walker.path)
        path[SYNC] += travel
        self._push(
            walker.time + travel,
            None,
            step.rank * self.plan.counters + step.counter,
            step.value * walker.role.blocks,
            path,
        )

    def _copy(self, walker: _Walker, step: Copy | Reduce, rank: int) -> None:
        size, costs = step.src.size, self.costs
        if walker.role.agent == "copy_engine":
            engines = self.engines[rank]
            engine = min(range(len(engines)), key=engines.__getitem__)
            walker.spend(COPY, max(0.0, engines[engine] - walker.time) + self.p.copy_engine_us)
            began, own = walker.time, costs.engine_us(size)
        else:
            engine = -1
            began, own = walker.time, costs.copy_us(size, walker.role.blocks)
        end = began + own
        end = max(end, self._cross(step.src, step.dst.rank, size, rank, began))
        walker.spend(COPY, own)
        walker.spend(LINK, end - walker.time)
        if engine >= 0:
            self.engines[rank][engine] = end

    def _cross(self, source: Region, target: int, size: int, rank: int, began: float) -> float:
        """When `size` bytes of `source`, asked for at `began` by `rank`, are at rank `target`."""
        if source.rank == target:
            return began
        took = self.costs.link_us(size)
        self.egress[source.rank] = max(self.egress[source.rank], began) + took
        self.ingress[target] = max(self.ingress[target], began) + took
        self.sent[source.rank] += size
        end = max(self.egress[source.rank], self.ingress[target])
        return end if source.rank == rank else end + self.costs.link_latency_us  # a get asks first

    def _sum(self, walker: _Walker, step: Sum, rank: int) -> None:
        """Reads every source and writes once; what is remote crosses its links meanwhile."""
        began = walker.time
        moved = sum(source.size for source in step.srcs) + step.dst.size * (2 if isinstance(step, SumAside) else 1)
        own = self.costs.copy_us(-(-moved // 2), walker.role.blocks)  # a copy reads and writes its size
        ends = [self._cross(source, rank, source.size, rank, began) for source in step.srcs]
        ends.append(self._cross(replace(step.dst, rank=rank), step.dst.rank, step.dst.size, rank, began))
        walker.spend(COPY, own)
        walker.spend(LINK, max(0.0, *(end - walker.time for end in ends)))

    def _multicast(self, walker: _Walker, step: MultimemStore | MultimemReduce, rank: int) -> None:
        """Every other rank's bytes cross its own link, once; what a switch hands on, or has added up, the rank's once."""
        stores, began = isinstance(step, MultimemStore), walker.time
        size = step.src.size if isinstance(step, MultimemStore) else step.srcs[0].size
        took, links = self.costs.link_us(size), (self.ingress, self.egress) if stores else (self.egress, self.ingress)
        for peer in range(self.plan.world):
            side = links[1] if peer == rank else links[0]
            side[peer] = max(side[peer], began) + took
        for source in [rank] if stores else [peer for peer in range(self.plan.world) if peer != rank]:
            self.sent[source] += size
        end = max(links[1][rank], *(links[0][peer] for peer in range(self.plan.world) if peer != rank))
        walker.spend(COPY, self.costs.copy_us(size, walker.role.blocks))
        walker.spend(LINK, max(0.0, end + self.costs.link_latency_us - walker.time))

    def _ragged(self, walker: _Walker, step: Ragged, rank: int) -> None:
        """Moves the rows that are expected: to a peer, or from all ranks alike."""
        began, size = walker.time, step.expected
        ends = [self._cross(Region("", rank, 0, 0), target.rank, size, rank, began)
                for target in step.writes if target.rank != rank]
        pulled = {source.rank: source for source in step.reads if source.rank != rank}
        ends += [self._cross(source, rank, size // self.plan.world, rank, began) for source in pulled.values()]
        if isinstance(step, Grouped) and step.products:
            walker.spend(COMPUTE, self._products_us(walker, step))
            return
        walker.spend(COPY, self.p.load_latency_us + self.costs.copy_us(size, walker.role.blocks))
        walker.spend(LINK, max([0.0, *(end - walker.time for end in ends)]))

    def _products_us(self, walker: _Walker, step: Grouped) -> float:
        """As many products as experts, their tiles dealt on over all of them."""
        experts, m, n, k = step.products
        blocks, before = walker.role.blocks, walker.tiles
        walker.tiles += experts * self.costs.tiles(m, n)
        return (-(-walker.tiles // blocks) - -(-before // blocks)) * self.costs.generated_tile_us(k, *self.itemsize)

    def _gemm(self, walker: _Walker, step: Gemm | Contract, rank: int) -> None:
        """Tiles are stored while the next ones are multiplied: from the end of the first wave on."""
        began, before = walker.time, walker.tiles
        self._multiply(walker, step, rank)
        walker.stores()
        if step.out.rank != rank:
            waves = max(1, -(-(walker.tiles - before) // walker.role.blocks))
            first = began + (walker.time - began) / waves
            walker.stored = step.out.rank, self._cross(step.a, step.out.rank, step.out.size, rank, first)

    def _multiply(self, walker: _Walker, step: Gemm | Contract, rank: int) -> None:
        costs, (itemsize, out_itemsize) = self.costs, self.itemsize
        if walker.role.agent == "library":
            sms = max(1, costs.sm_share - self.busy[rank])
            walker.spend(COMPUTE, costs.library_us(step.m, step.n, step.k, itemsize, out_itemsize, sms))
            return
        if costs.local_us:
            walker.spend(COMPUTE, costs.local_us)
            return
        if isinstance(step, Contract):
            walker.spend(COMPUTE, self._contract_us(walker, step))
            return
        blocks, before = walker.role.blocks, walker.tiles
        walker.tiles += costs.tiles(step.m, step.n)
        waves = -(-walker.tiles // blocks) - -(-before // blocks)
        walker.spend(COMPUTE, waves * costs.generated_tile_us(step.k, itemsize, out_itemsize))


    def _contract_us(self, walker: _Walker, step: Contract) -> float:
        """The first wave takes the segments as they come; the waves behind it find all of them, and follow the last."""
        itemsize, out_itemsize = self.itemsize
        size = contraction_size(self.plan.goal)
        tile_us = self.costs.generated_tile_us(size, itemsize, out_itemsize)
        waves = -(-self.costs.tiles(step.m, step.n) // walker.role.blocks)
        if isinstance(step, Pass):  # of all tiles; their sums are read and left
            moved = sum(part.size for part in step.sums) * (2 - step.first - step.last)
            return waves * tile_us * step.k / size + self.costs.copy_us(-(-moved // 2), walker.role.blocks)
        return tile_us * (step.k / size + (waves - 1 if step.last else 0))


def _wanted(walker: _Walker) -> int:
    step = walker.role.steps[walker.place]
    return step.value if isinstance(step, Wait) else 1  # packets are there, or not


def _itemsize(plan: Plan) -> tuple[int, int]:
    """Bytes of an element of the operand and of the output."""
    for launch in plan.ranks[0]:
        for step in launch.steps:
            if isinstance(step, Contract):
                return plan.goal.row_bytes // step.width, plan.goal.output_row_bytes // step.n
            if isinstance(step, Gemm):
                return plan.goal.row_bytes // step.k, plan.goal.product_row_bytes // step.n
            if isinstance(step, Grouped) and step.products:
                return plan.goal.row_bytes // step.products[3], plan.goal.output_row_bytes // step.products[2]
    return 1, 1
