"""A small operation that runs the same binaries: shapes and tables shrink, Config stays."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

from tilescale.schedules import tile
from tilescale.schedules.constraints import num_chunks
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Launch, Plan, Role
from tilescale.schedules.schedule import Schedule
from tilescale.spec.declaration import Spec
from tilescale.spec.tensor import Tensor

WORK_BLOCKS = 2
COPY_ROWS = 16
SMALL_MACS = 3 * 10**8
SMALL_BYTES = 1 << 23
SMALL_THREADS = 24_000


@dataclass(frozen=True)
class Scaled:
    """What is emulated in place of a large operation."""

    spec: Spec
    schedule: Schedule
    plan: Plan
    shrunk: bool


def scaled(spec: Spec, schedule: Schedule) -> Scaled:
    """The operation itself where it is small (on two working blocks where its blocks are many), else the smallest one
    with every kind of step, two waves and tails."""
    plan = lower(spec, schedule)
    if _is_small(spec):
        threads = sum(launch.blocks * launch.threads for rank in plan.ranks for launch in rank)
        return Scaled(spec, schedule, plan if threads <= SMALL_THREADS else _fewer_blocks(plan), False)
    gang = min(2, schedule.num_comm_blocks // schedule.depth) if schedule.num_comm_blocks else 0
    chunks = _chunks(spec, schedule)
    if spec.local:
        return _scaled_local(spec, schedule)
    unit = schedule.block_m or COPY_ROWS
    rows = chunks * unit - unit // 2 + 8 if chunks > 1 else unit + unit // 2 + 8
    small = replace(schedule, num_comm_blocks=gang * schedule.depth,
                    chunk_rows=0 if schedule.overlap == "none" else unit if chunks > 1 else 2 * unit)
    small_spec = _resized(spec, rows, schedule)
    return Scaled(small_spec, small, _fewer_blocks(lower(small_spec, small)), True)


def _scaled_local(spec: Spec, schedule: Schedule) -> Scaled:
    """Two rows and two columns of tiles, with tails."""
    unit = schedule.block_m or COPY_ROWS
    a, b = spec.inputs
    local = (
        unit - 3 if tile.small_m(spec) else unit * schedule.cluster_m + unit // 2 + 8,
        (schedule.block_n or 16) + 24,
        2 * (schedule.block_k or 16) * schedule.split_k + 24,
    )
    held = (a.local_shape(0, spec.world), b.local_shape(0, spec.world))
    m, n, k = (size * (whole // part) for size, whole, part in zip(
        local, (a.sizes[0], b.sizes[1], a.sizes[1]), (held[0][0], held[1][1], held[0][1]), strict=True))
    small = _with(spec, ((m, k), (k, n)), (m, n))
    return Scaled(small, schedule, _fewer_blocks(lower(small, schedule)), True)


def _is_small(spec: Spec) -> bool:
    elements = spec.inputs[0].nbytes
    macs = 0
    if spec.operation.compute == "gemm":
        m, n, k = spec.mnk
        macs = m * n * k
    return macs <= SMALL_MACS and elements <= SMALL_BYTES


def _chunks(spec: Spec, schedule: Schedule) -> int:
    """Enough chunks of a shard to have the depth in flight, at least two where there were several."""
    real = num_chunks(spec, schedule)
    needed = schedule.depth if schedule.overlap == "chunked" else -(-schedule.depth // max(1, spec.world - 1))
    return min(real, max(2, needed))


def _resized(spec: Spec, rows: int, schedule: Schedule) -> Spec:
    """The spec with `rows` rows a shard; columns with a tail that keeps the alignment of the real operands."""
    a = spec.inputs[0]
    if spec.operation.compute != "gemm":
        real = a.sizes[1] * a.itemsize if a.ndim > 1 else a.itemsize
        unit = next(u for u in (16, 8, 4, 2, 1) if real % u == 0)
        columns = max(1, (2 * 4096 // unit * unit + unit) // a.itemsize)
        return _with(spec, ((rows * spec.world, columns), ), (rows * spec.world, columns))
    k = 2 * (schedule.block_k or 16) + 24
    n = spec.world * ((schedule.block_n or 16) + 24)
    m = rows * spec.world
    return _with(spec, ((m, k), (k, n)), (m, n))


def _with(spec: Spec, inputs: tuple[tuple[int, ...], ...], output: tuple[int, ...]) -> Spec:
    def sized(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        return dataclasses.replace(tensor, shape=shape)

    return dataclasses.replace(spec, inputs=tuple(sized(t, s) for t, s in zip(spec.inputs, inputs, strict=True)),
                               output=sized(spec.output, output))


def _fewer_blocks(plan: Plan) -> Plan:
    """The plan with gangs of two blocks where nobody counts their signals: those that multiply or copy out."""
    def role(r: Role, launch: Launch) -> Role:
        most = WORK_BLOCKS * launch.cluster
        return replace(r, blocks=min(r.blocks, most)) if r.name.startswith(("work", "own")) else r

    def smaller(launch: Launch) -> Launch:
        return launch if launch.agent != "blocks" else replace(
            launch, roles=tuple(role(r, launch) for r in launch.roles))

    return replace(plan, ranks=tuple(tuple(smaller(launch) for launch in rank) for rank in plan.ranks))
