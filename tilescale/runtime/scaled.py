"""A small operation that runs the same binaries: shapes and tables shrink, Config stays."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

from tilescale.runtime.scaled_exchange import small_exchange
from tilescale.runtime.scaled_ragged import small_ragged
from tilescale.schedules import tile
from tilescale.schedules.exchanges import exchanges
from tilescale.schedules.geometry import spanned
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Launch, Plan, Role, Signal
from tilescale.schedules.ragged import ragged
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.streaming import stream
from tilescale.spec.contraction import contracts, gathered_operand, in_blocks
from tilescale.spec.declaration import Spec
from tilescale.spec.result import kind_of
from tilescale.spec.scales import BLOCK
from tilescale.spec.tensor import Tensor, shard_sizes
from tilescale.spec.topology import SM_SHARE_STEP, Topology

WORK_BLOCKS = 2
STREAM_UNITS = 3  # which share the fourth of four tiles, or all of them
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
    """The operation itself where it is small (on few working blocks where its blocks are many), else the smallest one
    with every kind of step, two waves and tails."""
    plan = lower(spec, schedule)
    if _is_small(spec, schedule):
        threads = sum(launch.blocks * launch.threads for rank in plan.ranks for launch in rank)
        return Scaled(spec, schedule, plan if threads <= SMALL_THREADS else _on_few_blocks(spec, schedule), False)
    if exchanges(spec):
        small_spec, small = small_exchange(spec, schedule)
        return Scaled(small_spec, small, _on_few_blocks(small_spec, small), True)
    if ragged(spec):
        small_spec, small = small_ragged(spec, schedule)
        return Scaled(small_spec, small, _on_few_blocks(small_spec, small), True)
    gang = min(2, schedule.num_comm_blocks // schedule.depth) if schedule.num_comm_blocks else 0
    chunks = _chunks(spec, schedule)
    if spec.local:
        return _scaled_local(spec, schedule)
    if contracts(spec):
        return _scaled_contraction(spec, schedule, chunks, gang)
    if in_blocks(spec):
        return _scaled_blocks(spec, schedule, gang)
    unit = schedule.block_m or COPY_ROWS
    rows = chunks * unit - unit // 2 + 8 if chunks > 1 else unit + unit // 2 + 8
    small = replace(schedule, num_comm_blocks=gang * schedule.depth,
                    chunk_rows=0 if schedule.overlap == "none" else unit if chunks > 1 else 2 * unit)
    if tile.owners(spec, schedule) > 1:
        rows = _shard_rows(spec)
    if spanned(spec, schedule) > 1:  # shards are smaller than tiles already
        rows, small = _shard_rows(spec), replace(small, chunk_rows=schedule.chunk_rows)
    small_spec = _resized(spec, rows, schedule)
    return Scaled(small_spec, small, _on_few_blocks(small_spec, small), True)


def _scaled_local(spec: Spec, schedule: Schedule) -> Scaled:
    """Two rows and two columns of tiles, with tails."""
    unit = schedule.block_m or COPY_ROWS
    a, b = spec.inputs
    local = (
        unit - 3 if tile.small_m(spec) else unit * schedule.cluster_m + unit // 2 + 8,
        _cut_size(spec, b, 1, (schedule.block_n or 16) + _columns_tail(spec)),
        _cut_size(spec, a, 1, _depth(schedule) * (schedule.block_k or 16) + _tail(a)),
    )
    held = (a.local_shape(0, spec.world), b.local_shape(0, spec.world))
    m, n, k = (size * (whole // part) for size, whole, part in zip(
        local, (a.sizes[0], b.sizes[1], a.sizes[1]), (held[0][0], held[1][1], held[0][1]), strict=True))
    small = _with(spec, ((m, k), (k, n)), (m, n))
    return Scaled(small, schedule, _on_few_blocks(small, schedule), True)


def _depth(schedule: Schedule) -> int:
    """Whole blocks of a contraction: two for every block that shares it."""
    return 2 * (STREAM_UNITS if schedule.stream_k else schedule.split_k)


def _scaled_contraction(spec: Spec, schedule: Schedule, chunks: int, gang: int) -> Scaled:
    """Two rows and two columns of tiles, with tails; segments of a block of the contraction, the last one shorter."""
    unit, rows, columns = schedule.block_k or COPY_ROWS, schedule.block_m or COPY_ROWS, schedule.block_n or COPY_ROWS
    a, b = spec.inputs
    m, n = (rows + rows // 2 + 8) * (spec.world if _cut(a, 0) else 1), (columns + 24) * (spec.world if _cut(b, 1) else 1)
    k = (chunks * unit - unit // 2 + 8 if chunks > 1 else unit + unit // 2 + 8) * spec.world
    small = replace(schedule, num_comm_blocks=gang * schedule.depth,
                    chunk_rows=0 if schedule.overlap == "none" else unit if chunks > 1 else 2 * unit)
    small_spec = _with(spec, ((m, k), (k, n)), (m, n))
    return Scaled(small_spec, small, _on_few_blocks(small_spec, small), True)


def _scaled_blocks(spec: Spec, schedule: Schedule, gang: int) -> Scaled:
    """Two rows and two columns of tiles, with tails; panels of a block of the contraction and a shorter one."""
    rows, cols = spec.topology.mesh_sizes
    m, n, k = schedule.block_m + schedule.block_m // 2 + 8, schedule.block_n + 24, schedule.block_k + 24
    small_spec = _with(spec, ((m * rows, k * cols), (k * cols, n * cols)), (m * rows, n * cols))
    small = replace(schedule, num_comm_blocks=gang * schedule.depth)
    return Scaled(small_spec, small, _on_few_blocks(small_spec, small), True)


def _is_small(spec: Spec, schedule: Schedule) -> bool:
    """Whether all of it can be emulated; a tile that is not full costs as much as one that is."""
    macs = 0
    if spec.operation.compute == "gemm":
        m, n, k = spec.mnk
        macs = max(m, schedule.block_m) * max(n, schedule.block_n) * k
    moved = (*spec.inputs, spec.output) if ragged(spec) else spec.inputs
    return macs <= SMALL_MACS and max(tensor.nbytes for tensor in moved) <= SMALL_BYTES


def _shard_rows(spec: Spec) -> int:
    """Rows of the largest part that a rank gathers or keeps of a sum: what chunks are cut from."""
    if contracts(spec):
        operand = gathered_operand(spec)
        return spec.inputs[operand].local_shape(0, spec.world)[1 - operand]
    if kind_of(spec) == "gather":
        return spec.inputs[0].local_shape(0, spec.world)[0]
    return max(shard_sizes(spec.output.sizes[0], 1 if spec.local else spec.world))


def _chunks(spec: Spec, schedule: Schedule) -> int:
    """Enough chunks of a shard to have the depth in flight, at least two where there were several."""
    real = -(-_shard_rows(spec) // schedule.chunk_rows) if schedule.chunk_rows else 1
    by_chunk = schedule.overlap == "chunked" or (schedule.algorithm == "ring" and kind_of(spec) != "gather")
    needed = schedule.depth if by_chunk else -(-schedule.depth // max(1, spec.world - 1))
    return min(real, max(2, needed))


def _resized(spec: Spec, rows: int, schedule: Schedule) -> Spec:
    """The spec with `rows` rows a shard, or all of them where rows are not shared out; columns with a tail that keeps
    the alignment of the real operands. A contraction that ranks share has its tail on every rank; shards of rows are
    uneven where the real ones are."""
    a, world = spec.inputs[0], spec.world
    m = rows if spec.local and not _cut(a, 0) else rows * world - (spec.output.sizes[0] % world > 0)
    if spec.operation.compute != "gemm":
        real = a.sizes[1] * a.itemsize if a.ndim > 1 else a.itemsize
        unit = next(u for u in (16, 8, 4, 2, 1) if real % u == 0)
        columns = max(1, (2 * 4096 // unit * unit + unit) // a.itemsize)
        return _with(spec, ((m, columns), ), (m, columns))
    b = spec.inputs[1]
    k = _cut_size(spec, a, 1, 2 * (schedule.block_k or 16) + _tail(a)) * (world if _cut(a, 1) else 1)
    n = _cut_size(spec, b, 1, (schedule.block_n or 16) + _columns_tail(spec)) * (world if _cut(b, 1) else 1)
    return _with(spec, ((m, k), (k, n)), (m, n))


def _tail(operand: Tensor) -> int:
    """Of a contraction, at least 48 bytes, which keep rows aligned to 16."""
    return 48 if operand.itemsize == 1 else 24


def _cut(tensor: Tensor, dim: int) -> bool:
    """Whether ranks hold different parts along `dim`."""
    return tensor.shard_dim == dim


def _with(spec: Spec, inputs: tuple[tuple[int, ...], ...], output: tuple[int, ...]) -> Spec:
    def sized(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        return dataclasses.replace(tensor, shape=shape)

    if _halves(spec):
        output = (output[0], output[1] // 2)
    return dataclasses.replace(spec, inputs=tuple(sized(t, s) for t, s in zip(spec.inputs, inputs, strict=True)),
                               output=sized(spec.output, output))


def _halves(spec: Spec) -> bool:
    """Whether the output has half of the product's columns."""
    return any(epilogue.halves for epilogue in spec.epilogues)


