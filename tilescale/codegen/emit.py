"""Emission: kernel texts and tables from a plan. Texts hold what the compiler must know; everything else is a table."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilescale.codegen.program import (
    COUNTER_BYTES,
    STATE_BYTES,
    CopyCall,
    GemmCall,
    Kernel,
    Placed,
    Program,
    ProgramLaunch,
    Slot,
    TensorMapSpec,
    aligned,
)
from tilescale.codegen.table import (
    KIND_COPY,
    KIND_GEMM,
    KIND_PACE,
    KIND_RESERVE,
    KIND_SIGNAL,
    KIND_WAIT,
    MAX_RANKS,
    MAX_SLOTS,
    ROLE_COPY,
    ROLE_GEMM,
    BlockRow,
    StepRow,
)
from tilescale.errors import PlanError
from tilescale.schedules import tile
from tilescale.schedules.gather import SIGNAL_THREADS
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Copy, Gemm, Launch, Plan, Region, Role, Signal, Step, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.transports import TRANSPORTS
from tilescale.spec.op import Spec

NO_STEP = 0xFFFFFFFF
PRODUCTS = ("gemm", "fused", "small_m")  # families of kernels that multiply
ELEMENTS = {"bfloat16": "ts::Bf16", "float16": "ts::Fp16", "float32": "ts::Fp32"}


def link_fs_per_byte(spec: Spec) -> int:
    """How long a byte takes a link in the scale model, femtoseconds; 0 elsewhere, where links take their own time."""
    link = spec.topology.link
    return round(1e6 / link.gbps) if spec.topology.kind == "scale_model" and link is not None else 0


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

    def program(self) -> Program:
        plan = self.plan
        placed, counters_offset, total = _layout(plan)
        ranks = tuple(tuple(self._launches(rank)) for rank in range(plan.world))
        n, k = self._product()
        generated = any(launch.family in PRODUCTS for launch in plan.ranks[0])
        return Program(
            op=plan.op, world=plan.world, kernels=tuple(self.kernels), slots=self.slots, placed=placed,
            counters=plan.counters, counters_offset=counters_offset, workspace_bytes=total,
            maps=self._maps() if generated else (), n=n, k=k, ranks=ranks,
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
        kernel = kernel_text(self.spec, self.schedule, launch)
        if kernel not in self.kernels:
            self.kernels.append(kernel)
        return self.kernels.index(kernel)

    def _kernel_launch(self, rank: int, launch: Launch, number: int, last: bool) -> ProgramLaunch:
        rows: list[StepRow] = []
        blocks: list[BlockRow] = []
        participants = 0
        for role in launch.roles:
            first = len(rows)
            rows += self._rows(rank, role, number + first)
            multiplies = launch.family in ("gemm", "small_m") or any(isinstance(s, Gemm) for s in role.steps)
            kind = ROLE_GEMM if multiplies else ROLE_COPY
            blocks += [BlockRow(kind, first, len(role.steps), i, role.blocks) for i in range(role.blocks)]
            participants += role.blocks
        return ProgramLaunch(
            launch.name, launch.stream, launch.after, number, kernel=self._kernel(launch), blocks=launch.blocks,
            threads=launch.threads, shared_bytes=launch.shared_bytes, cluster=launch.cluster, early=solo(self.spec, launch),
            steps=b"".join(r.pack() for r in rows).hex(),
            block_rows=b"".join(b.pack() for b in blocks).hex(),
            participants=participants if last and not solo(self.spec, launch) else 0)

    def _rows(self, rank: int, role: Role, number: int) -> list[StepRow]:
        rows, tiles, height = [], 0, self.schedule.block_m * self.schedule.cluster_m
        for i, step in enumerate(role.steps):
            row = self._row(rank, step, number + i, tiles)
            rows.append(row)
            if isinstance(step, Gemm):
                tiles += -(-step.m // height) * -(-step.n // self.schedule.block_n)
        return rows

    def _row(self, rank: int, step: Step, number: int, tiles: int) -> StepRow:
        if isinstance(step, Copy):
            return StepRow(
                KIND_COPY, number, source=self._slot(step.src, rank), target=self._slot(step.dst, rank),
                counter=step.src.rank, value=step.dst.rank, source_offset=step.src.offset,
                target_offset=step.dst.offset, size=step.src.size)
        if isinstance(step, Signal):
            return StepRow(KIND_SIGNAL, number, source=step.rank, counter=step.counter, value=step.value)
        if isinstance(step, Wait):
            return StepRow(KIND_WAIT, number, counter=step.counter, value=step.value,
                           per_call=self.totals[step.counter])
        if not isinstance(step, Gemm):
            raise PlanError("a kernel family carries out every step", type(step).__name__, "lower it to copies")
        shard, offset = divmod(step.a.offset, self._shard_bytes())
        out_shard, out_offset = divmod(step.out.offset, self._out_shard_bytes())
        return StepRow(
            KIND_GEMM, number, source=0 if step.a.buffer == "a" else 1, target=self._slot(step.out, rank),
            value=self.versions[step.a.buffer], rows=step.m, source_offset=offset // self.plan.goal.row_bytes,
            target_offset=step.out.offset, size=shard | out_shard << 32, first_tile=tiles,
            out_row=out_offset // self.plan.goal.output_row_bytes)

    def _copy_call(self, rank: int, step: Step) -> CopyCall:
        if not isinstance(step, Copy):
            raise PlanError("a copy engine copies", type(step).__name__, "lower the step to blocks")
        return CopyCall(self._slot(step.src, rank), step.src.offset, self._slot(step.dst, rank), step.dst.offset,
                        step.src.size)

    def _gemm_call(self, step: Step) -> GemmCall:
        if not isinstance(step, Gemm):
            raise PlanError("a library call multiplies", type(step).__name__, "lower the step to blocks")
        goal = self.plan.goal
        return GemmCall(step.a.buffer, step.a.offset // goal.row_bytes, step.out.offset // goal.output_row_bytes,
                        step.m, step.n, step.k)

    # -- what the tables refer to --------------------------------------------------------------------------------------
    def _slot(self, region: Region, rank: int) -> int:
        own = Slot(region.buffer, -1)
        if own in self.slots:
            if region.rank != rank:
                raise PlanError("only peer-visible buffers are reached from other ranks", region.buffer, "lower it so")
            return self.slots.index(own)
        return self.slots.index(Slot(region.buffer, region.rank))

    def _shard_bytes(self) -> int:
        return self.plan.goal.starts[1] - self.plan.goal.starts[0]

    def _out_shard_bytes(self) -> int:
        """Bytes of the rows of the output that one shard of the operand becomes."""
        goal = self.plan.goal
        return self._shard_bytes() // goal.row_bytes * goal.output_row_bytes

    def _product(self) -> tuple[int, int]:
        step = next((s for launch in self.plan.ranks[0] for s in launch.steps if isinstance(s, Gemm)), None)
        return (step.n, step.k) if step else (0, 0)

    def _maps(self) -> tuple[TensorMapSpec, ...]:
        """A own, A gathered (a map a version), B, the output. Boxes of operands are 64 elements (128 bytes, the swizzle's
        width) wide."""
        s, goal = self.schedule, self.plan.goal
        n, k = self._product()
        a, b = self.spec.inputs[0], self.spec.inputs[1]
        rows, shard = self._shard_bytes() // goal.row_bytes, self._shard_bytes()

        def operand(buffer: str, version: int, shards: int) -> TensorMapSpec:
            return TensorMapSpec(buffer, version, (k, rows, shards), (goal.row_bytes, shard), (64, s.block_m, 1), a.dtype)

        gathered = [operand("gather", v, self.plan.world) for v in range(self.versions.get("gather", 0))]
        gathered += (gathered or [operand("a", 0, 1)] * 2)[: 2 - len(gathered)]
        if b.order == "col":
            map_b = TensorMapSpec("b", 0, (k, n), (k * b.itemsize,), (64, s.block_n // s.cluster_m), b.dtype)
        else:
            map_b = TensorMapSpec("b", 0, (n, k), (n * b.itemsize,), (64, s.block_k // s.cluster_m), b.dtype)
        staging, shards = tile.staging(self.spec, s), self.plan.buffer("out").size // self._out_shard_bytes()
        map_out = operand("a", 0, 1)  # where nothing is stored through it
        if staging.staged and shards:
            map_out = TensorMapSpec("out", 0, (n, rows, shards), (goal.output_row_bytes, self._out_shard_bytes()),
                                    (staging.columns, 16, 1), self.spec.output.dtype)
        return (operand("a", 0, 1), *gathered, map_b, map_out)


def _slots(plan: Plan) -> Iterator[Slot]:
    for buffer in plan.buffers:
        if buffer.peer_visible:
            yield from (Slot(buffer.name, rank) for rank in range(plan.world))
        else:
            yield Slot(buffer.name, -1)


def _layout(plan: Plan) -> tuple[tuple[Placed, ...], int, int]:
    """State first, then counters, then the workspace buffers, each version aligned."""
    counters_offset = STATE_BYTES
    at = aligned(counters_offset + plan.counters * COUNTER_BYTES)
    placed = []
    for buffer in plan.buffers:
        if buffer.role == "workspace":
            stride = aligned(buffer.size)
            placed.append(Placed(buffer.name, at, stride if buffer.versions > 1 else 0))
            at += stride * buffer.versions
    return tuple(placed), counters_offset, at


def solo(spec: Spec, launch: Launch) -> bool:
    """Whether a kernel has one step, of an operation without communication. It looks nothing up, there is no epoch to
    advance, and it waits itself for the kernel before."""
    return spec.local and launch.family in PRODUCTS and len(tuple(launch.steps)) == 1


def _copy_unit(launch: Launch) -> int:
    """The widest access that all copies of a launch are aligned to."""
    unit = 16
    for step in launch.steps:
        if isinstance(step, Copy):
            unit = math.gcd(unit, step.src.offset, step.dst.offset, step.src.size)
    return unit


def kernel_text(spec: Spec, schedule: Schedule, launch: Launch) -> Kernel:
    """The text of a launch: one struct of constants, one a line, and the entry point."""
    copies = launch.family in ("copy", "fused", "signal")
    multiplies = launch.family in PRODUCTS
    config = dict(TRANSPORTS["peer_copy"].config)
    if launch.family != "signal" and TRANSPORTS[schedule.transport].agent == "blocks":
        config = dict(TRANSPORTS[schedule.transport].config)
    constants: dict[str, int | bool] = {
        "threads": launch.threads, "has_copy": copies, "has_gemm": multiplies,
        "has_small_m": launch.family == "small_m", "solo": solo(spec, launch),
        "copy_tma": copies and "copy_tile_bytes" in config,
        "copy_unit": _copy_unit(launch) if copies else 16,
        "copy_unroll": config.get("copy_unroll", 1) if copies else 1,
        "copy_tile_bytes": config.get("copy_tile_bytes", 0) if copies else 0,
        "copy_stages": config.get("copy_stages", 0) if copies else 0,
    }
    constants["link_clock"] = copies and link_fs_per_byte(spec) > 0
    if multiplies:
        staging = tile.staging(spec, schedule)
        constants |= {name: getattr(schedule, name) for name in
                      ("block_m", "block_n", "block_k", "num_stages", "raster_group", "cluster_m", "split_k")}
        constants |= {
            "clusters": launch.cluster > 1, "splits": schedule.split_k > 1, "b_row_major": spec.inputs[1].order == "row",
            "in_flight": tile.consumers(spec, schedule) == 1, "store_staged": staging.staged,
            "store_tensor": staging.staged and all(s.out.buffer == "out" for s in launch.steps if isinstance(s, Gemm)),
            "store_columns": staging.columns, "store_buffers": staging.buffers}
    entry = f"tilescale_{launch.family}"
    lines = [f"  static constexpr {'bool' if isinstance(v, bool) else 'int'} {name} = {str(v).lower()};"
             for name, v in constants.items()]
    if multiplies:
        lines += [f"  using Element = {ELEMENTS[spec.inputs[0].dtype]};", f"  using Out = {ELEMENTS[spec.output.dtype]};"]
    text = "\n".join(["#include <tilescale/kernels.cuh>", "", "struct Config {", *lines, "};", "",
                      f"TILESCALE_KERNEL({entry}, Config)", ""])
    return Kernel(entry, text, spec.topology.gpu.arch)
