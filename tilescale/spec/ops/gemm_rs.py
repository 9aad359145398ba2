"""GEMM over the local part of the contraction, then reduce-scatter of the rows of C (row-parallel linear)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import check_partial_dtype, largest, own_shard_bytes
from tilescale.spec.ops._sums import sum_limits
from tilescale.spec.scales import scale_operands

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _flops(spec: Spec) -> int:
    m, n, k = spec.mnk
    return 2 * m * n * largest(k, spec.world)


def _link_bytes(spec: Spec) -> int:
    # An addend of the own rows from every other rank, or their running sums: the same number of bytes.
    return own_shard_bytes(spec.output, spec.world, 0) * (spec.world - 1)


OPERATIONS.register(
    Operation(
        name="gemm_rs",
        summary="multiply the local parts of the contraction, sum over ranks, keep the own rows",
        flops=_flops,
        link_bytes=_link_bytes,
        check=check_partial_dtype,
        moves=(Move("reduce_scatter", -1, 0),),
        compute="gemm",
        kernels=True,
        limits=sum_limits,
        extras=scale_operands,
    )
)
