"""Gather of A along the contraction, then GEMM with the local columns of B (weight gradients of sharded tokens)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import lacking_bytes, largest, segment_limits

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _flops(spec: Spec) -> int:
    m, n, k = spec.mnk
    return 2 * m * k * largest(n, spec.world)


def _link_bytes(spec: Spec) -> int:
    return lacking_bytes(spec.inputs[0], spec.world)


OPERATIONS.register(
    Operation(
        name="ag_gemm_k",
        summary="gather A along the contraction, multiply by the local columns of B",
        flops=_flops,
        link_bytes=_link_bytes,
        moves=(Move("gather", 0, 1),),
        compute="gemm",
        kernels=True,
        limits=segment_limits,
    )
)
