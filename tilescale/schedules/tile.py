"""The tile of a generated product: who multiplies what, and what it takes of a block's registers and shared memory.

codegen/include/tilescale/gemm.cuh, small_m.cuh and gemm_mma.cuh lay shared memory out in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilescale.schedules.schedule import Schedule
from tilescale.schedules.sums import summed, sums
from tilescale.spec.op import Spec
from tilescale.spec.ops._experts import part_dtype
from tilescale.spec.ops._moe import combines
from tilescale.spec.routed import is_routed
from tilescale.spec.tensor import ITEMSIZE

ROWS = 64              # of a product instruction
PROMOTED = 128         # elements of a contraction that one-byte operands sum up in the tensor core, before fp32
ROW_BYTES = 128        # of an operand in shared memory, along K
BARRIER_BYTES = 8
MAX_BUFFERS = 4
WARPGROUP, WARP = 128, 32
PINGPONG = "pingpong"
SMALL_M = (8, 16, 32, 64)


@dataclass(frozen=True)
class Staging:
    """How results pass through shared memory: `columns` of 16 rows in a buffer, `buffers` a warp, `bytes` in all. Without
    `staged` they are stored from registers."""

    columns: int
    buffers: int
    staged: bool
    bytes: int


def product_dtype(spec: Spec) -> str:
    """Element type that a product is stored in: the output's, or that of the parts of a sum."""
    if is_routed(spec) and combines(spec):
        return part_dtype(spec)
    return summed(spec).element if sums(spec) else spec.output.dtype


def mma_sync(spec: Spec) -> bool:
    """Whether products are those of warps (mma.sync, behind cp.async): on GPUs before sm_90. Later ones have wgmma, or
    none of ours."""
    return spec.topology.gpu.arch.startswith("sm_8")


def warp_grid(s: Schedule) -> tuple[int, int]:
    """Warps along the rows and the columns of a tile, where each multiplies a part of its own: four, or eight of large
    tiles."""
    warps = 8 if s.block_m * s.block_n >= 128 * 128 else 4
    along = 4 if s.block_m == 256 else 2
    return along, warps // along


def small_m(spec: Spec) -> bool:
    """Whether few rows are multiplied, so that B is the operand that fills the tensor cores."""
    if mma_sync(spec):
        return False
    return spec.local and spec.inputs[0].local_shape(0, spec.world)[0] <= SMALL_M[-1] and spec.inputs[1].order == "col"


def padded_rows(rows: int) -> int:
    """The narrowest product that holds `rows` rows, at most SMALL_M[-1]."""
    return next(size for size in SMALL_M if size >= rows)


def cluster(s: Schedule) -> int:
    """Blocks of a cluster."""
    return s.cluster_m * s.split_k


def consumers(spec: Spec, s: Schedule) -> int:
    """Warpgroups that multiply."""
    if s.consumers == PINGPONG:
        return 2
    return 1 if (s.block_n if small_m(spec) else s.block_m) < 2 * ROWS else 2


def threads(spec: Spec, s: Schedule) -> int:
    """A loading warpgroup, and those that multiply; or warps that do both."""
    if mma_sync(spec):
        return WARP * prod(warp_grid(s))
    return WARPGROUP * (1 + consumers(spec, s))


def promotes(spec: Spec) -> bool:
    """Whether sums move on from the tensor core to fp32 every PROMOTED elements: that of sm_90a keeps about 14 bits of sums
    of one-byte operands."""
    return spec.inputs[0].itemsize == 1


def sum_registers(spec: Spec, s: Schedule) -> int:
    """Registers of a thread that hold sums, and those that are moved on to them."""
    return accumulators(spec, s) * (2 if promotes(spec) else 1)