def _cut_size(spec: Spec, tensor: Tensor, dim: int, size: int) -> int:
    """At least `size`, of a dimension of a rank's part: block scales are cut between ranks in whole blocks."""
    blocks = spec.attribute("scales") == "block" and _cut(tensor, dim)
    return -(-size // BLOCK) * BLOCK if blocks else size


def _columns_tail(spec: Spec) -> int:
    """Columns behind a whole tile; of an output with half of them, in whole blocks of both."""
    return 32 if _halves(spec) else 24


def _on_few_blocks(spec: Spec, schedule: Schedule) -> Plan:
    """The plan with gangs of two working blocks; of few more where others count the signals of their blocks."""
    plan = lower(spec, schedule)
    if any(_works(role) and _signals(role) for rank in plan.ranks for launch in rank for role in launch.roles):
        few = _sharing(spec, schedule) if schedule.stream_k else _few_sms(spec.topology, _beside(schedule) + WORK_BLOCKS)
        plan = lower(replace(spec, topology=few), schedule)
    return replace(plan, ranks=tuple(tuple(_fewer(launch) for launch in rank) for rank in plan.ranks))


def _sharing(spec: Spec, schedule: Schedule) -> Topology:
    """A GPU so small that the last wave of tiles is not full, and they are shared."""
    size = tile.cluster(schedule)
    sizes = (_few_sms(spec.topology, units * size) for units in range(STREAM_UNITS, spec.topology.sm_share // size))
    return next((few for few in sizes if stream(replace(spec, topology=few), schedule).ranges), spec.topology)


def _beside(schedule: Schedule) -> int:
    """Blocks that may be resident beside the working ones."""
    return (schedule.num_comm_blocks or schedule.depth) + schedule.sum_blocks


def _few_sms(topology: Topology, share: int) -> Topology:
    """The same machine on a smaller GPU, where a rank may use `share` SMs, in whole groups where ranks share it."""
    real = topology.kind == "real"
    sms = share if real else -(-share // SM_SHARE_STEP) * SM_SHARE_STEP * topology.ranks
    if sms >= topology.gpu.sms:
        return topology
    levels = tuple(replace(level, units=sms) if level.name == "gpu" else level for level in topology.levels)
    return replace(topology, gpu=replace(topology.gpu, sms=sms), levels=levels)


def _works(role: Role) -> bool:
    """Blocks that multiply, add or copy out, as lowering names them."""
    return role.agent == "blocks" and role.name.startswith(("work", "own", "sum"))


def _signals(role: Role) -> bool:
    return any(isinstance(step, Signal) for step in role.steps)


def _fewer(launch: Launch) -> Launch:
    """Gangs of two working blocks, where nobody counts their signals."""
    most = WORK_BLOCKS * launch.cluster
    return replace(launch, roles=tuple(
        replace(role, blocks=min(role.blocks, most)) if _works(role) and not _signals(role) else role
        for role in launch.roles))
