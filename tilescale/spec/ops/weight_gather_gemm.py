"""Gather of B along the contraction, then GEMM with the local rows of A (weights sharded as FSDP holds them)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import lacking_bytes, largest, segment_limits

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _flops(spec: Spec) -> int:
    m, n, k = spec.mnk
    return 2 * largest(m, spec.world) * n * k


def _link_bytes(spec: Spec) -> int:
    return lacking_bytes(spec.inputs[1], spec.world)


OPERATIONS.register(
    Operation(
        name="weight_gather_gemm",
        summary="gather B, multiply the local rows of A by it",
        flops=_flops,
        link_bytes=_link_bytes,
        moves=(Move("gather", 1, 0),),
        compute="gemm",
        kernels=True,
        limits=segment_limits,
    )
)