def accumulators(spec: Spec, s: Schedule) -> int:
    """Results of a tile that a thread holds."""
    if small_m(spec):
        return s.block_m // 2
    if mma_sync(spec):
        return s.block_m * s.block_n // threads(spec, s)
    return max(1, s.block_m // ROWS // sharing(spec, s)) * s.block_n // 2


def sharing(spec: Spec, s: Schedule) -> int:
    """Warpgroups that share a tile."""
    return 1 if s.consumers == PINGPONG else consumers(spec, s)


def in_flight(spec: Spec, s: Schedule) -> bool:
    """Whether products of a step begin before those of the one before have ended. Of warpgroups that share a tile of more
    than 128 rows each waits for its own: the others' keep the tensor cores at work meanwhile."""
    return not promotes(spec) and (sharing(spec, s) == 1 or s.block_m == sharing(spec, s) * ROWS)


def owners(spec: Spec, s: Schedule) -> int:
    """Owners of the rows of a tile: one a warpgroup where products are scattered to owners of as few rows, else one."""
    rows = spec.inputs[0].local_shape(0, spec.world)[0]
    shared = s.algorithm == "scatter" and s.overlap == "none" and s.block_m == 2 * ROWS and not mma_sync(spec)
    return 2 if shared and rows == ROWS * spec.world and spec.world % 2 == 0 else 1


def b_passes(spec: Spec, s: Schedule) -> bool:
    """Whether B is loaded once: all rows of tiles are neighbours in a wave, so that the next one loads other columns."""
    rows = spec.inputs[0].local_shape(0, spec.world)[0]
    return (spec.local and not small_m(spec) and not mma_sync(spec) and s.cluster_m == 1
            and rows <= s.raster_group * s.block_m)


def stage_bytes(spec: Spec, s: Schedule) -> int:
    """Both operands of one step of the pipeline. A row-major B is loaded in slabs of 64 columns."""
    row = s.block_k * spec.inputs[0].itemsize
    if small_m(spec):
        return s.block_n * row + -(-s.block_m * row // 1024) * 1024
    columns = -(-s.block_n // 64) * 64 if spec.inputs[1].order == "row" else s.block_n
    return (s.block_m + columns) * row


def _fixed_bytes(spec: Spec, s: Schedule) -> int:
    barriers = -(-2 * s.num_stages * BARRIER_BYTES // 16) * 16
    return s.num_stages * stage_bytes(spec, s) + barriers + _table_bytes(spec, s)


def _table_bytes(spec: Spec, s: Schedule) -> int:
    """Where experts multiply: a barrier a group, and of each expert how many rows there are, and where they lie."""
    if not is_routed(spec):
        return 0
    return -(-(s.depth * BARRIER_BYTES + 3 * 4 * spec.inputs[1].local_shape(0, spec.world)[0]) // 16) * 16


def landing_bytes(spec: Spec, s: Schedule) -> int:
    """Where sums of other blocks of a cluster that shares a contraction land: those of a warp are added up in one block.
    Of few rows they are read where they are."""
    if small_m(spec):
        return 0
    warps, lanes = 4 * consumers(spec, s), 32
    return -(-warps // s.split_k) * (s.split_k - 1) * lanes * accumulators(spec, s) * 4


def staging(spec: Spec, s: Schedule) -> Staging:
    """One to MAX_BUFFERS buffers of 32, 64 or 128 bytes a row, as fit beside the stages; from registers where rows are not
    aligned to 16 bytes. Results of few rows always pass through shared memory, behind the stages."""
    if small_m(spec):
        return Staging(s.block_n, 1, False, s.block_m * (s.block_n + 4) * 4)
    out, stored = ITEMSIZE[product_dtype(spec)], stored_columns(spec, s)
    columns = spec.inputs[1].local_shape(0, spec.world)[-1] * stored // s.block_n
    warps = 4 * consumers(spec, s)
    if mma_sync(spec):
        warps, stored = prod(warp_grid(s)), stored // warp_grid(s)[1]
    if columns * out % 16:
        return Staging(stored, 1, False, 0)
    width = next(size // out for size in (128, 64, 32) if stored % (size // out) == 0)
    chunks = accumulators(spec, s) * 2 * stored_columns(spec, s) // s.block_n // width
    room = (spec.topology.gpu.smem_bytes - _fixed_bytes(spec, s)) // (warps * 16 * width * out)
    buffers = 1 if mma_sync(spec) else max(1, min(chunks, MAX_BUFFERS, room))  # stores of threads are not waited for
    return Staging(width, buffers, True, warps * buffers * 16 * width * out)


def shared_bytes(spec: Spec, s: Schedule) -> int:
    """Of a block: stages, barriers, staged results."""
    return _fixed_bytes(spec, s) + staging(spec, s).bytes


def clustered(sms: int, size: int) -> int:
    """How many of a GPU's SMs clusters of `size` blocks can use, one block each: a cluster lies within a group of SMs (16
    to 18 on Hopper, some fewer), so that pairs use nearly all, larger ones leave a remainder in every group."""
    return sms if size <= 2 else sms * 6 // 7


def stored_columns(spec: Spec, s: Schedule) -> int:
    """Columns of the output that a tile makes: where an epilogue makes one of two, half of its own."""
    return s.block_n // 2 if any(epilogue.halves for epilogue in spec.epilogues) else s.block_n


def tiles(spec: Spec, s: Schedule) -> int:
    """Of the product of one rank of a local operation; blocks of a cluster of rows take theirs together."""
    rows = spec.inputs[0].local_shape(0, spec.world)[0]
    columns = spec.inputs[1].local_shape(0, spec.world)[1]
    return -(-rows // (s.block_m * s.cluster_m)) * -(-columns // s.block_n)
