"""The tile of a generated product: who multiplies what, and what it takes of a block's registers and shared memory.

codegen/include/tilescale/gemm.cuh and small_m.cuh lay shared memory out in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilescale.schedules.schedule import Schedule
from tilescale.schedules.sums import summed, sums
from tilescale.spec.op import Spec
from tilescale.spec.tensor import ITEMSIZE

ROWS = 64              # of a product instruction
ELEMENT_BYTES = 2      # of an operand
BARRIER_BYTES = 8
MAX_BUFFERS = 4
WARPGROUP = 128
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
    return summed(spec).element if sums(spec) else spec.output.dtype


def small_m(spec: Spec) -> bool:
    """Whether few rows are multiplied, so that B is the operand that fills the tensor cores."""
    return spec.local and spec.inputs[0].local_shape(0, spec.world)[0] <= SMALL_M[-1] and spec.inputs[1].order == "col"


def padded_rows(rows: int) -> int:
    """The narrowest product that holds `rows` rows, at most SMALL_M[-1]."""
    return next(size for size in SMALL_M if size >= rows)


def cluster(s: Schedule) -> int:
    """Blocks of a cluster."""
    return s.cluster_m * s.split_k


def consumers(spec: Spec, s: Schedule) -> int:
    """Warpgroups that multiply."""
    return 1 if (s.block_n if small_m(spec) else s.block_m) < 2 * ROWS else 2


def threads(spec: Spec, s: Schedule) -> int:
    """A loading warpgroup, and those that multiply."""
    return WARPGROUP * (1 + consumers(spec, s))


def accumulators(spec: Spec, s: Schedule) -> int:
    """Registers of a thread that hold sums."""
    if small_m(spec):
        return s.block_m // 2
    return max(1, s.block_m // ROWS // consumers(spec, s)) * s.block_n // 2


def stage_bytes(spec: Spec, s: Schedule) -> int:
    """Both operands of one step of the pipeline. A row-major B is loaded in slabs of 64 columns."""
    if small_m(spec):
        return s.block_n * s.block_k * ELEMENT_BYTES + -(-s.block_m * s.block_k * ELEMENT_BYTES // 1024) * 1024
    columns = -(-s.block_n // 64) * 64 if spec.inputs[1].order == "row" else s.block_n
    return (s.block_m + columns) * s.block_k * ELEMENT_BYTES


def _fixed_bytes(spec: Spec, s: Schedule) -> int:
    return s.num_stages * stage_bytes(spec, s) + -(-2 * s.num_stages * BARRIER_BYTES // 16) * 16


def partial_bytes(spec: Spec, s: Schedule) -> int:
    """Sums of a block, where a cluster shares the contraction: they lie where the stages were. Those of few rows always
    pass through shared memory, and lie behind the stages."""
    return s.block_m * (s.block_n + (4 if small_m(spec) else 8)) * 4


def staging(spec: Spec, s: Schedule) -> Staging:
    """One to MAX_BUFFERS buffers of 32, 64 or 128 bytes a row, as fit beside the stages; from registers where rows are not
    aligned to 16 bytes, or where the blocks of a cluster sum up."""
    if small_m(spec):
        return Staging(s.block_n, 1, False, partial_bytes(spec, s))
    out, stored = ITEMSIZE[product_dtype(spec)], stored_columns(spec, s)
    columns = spec.inputs[1].local_shape(0, spec.world)[1] * stored // s.block_n
    if columns * out % 16 or s.split_k > 1:
        return Staging(stored, 1, False, 0)
    warps = 4 * consumers(spec, s)
    width = next(size // out for size in (128, 64, 32) if stored % (size // out) == 0)
    chunks = accumulators(spec, s) * 2 * stored // s.block_n // width
    room = (spec.topology.gpu.smem_bytes - _fixed_bytes(spec, s)) // (warps * 16 * width * out)
    buffers = max(1, min(chunks, MAX_BUFFERS, room))
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
