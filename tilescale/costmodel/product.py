"""What a generated product takes that needs no communication: fitted to several hundred products on one H200.

At full load the chip's power sets the pace: every step of a tile costs what its multiplications and its traffic in shared
memory cost (`multiply_us`, `smem_us`, a cycle each, while `POWER_SMS` SMs work), and SMs that idle leave their share to
the others. Below that, the tensor cores and shared memory set it, at the highest clock.
"""

from __future__ import annotations

from tilescale.schedules import tile
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.streaming import stream
from tilescale.spec.op import Spec

CLOCK_MHZ = 1980.0
POWER_SMS = 132
MULTIPLY_US = 5.48e-4       # of a cycle of multiplying
SMEM_US = 1.26e-4           # of a cycle of shared memory traffic
MACS_A_CYCLE = 2048         # of one SM, dense 16-bit; twice as many of one-byte operands
SMEM_BYTES_A_CYCLE = 128
WARP_CLOCK_MHZ, WARP_MACS_A_CYCLE, WARP_EFFICIENCY = 1410.0, 1024, 0.85  # before sm_90
START_US, WAVE_US = 3.0, 1.0
TURN_US = 0.5               # of a wave but the last, where stores lie beneath another warpgroup's products; an estimate
CLUSTER_US, SPLIT_US = 0.4, 1.2
STREAM_US = 10.0            # of stream-K: blocks that wait for each other's sums, which they leave in memory
STREAM_SLOW = (1.5, 1.2)    # of its steps, without and with a cluster: blocks load from different places of the contraction
STEP_US = 0.16              # the least that a step takes: barriers, and the start of its products
REMOTE_GBPS = 25.0          # of one SM, to the shared memory of others in its cluster
MEMORY_SHARE = 0.97         # of the memory's rate, for operands and results read and written once
SMALL_SM_GBPS = 75.0        # weights that one SM takes in
SMALL_SPLIT_US = 1.2


def product_us(spec: Spec, s: Schedule) -> float:
    """Microseconds of the launch on one rank, without what starting a graph takes."""
    (m, k), (_, n) = (operand.local_shape(0, spec.world) for operand in spec.inputs)
    topology = spec.topology
    shared = 1 if topology.kind == "real" else topology.ranks
    moved = (m * k + k * n) * spec.inputs[0].itemsize + m * n * spec.output.itemsize
    memory = moved / 1e3 / (topology.gpu.hbm_gbps / shared * MEMORY_SHARE)
    # Of schedules that take the same time by this model: the deepest pipeline, and groups of about 1024 rows.
    group = s.raster_group * s.block_m * s.cluster_m
    preference = 1 + 0.1 / s.num_stages - s.block_k * 2e-5 + 0.003 * abs(group.bit_length() - 11)
    if tile.small_m(spec):
        blocks = min(tile.tiles(spec, s) * s.split_k, topology.sm_share)
        taken = k * n * spec.inputs[0].itemsize * (1 + s.block_m / s.block_n)
        stream = taken / 1e3 / (blocks * SMALL_SM_GBPS)
        return preference * (START_US + max(memory, stream) + (SMALL_SPLIT_US if s.split_k > 1 else 0.0))
    extra = CLUSTER_US if s.cluster_m > 1 else 0.0
    if s.split_k > 1:
        extra = SPLIT_US * (s.split_k - 1) + s.block_m * s.block_n * 4 * (s.split_k - 1) / s.split_k / 1e3 / REMOTE_GBPS
    return preference * (START_US + extra + max(memory, _tiles_us(spec, s, k)))


def _tiles_us(spec: Spec, s: Schedule, k: int) -> float:
    size = tile.cluster(s)
    clusters, slots = tile.tiles(spec, s), max(1, spec.topology.sm_share // size)
    if s.stream_k:
        return _stream_us(spec, s)
    full, rest = divmod(clusters, slots)
    steps = -(-k // s.block_k) / s.split_k
    waves = full + (1 if rest else 0)
    ends = WAVE_US * waves if s.consumers != tile.PINGPONG else WAVE_US + TURN_US * (waves - 1)
    return ends + full * steps * _step_us(spec, s, slots * size) + (steps * _step_us(spec, s, rest * size) if rest else 0.0)


def _stream_us(spec: Spec, s: Schedule) -> float:
    """Whole waves, then an even stretch of the shared tiles. Fitted to 1200 products on one H200: what is left for whom
    shows less than where blocks are in the contraction."""
    found = stream(spec, s)
    stretch = found.shared * found.steps / found.units
    steps = found.whole // found.units * found.steps + stretch
    return STREAM_US + steps * _step_us(spec, s, found.units * found.cluster) * STREAM_SLOW[found.cluster > 1]


def _warps_step_us(s: Schedule, row: int) -> float:
    """One step where warps multiply by mma.sync: what the tensor cores take, or shared memory, which every warp reads its
    part of both operands from. Not fitted: public rates of an A100, at its highest clock."""
    along, across = tile.warp_grid(s)
    multiply = s.block_m * s.block_n * row / 2 / WARP_MACS_A_CYCLE
    smem = (s.block_m * (across + 1) + s.block_n * (along + 1)) * row / SMEM_BYTES_A_CYCLE
    return max(multiply / WARP_EFFICIENCY, smem) / WARP_CLOCK_MHZ


def _step_us(spec: Spec, s: Schedule, busy: int) -> float:
    """One step of the contraction of a tile, while `busy` SMs work."""
    row = s.block_k * spec.inputs[0].itemsize
    if tile.mma_sync(spec):
        return _warps_step_us(s, row)
    multiply = s.block_m * s.block_n * row / 2 / MACS_A_CYCLE
    read = max(1, s.block_m // tile.ROWS) * (tile.ROWS + s.block_n) * row
    smem = (read + (s.block_m + s.block_n) * row) / SMEM_BYTES_A_CYCLE
    return max(STEP_US, max(multiply, smem) / CLOCK_MHZ, (MULTIPLY_US * multiply + SMEM_US * smem) * busy / POWER_SMS)
