"""Emission: kernel texts and tables from a plan. Texts hold what the compiler must know; everything else is a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilescale.codegen.maps import map_bytes, out_shard_bytes, stored_buffer, tensor_maps
from tilescale.codegen.packet_rows import packet_row
from tilescale.codegen.program import (
    COUNTER_BYTES,
    EVERY_RANK,
    STATE_BYTES,
    CopyCall,
    GemmCall,
    Kernel,
    Placed,
    Program,
    ProgramLaunch,
    Slot,
    aligned,
)
from tilescale.codegen.ragged_rows import ragged_rows
from tilescale.codegen.table import (
    KIND_COPY,
    KIND_GEMM,
    KIND_LOOP,
    KIND_MULTI_STORE,
    KIND_MULTI_SUM,
    KIND_PACE,
    KIND_RESERVE,
    KIND_SIGNAL,
    KIND_SOURCE,
    KIND_SUM,
    KIND_WAIT,
    MAX_LOOPS,
    MAX_RANKS,
    MAX_SLOTS,
    ROLE_COPY,
    ROLE_GEMM,
    SEGMENT_ADDS,
    SEGMENT_ENDS,
    SEGMENT_LEAVES,
    SUM_ADDED,
    SUM_BEGUN,
    SUM_COMPLETED,
    SUM_PARTS,
    BlockRow,
    StepRow,
)
from tilescale.codegen.text import PRODUCTS, kernel_text, link_fs_per_byte, solo, streams
from tilescale.codegen.together import SHIFT, runs, together
from tilescale.errors import PlanError
from tilescale.schedules import tile
from tilescale.schedules.contracting import BOTH, contraction_size
from tilescale.schedules.gather import SIGNAL_THREADS
from tilescale.schedules.geometry import spanned
from tilescale.schedules.grouped import routed_geometry
from tilescale.schedules.lower import lower
from tilescale.schedules.packets import exchanges_packets
from tilescale.schedules.plan import (
    Contract,
    Copy,
    Gemm,
    Grouped,
    Launch,
    MultimemReduce,
    MultimemStore,
    Pass,
    Pieces,
    Plan,
    Ragged,
    Region,
    Role,
    Signal,
    Step,
    Sum,
    SumAside,
    Wait,
)
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

NO_STEP = 0xFFFFFFFF


def emit(spec: Spec, schedule: Schedule, plan: Plan | None = None) -> Program:
    """The program of a schedule; `plan` saves lowering again. Raises PlanError where tables cannot hold the plan."""
    return _Emitter(spec, schedule, plan or lower(spec, schedule)).program()


class _Emitter:
    """Holds what all ranks share while their tables are written."""

    def __init__(self, spec: Spec, schedule: Schedule, plan: Plan) -> None:
        self.spec, self.schedule, self.plan = spec, schedule, plan
        self.slots = tuple(_slots(plan))
        if len(self.slots) > MAX_SLOTS or plan.world > MAX_RANKS:
            raise PlanError(f"a kernel takes at most {MAX_SLOTS} pointers and {MAX_RANKS} ranks",
                            f"{len(self.slots)} pointers, {plan.world} ranks", "use fewer ranks or a push schedule")
        self.kernels: list[Kernel] = []
        self.versions = {b.name: b.versions for b in plan.buffers}
        self.totals: tuple[int, ...] = ()
        self.stored = stored_buffer(plan)
        self.span = spanned(spec, schedule)

    def program(self) -> Program:
        plan = self.plan
        placed, counters_offset, total = _layout(plan)
        ranks = tuple(tuple(self._launches(rank)) for rank in range(plan.world))
        n, k = self._product()
        mapped = any(launch.family in PRODUCTS for launch in plan.ranks[0]) and not tile.mma_sync(self.spec)
        return Program(
            op=plan.op, world=plan.world, kernels=tuple(self.kernels), slots=self.slots, placed=placed,
            counters=plan.counters, counters_offset=counters_offset, workspace_bytes=total,
            maps=tensor_maps(self.spec, self.schedule, plan, placed, n, k) if mapped else (), n=n, k=k, ranks=ranks,
            link_fs_per_byte=link_fs_per_byte(self.spec))

    # -- launches ------------------------------------------------------------------------------------------------------
    def _launches(self, rank: int) -> Iterator[ProgramLaunch]:
        self.totals = self.plan.counter_totals(rank)
        number = 0
        launches = self.plan.ranks[rank]
        for launch in launches:
            steps = list(launch.steps)
            if launch.agent == "blocks":
                yield self._kernel_launch(rank, launch, number, last=launch is launches[-1])
            elif launch.agent == "copy_engine":
                yield from self._engine_launches(rank, launch, number)
            else:
                yield ProgramLaunch(launch.name, launch.stream, launch.after, number, gemm=self._gemm_call(steps[0]))
            number += len(steps)

    def _engine_launches(self, rank: int, launch: Launch, number: int) -> Iterator[ProgramLaunch]:
        """The copy; in the scale model, with kernels around it that take the links and hold the stream until they are
        free."""
        step = next(launch.steps)
        call = self._copy_call(rank, step)
        if not isinstance(step, Copy) or step.src.rank == step.dst.rank or not link_fs_per_byte(self.spec):
            yield ProgramLaunch(launch.name, launch.stream, launch.after, number, copy=call)
            return
        lane = launch.stream
        yield self._pace_launch(f"{launch.name}.reserve", launch, launch.after, number, StepRow(
            KIND_RESERVE, NO_STEP, target=lane, counter=step.src.rank, value=step.dst.rank, size=call.size))
        yield ProgramLaunch(f"{launch.name}.copy", launch.stream, (), number, copy=call)
        yield self._pace_launch(launch.name, launch, (), number, StepRow(KIND_PACE, NO_STEP, target=lane))

    def _pace_launch(self, name: str, launch: Launch, after: tuple[str, ...], number: int, row: StepRow) -> ProgramLaunch:
        small = Launch(name, launch.stream, (Role(name, "blocks", 1, ()),), after, "signal", SIGNAL_THREADS)
        return ProgramLaunch(name, launch.stream, after, number, kernel=self._kernel(small), blocks=1,
                             threads=SIGNAL_THREADS, steps=row.pack().hex(),
                             block_rows=BlockRow(ROLE_COPY, 0, 1, 0, 1).pack().hex())

    def _kernel(self, launch: Launch) -> int:
        """Index of the kernel of a launch, added where it is new."""
        kernel = kernel_text(self.spec, self.schedule, launch, self.stored)
        if kernel not in self.kernels:
            self.kernels.append(kernel)
        return self.kernels.index(kernel)

    def _kernel_launch(self, rank: int, launch: Launch, number: int, last: bool) -> ProgramLaunch:
        rows: list[StepRow] = []
        blocks: list[BlockRow] = []
        participants, begin = 0, number
        for role in launch.roles:
            first = len(rows)
            rows += self._rows(rank, role, number, together(self.spec, self.schedule, launch))
            number += len(role.steps)
            multiplies = launch.family in ("gemm", "small_m") or any(_multiplies(s) for s in role.steps)
            kind = ROLE_GEMM if multiplies else ROLE_COPY
            blocks += [BlockRow(kind, first, len(rows) - first, i, role.blocks) for i in range(role.blocks)]
            participants += role.blocks
        return ProgramLaunch(
            launch.name, launch.stream, launch.after, begin, kernel=self._kernel(launch), blocks=launch.blocks,
            threads=launch.threads, shared_bytes=launch.shared_bytes, cluster=launch.cluster, early=solo(self.spec, launch),
            steps=b"".join(r.pack() for r in rows).hex(),
            block_rows=b"".join(b.pack() for b in blocks).hex(),
            participants=participants if last and (streams(launch) or not solo(self.spec, launch)) else 0)

    def _rows(self, rank: int, role: Role, number: int, as_one: bool) -> list[StepRow]:
        """`as_one`: products that follow each other are walked so."""
        if exchanges_packets(role):
            return [packet_row(role, rank, self.plan.world, number, lambda region: self._slot(region, rank))]
        rows, tiles, height = [], 0, self.schedule.block_m * self.schedule.cluster_m
        walked = runs(self.schedule, role.steps) if as_one else {}
        for i, step in enumerate(role.steps):
            if isinstance(step, Pieces):  # the row of the group
                return [replace(self._row(rank, role.steps[-1], number, 0), first_tile=self._slot(step.parts[0], rank))]
            if isinstance(step, Ragged):
                geo = routed_geometry(self.spec, self.schedule, role.blocks)
                rows += ragged_rows(step, number + i, rank, geo, lambda region: self._slot(region, rank))
                continue
            row = self._row(rank, step, number + i, tiles)
            row = replace(row, value=row.value + (walked.get(i, 0) << SHIFT))
            rows.append(row)
            if isinstance(step, Sum) and not isinstance(step, MultimemReduce):
                rows += [StepRow(KIND_SOURCE, NO_STEP, source=self._slot(source, rank), counter=source.rank,
                                 value=step.dst.rank, source_offset=source.offset) for source in step.srcs]
            if isinstance(step, Copy):
                rows += [StepRow(KIND_LOOP, NO_STEP, value=count, source_offset=read, target_offset=written,
                                 size=step.src.size // prod(count for count, _, _ in loops_of(step)))
                         for count, read, written in loops_of(step)]
            if isinstance(step, Gemm):
                tiles += -(-step.m // height) * -(-step.n // self.schedule.block_n)
        return rows

    def _row(self, rank: int, step: Step, number: int, tiles: int) -> StepRow:
        if isinstance(step, MultimemStore):
            return StepRow(
                KIND_MULTI_STORE, number, source=self._slot(step.src, rank), target=self._everywhere(step.dst),
                source_offset=step.src.offset, target_offset=step.dst.offset, size=step.src.size)
        if isinstance(step, MultimemReduce):
            source = step.srcs[0]
            return StepRow(
                KIND_MULTI_SUM, number, source=self._everywhere(source), target=self._slot(step.dst, rank),
                source_offset=source.offset, target_offset=step.dst.offset, size=source.size)
        if isinstance(step, Copy):
            return StepRow(
                KIND_COPY, number, source=self._slot(step.src, rank), target=self._slot(step.dst, rank),
                counter=step.src.rank, value=step.dst.rank, rows=len(loops_of(step)), source_offset=step.src.offset,
                target_offset=step.dst.offset, size=step.src.size)
        if isinstance(step, Signal):
            return StepRow(KIND_SIGNAL, number, source=step.rank, counter=step.counter, value=step.value)
        if isinstance(step, Wait):
            return StepRow(KIND_WAIT, number, counter=step.counter, value=step.value,
                           per_call=self.totals[step.counter])
        if isinstance(step, Sum):
            form = self._sum_form(step)  # who sends is told where the sum is sent
            sender, receiver = (rank, step.dst.rank) if form else (0, 0)
            aside = self._slot(step.aside[0], rank) if isinstance(step, SumAside) else 0
            return StepRow(KIND_SUM, number, source=aside, target=self._slot(step.dst, rank), counter=sender,
                           value=receiver, rows=len(step.srcs), source_offset=self._first_element(rank, step),
                           target_offset=step.dst.offset, size=step.srcs[-1].size, peer=form)
        if isinstance(step, Contract):
            return self._segment(rank, step, number)
        if not isinstance(step, Gemm):
            raise PlanError("a kernel family carries out every step", type(step).__name__, "lower it to copies")
        if tile.mma_sync(self.spec):  # by addresses
            return StepRow(
                KIND_GEMM, number, source=self._slot(step.a, rank), target=self._slot(step.out, rank), rows=step.m,
                source_offset=step.a.offset, target_offset=step.out.offset, size=self._slot(step.b, rank), first_tile=tiles,
                peer=step.out.rank)
        shard, offset = divmod(step.a.offset, map_bytes(self.plan, self.span))
        out_shard, out_offset = divmod(step.out.offset, out_shard_bytes(self.plan, self.span))
        return StepRow(
            KIND_GEMM, number, counter=out_shard, per_call=out_offset // self.plan.goal.product_row_bytes,
            source=0 if step.a.buffer == "a" else 1, target=self._slot(step.out, rank),
            value=self.versions[step.a.buffer], rows=step.m, source_offset=offset // self.plan.goal.row_bytes,
            target_offset=step.out.offset, size=shard, first_tile=tiles, peer=step.out.rank)

    def _segment(self, rank: int, step: Contract, number: int) -> StepRow:
        """A segment of a contraction; it lies within a shard, as the maps want it."""
        if step.gathered == BOTH:  # the block of a, and the panel of b
            own = (step.a.buffer == "a") + 2 * (step.b.buffer == "b")
            kept, flags = self.versions[step.a.buffer], step.first + 2 * step.last
            if isinstance(step, Pass):
                kept = self._slot(step.sums[0], rank)
                flags = SEGMENT_ENDS | (0 if step.first else SEGMENT_ADDS) | (0 if step.last else SEGMENT_LEAVES)
            return StepRow(
                KIND_GEMM, number, source=own, target=self._slot(step.out, rank), counter=step.a.offset // step.a.size,
                value=kept, per_call=step.k, rows=step.m, target_offset=step.out.offset,
                size=step.b.offset // step.b.size, peer=flags)
        shard_rows = self.plan.goal.starts[1] // self.plan.goal.row_bytes
        shard, first = divmod(step.at, shard_rows)
        if first + step.k > shard_rows:
            raise PlanError("a segment of a contraction lies in a shard", f"{step.k} from {step.at} on", "cut it there")
        own = step.segment.buffer != "gather"
        return StepRow(
            KIND_GEMM, number, source=0 if own else 1, target=self._slot(step.out, rank), counter=0 if own else shard,
            value=self.versions[step.segment.buffer], per_call=step.k, rows=step.m, source_offset=first,
            target_offset=step.out.offset, size=shard, peer=step.first + 2 * step.last)

    def _first_element(self, rank: int, step: Sum) -> int:
        """Where in tensors of the shape of the output a sum with epilogues begins."""
        if not step.then:
            return 0
        goal = self.plan.goal
        whole = self.plan.buffer(step.dst.buffer).size == self.plan.buffer(goal.output).size  # of all owners' rows, too
        own = 0 if whole else goal.starts[rank] // goal.row_bytes * goal.output_row_bytes
        return (own + step.dst.offset) // self.spec.output.itemsize

    def _sum_form(self, step: Sum) -> int:
        if self.schedule.algorithm != "ring":
            return SUM_PARTS
        if not step.carried:
            return SUM_BEGUN
        return SUM_ADDED if step.dst.buffer == step.srcs[0].buffer else SUM_COMPLETED

    def _copy_call(self, rank: int, step: Step) -> CopyCall:
        if not isinstance(step, Copy):
            raise PlanError("a copy engine copies", type(step).__name__, "lower the step to blocks")
        if loops_of(step):
            raise PlanError("a copy engine copies contiguous bytes", step.src, "lower the step to blocks")
        return CopyCall(self._slot(step.src, rank), step.src.offset, self._slot(step.dst, rank), step.dst.offset,
                        step.src.size)

    def _gemm_call(self, step: Step) -> GemmCall:
        if isinstance(step, Contract):
            return GemmCall(step.segment.buffer, 0, 0, step.m, step.n, step.k, step.out.buffer,
                            tile.product_dtype(self.spec))
        if not isinstance(step, Gemm):
            raise PlanError("a library call multiplies", type(step).__name__, "lower the step to blocks")
        goal = self.plan.goal
        return GemmCall(step.a.buffer, step.a.offset // goal.row_bytes, step.out.offset // goal.product_row_bytes,
                        step.m, step.n, step.k, step.out.buffer, tile.product_dtype(self.spec))

    # -- what the tables refer to --------------------------------------------------------------------------------------
    def _slot(self, region: Region, rank: int) -> int:
        own = Slot(region.buffer, -1)
        if own in self.slots:
            if region.rank != rank:
                raise PlanError("only peer-visible buffers are reached from other ranks", region.buffer, "lower it so")
            return self.slots.index(own)
        return self.slots.index(Slot(region.buffer, region.rank))

    def _everywhere(self, region: Region) -> int:
        return self.slots.index(Slot(region.buffer, EVERY_RANK))

    def _product(self) -> tuple[int, int]:
        step = next((s for launch in self.plan.ranks[0] for s in launch.steps if _multiplies(s)), None)
        if isinstance(step, Contract):
            return step.n, contraction_size(self.plan.goal)
        if isinstance(step, Grouped):
            return step.products[2], step.products[3]
        if step is None and self.plan.goal.then:
            return self.spec.output.local_shape(0, self.plan.world)[-1], 0  # epilogues tell columns apart
        return (step.n, step.k) if isinstance(step, Gemm) else (0, 0)


def _multiplies(step: Step) -> bool:
    return isinstance(step, Gemm | Contract) or (isinstance(step, Grouped) and bool(step.products))


def loops_of(copy: Copy) -> tuple[tuple[int, int, int], ...]:
    """The loops of a copy as (count, pitch of the source, pitch of the target), joined with their row and each other where
    they go on. Raises PlanError where a kernel takes fewer."""
    row, found = copy.src.row, list[tuple[int, int, int]]()
    for (count, read), (_, written) in zip(reversed(copy.src.loops), reversed(copy.dst.loops), strict=True):
        inner = found[0] if found else (1, row, row)
        if (read, written) == (inner[0] * inner[1], inner[0] * inner[2]) and found:
            found[0] = (inner[0] * count, *inner[1:])
        elif (read, written) == (row, row) and not found:
            row *= count
        elif count > 1:
            found.insert(0, (count, read, written))
    if len(found) > MAX_LOOPS:
        raise PlanError(f"a copy has at most {MAX_LOOPS} loops", len(found), "merge dimensions of the tensor")
    return tuple(found)


def _slots(plan: Plan) -> Iterator[Slot]:
    """Extra operands first, so that kernels know their slots whatever the plan."""
    extras = [extra.buffer for extra in plan.goal.extras]
    yield from (Slot(name, -1) for name in extras)
    for buffer in plan.buffers:
        if buffer.name in extras:
            continue
        if buffer.peer_visible:
            yield from (Slot(buffer.name, rank) for rank in range(plan.world))
        else:
            yield Slot(buffer.name, -1)
    multicast = {region.buffer for launch in plan.ranks[0] for step in launch.steps for region in _multicast(step)}
    yield from (Slot(buffer.name, EVERY_RANK) for buffer in plan.buffers if buffer.name in multicast)


def _multicast(step: Step) -> tuple[Region, ...]:
    """What a step reaches through a multicast address."""
    if isinstance(step, MultimemStore):
        return step.targets
    return step.srcs if isinstance(step, MultimemReduce) else ()


def _layout(plan: Plan) -> tuple[tuple[Placed, ...], int, int]:
    """State first, then counters, then the workspace buffers, each version aligned."""
    counters_offset = STATE_BYTES
    at = aligned(counters_offset + plan.counters * COUNTER_BYTES)
    placed = []
    for buffer in plan.buffers:
        if buffer.role == "workspace":
            stride = aligned(buffer.memory)
            placed.append(Placed(buffer.name, at, stride if buffer.versions > 1 else 0))
            at += stride * buffer.versions
    return tuple(placed), counters_offset, at
