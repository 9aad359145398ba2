"""The protocol of a plan: what waits for what and who touches what, without sizes; and its symmetry.

Offsets of rows are divided by the size of a row and by the largest number of rows that divides all of them, so plans
that differ in their sizes, element types or tile shapes, but move their chunks in the same way, share one digest. So
do gangs of different numbers of blocks, where the number cannot matter (`_gang`). Whatever a proof by digest does not
cover (bounds, shapes, coverage, residency, resources, counter range) is checked on each plan itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import gcd

from tilescale import canon
from tilescale.schedules.boxes import Grids, pitches, walk_of
from tilescale.schedules.contracting import BOTH
from tilescale.schedules.footprint import accesses, counter_totals
from tilescale.schedules.plan import (
    Buffer,
    Contract,
    Copy,
    Gemm,
    Grouped,
    Pass,
    Pieces,
    Plan,
    Ragged,
    Reduce,
    Region,
    Role,
    Signal,
    Step,
    Sum,
    Wait,
)

Form = tuple[object, ...]


def protocol_digest(plan: Plan) -> str:
    """16 hex digits that are equal for plans with the same protocol."""
    return canon.digest_bytes(repr(protocol(plan)).encode())


def protocol(plan: Plan) -> Form:
    """The protocol as nested tuples of numbers."""
    units = _Units(plan)
    numbers = {b.name: i for i, b in enumerate(plan.buffers)}
    free = _free_counters(plan)
    ranks = []
    for rank, launches in enumerate(plan.ranks):
        order = {launch.name: i for i, launch in enumerate(launches)}
        ranks.append(
            tuple(
                (
                    launch.stream,
                    tuple(order[name] for name in launch.after),
                    tuple(_role(role, units, numbers, free, rank) for role in launch.roles),
                )
                for launch in launches
            )
        )
    buffers = tuple((b.role, b.versions, b.zeroed, units.whole(b.name, b.size), *units.grid(b),
                     *(("packets",) if b.packets else ())) for b in plan.buffers)
    goal = (
        numbers[plan.goal.operand],
        numbers[plan.goal.output],
        plan.goal.computes,
        plan.goal.reduces,
        plan.goal.scattered,
        plan.goal.contracts,
        numbers.get(plan.goal.keeps, -1),
        plan.goal.mesh,
        plan.goal.part_row_bytes > 0,
        tuple(units.scale(plan.goal.operand, s) for s in plan.goal.starts),
        *(units.region(region, numbers) for piece in plan.goal.pieces for region in piece),
        *_extended(plan, numbers),
        *((plan.op,) if plan.goal.ragged else ()),
    )
    phases = tuple((phase.counter, phase.arrivals) for phase in plan.phases)
    return (plan.counters, buffers, goal, phases, tuple(ranks))


class _Units:
    """The unit of each buffer: rows of the operand or of the output, times the grain common to all; or one byte."""

    def __init__(self, plan: Plan) -> None:
        goal = plan.goal
        self.local = {step.b.buffer for _, step in _steps(plan) if isinstance(step, Gemm)}
        contracts = [step for _, step in _steps(plan) if isinstance(step, Contract)]
        self.local |= {step.out.buffer for step in contracts}  # always whole
        self.local |= {part.buffer for step in contracts if isinstance(step, Pass) for part in step.sums}
        self.local |= {step.local.buffer for step in contracts if step.gathered != BOTH}
        self.operand, self.row = goal.operand, goal.row_bytes
        rows = {b.name: goal.row_bytes for b in plan.buffers} | _product_rows(plan)
        self.local |= {part.buffer for _, step in _steps(plan) if isinstance(step, Pieces) for part in step.parts}
        self.local |= {extra.buffer for extra in goal.extras if not extra.row_bytes}  # read whole: check_steps has seen it
        rows |= {extra.buffer: extra.row_bytes for extra in goal.extras if extra.row_bytes}
        grain = 0
        lengths = [(goal.operand, s) for s in goal.starts]
        lengths += [(goal.operand, step.at * goal.row_bytes) for step in contracts]
        lengths += [(b.name, b.size) for b in plan.buffers if b.name not in self.local]
        regions = [region for _, step in _steps(plan) for region, _ in accesses(step)]
        for region in (*regions, *(region for piece in goal.pieces for region in piece)):
            if region.buffer not in self.local:
                lengths += [(region.buffer, region.offset), (region.buffer, region.row)]
                lengths += [(region.buffer, pitch) for _, pitch in region.loops]
        grids = [(b.name, pitch) for b in plan.buffers for grid in ((b.grid, *b.rank_grids) if b.grid else ())
                 for pitch in pitches(grid)[:-1]]
        for name, length in {*lengths, *grids}:  # any order gives the same grain
            whole, rest = divmod(length, rows[name])
            grain = gcd(grain, whole)
            if rest:
                rows, grain = dict.fromkeys(rows, 1), 1
                break
        self.unit = {name: row * max(1, grain) for name, row in rows.items()}

    def scale(self, buffer: str, length: int) -> int:
        return length // self.unit[buffer]

    def whole(self, buffer: str, size: int) -> int:
        return 1 if buffer in self.local else self.scale(buffer, size)

    def at(self, step: Contract) -> int:
        """Where a segment begins, in units of the operand."""
        return self.scale(self.operand, step.at * self.row)

    def grid(self, buffer: Buffer) -> Form:
        """The dimensions of a grid, the innermost in units."""
        grids = (buffer.grid, *buffer.rank_grids) if buffer.grid else ()
        return tuple(part for grid in grids for part in (grid[:-1], self.scale(buffer.name, grid[-1])))

    def region(self, region: Region, numbers: dict[str, int]) -> Form:
        if region.buffer in self.local:
            return (numbers[region.buffer], region.rank)
        return (
            numbers[region.buffer],
            region.rank,
            self.scale(region.buffer, region.offset),
            self.scale(region.buffer, region.size),
            *((count, self.scale(region.buffer, pitch)) for count, pitch in region.loops),
        )


def _product_rows(plan: Plan) -> dict[str, int]:
    """Bytes of a row in the buffers that hold products, parts of products, or copies and sums of them."""
    goal = plan.goal
    rows = {step.out.buffer: goal.product_row_bytes for _, step in _steps(plan) if isinstance(step, Gemm)}
    while True:
        known = len(rows)
        for _, step in _steps(plan):
            if isinstance(step, Copy | Reduce) and step.src.buffer in rows:
                rows.setdefault(step.dst.buffer, rows[step.src.buffer])
            elif isinstance(step, Sum) and any(src.buffer in rows for src in step.srcs):
                rows |= {region.buffer: rows.get(region.buffer, goal.output_row_bytes) for region in step.targets}
        if len(rows) == known:
            return rows


def _extended(plan: Plan, numbers: dict[str, int]) -> Form:
    """What stands beside the operands; the forms of plans without it stay what they were."""
    goal = plan.goal
    if not (goal.then or goal.extras):
        return ()
    aside = (numbers[goal.aside],) if goal.aside else ()
    return (goal.then, tuple((numbers[extra.buffer], extra.row_bytes > 0) for extra in goal.extras), *aside)


def _steps(plan: Plan) -> Iterator[tuple[Role, Step]]:
    for launches in plan.ranks:
        for launch in launches:
            for role in launch.roles:
                for step in role.steps:
                    yield role, step


def _free_counters(plan: Plan) -> frozenset[tuple[int, int]]:
    """Counters that one step of one role signals once a call, and of which every wait wants all of it."""
    totals = counter_totals(plan)
    signals: dict[tuple[int, int], int] = {}
    partial: set[tuple[int, int]] = set()
    for rank, launches in enumerate(plan.ranks):
        for launch in launches:
            for step in launch.steps:
                if isinstance(step, Signal):
                    signals[step.rank, step.counter] = signals.get((step.rank, step.counter), 0) + 1
                elif isinstance(step, Wait) and step.value != totals[rank][step.counter]:
                    partial.add((rank, step.counter))
    return frozenset(key for key, count in signals.items() if count == 1 and key not in partial)


def _role(role: Role, units: _Units, numbers: dict[str, int], free: frozenset[tuple[int, int]], rank: int) -> Form:
    return (_gang(role, free), tuple(_step(step, units, numbers, free, rank) for step in role.steps))


def _gang(role: Role, free: frozenset[tuple[int, int]]) -> int:
    """The number of blocks, or 2 for any number above one where it cannot matter.

    A free counter reaches what is waited for exactly when every block has signalled in this call: the blocks that run
    on are at most one signal ahead of a stopped one, because the next call starts after the launch has ended.
    Blocks that exchange packets wait for the blocks of their own number alone, and all others are alike.
    """
    fixed = any(isinstance(step, Signal) and (step.rank, step.counter) not in free for step in role.steps)
    return role.blocks if fixed else min(role.blocks, 2)


def _travels(step: Sum) -> bool:
    """Whether a sum goes on with another, or begins one."""
    return step.carried != "" or len(step.srcs) == 1


def _step(step: Step, units: _Units, numbers: dict[str, int], free: frozenset[tuple[int, int]], rank: int) -> Form:
    if isinstance(step, Signal):
        return ("signal", step.rank, step.counter, 0 if (step.rank, step.counter) in free else step.value)
    if isinstance(step, Wait):
        return ("wait", step.counter, 0 if (rank, step.counter) in free else step.value)
    return (
        type(step).__name__.lower(),
        *((step.dst.size == step.srcs[0].size,) if isinstance(step, Sum) else ()),  # decides how blocks share it
        *((step.gathered, units.at(step), step.first, step.last) if isinstance(step, Contract) else ()),
        *((step.then,) if isinstance(step, Gemm | Sum) and step.then else ()),
        *((step.carried, step.out) if isinstance(step, Sum) and _travels(step) else ()),
        *((step.task, step.peer) if isinstance(step, Ragged) else ()),
        *((step.group, step.groups) if isinstance(step, Grouped) else ()),
        *((step.then,) if isinstance(step, Grouped) and step.then else ()),
        *(units.region(region, numbers) for region, _ in accesses(step)),
    )


def rotates(plan: Plan) -> bool:
    """Whether renaming rank r to r + 1, with its counters and pieces of buffers, maps the plan onto itself.

    Both forms name counters and pieces by their first use, seen from rank 0 and from rank 1; equal forms are such a
    renaming. A plan that is symmetric in a way this does not see is only checked more slowly.
    """
    if plan.world < 2:
        return False
    grids = Grids(plan)
    pieces = _pieces(plan, grids)
    return _seen_from(_View(plan, pieces, grids, 0)) == _seen_from(_View(plan, pieces, grids, 1))


Cuts = dict[tuple[str, int], list[dict[int, int]]]


def _pieces(plan: Plan, grids: Grids) -> Cuts:
    """For each buffer of each rank, the number of each index at which some region starts or ends, by dimension."""
    cuts: dict[tuple[str, int], list[set[int]]] = {}
    for _, step in _steps(plan):
        for region, _ in accesses(step):
            box = grids.box(region)
            for found, edges in zip(cuts.setdefault((region.buffer, region.rank), [set() for _ in box]), box, strict=True):
                found.update(edges)
    return {key: [{at: i for i, at in enumerate(sorted(found))} for found in dims] for key, dims in cuts.items()}


def _seen_from(view: _View) -> Form:
    plan, base = view.plan, view.base
    order = [(base + i) % plan.world for i in range(plan.world)]
    for writes in (True, False):  # what is written is usually one piece, which leaves no choice of names
        for rank in order:
            for launch in plan.ranks[rank]:
                for step in launch.steps:
                    touched = sorted(accesses(step), key=lambda found: (found[0].rank - base) % plan.world)
                    for region, write in touched:
                        if write is writes:
                            view.cells(region)
    return tuple(view.launches(rank) for rank in order)


class _View:
    """The plan with ranks counted from `base`, and counters and pieces of buffers named by first use."""

    def __init__(self, plan: Plan, pieces: Cuts, grids: Grids, base: int) -> None:
        self.plan, self.pieces, self.grids, self.base = plan, pieces, grids, base
        self.names: dict[tuple[object, ...], int] = {}
        self.known: dict[tuple[object, ...], Form] = {}

    def cells(self, region: Region) -> Form:
        """Names of the pieces of a region. A piece keeps its name, so what was found holds."""
        key = (region.buffer, region.rank, region.offset, region.size, region.loops)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._cells(region)
        return found

    def _cells(self, region: Region) -> Form:
        tables, names, buffer, rank = self.pieces[region.buffer, region.rank], self.names, region.buffer, region.rank
        if self.grids.plain:
            first, last = tables[0][region.offset], tables[0][region.end]
            return tuple(sorted([names.setdefault((buffer, rank, i), len(names)) for i in range(first, last)]))
        spans = [range(table[low], table[high]) for table, (low, high) in zip(tables, self.grids.box(region), strict=True)]
        return tuple(sorted([names.setdefault((buffer, rank, i), len(names)) for i in product(*spans)]))

    def counter(self, rank: int, counter: int) -> int:
        return self.names.setdefault((rank, counter), len(self.names))

    def launches(self, rank: int) -> Form:
        numbers = {launch.name: i for i, launch in enumerate(self.plan.ranks[rank])}
        return tuple(
            (
                launch.stream,
                tuple(numbers[name] for name in launch.after),
                tuple((role.blocks, tuple(self.step(rank, step) for step in role.steps)) for role in launch.roles),
            )
            for launch in self.plan.ranks[rank]
        )

    def step(self, rank: int, step: Step) -> Form:
        if isinstance(step, Signal):
            return (
                "signal",
                (step.rank - self.base) % self.plan.world,
                self.counter(step.rank, step.counter),
                step.value,
            )
        if isinstance(step, Wait):
            return ("wait", self.counter(rank, step.counter), step.value)
        regions = [self.region(region) for region, _ in accesses(step)]
        if isinstance(step, Contract):
            return (type(step).__name__.lower(), step.gathered, step.first, step.last, *regions)
        if isinstance(step, Sum) and not step.carried:
            # The order of the sources is no part of it: every rank adds in the same order.
            read = len(step.srcs) + len(step.extras)
            regions = [*sorted(regions[:read]), *regions[read:], (step.dst.size == step.srcs[0].size,)]
        if isinstance(step, Gemm | Sum) and step.then:
            regions = [*regions, step.then]
        if isinstance(step, Ragged):  # that reads of all ranks alike
            reads, peer = len(step.reads), (step.peer - self.base) % self.plan.world
            group = (step.group, step.then) if isinstance(step, Grouped) else ()
            regions = [(step.task, peer, *group), *sorted(regions[:reads]), ("writes",), *sorted(regions[reads:])]
        return (type(step).__name__.lower(), *regions)

    def region(self, region: Region) -> Form:
        turn = tuple(pitch for _, pitch in walk_of(region)) if region.loops else ()
        return (region.buffer, (region.rank - self.base) % self.plan.world, self.cells(region), *turn)
