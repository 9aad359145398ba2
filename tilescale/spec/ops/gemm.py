"""Local GEMM: the declaration needs no communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Operation
from tilescale.spec.ops._counts import no_bytes
from tilescale.spec.scales import scale_operands

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _flops(spec: Spec) -> int:
    a, b = (tensor.local_shape(0, spec.world) for tensor in spec.inputs)  # rank 0 has the largest shards
    return 2 * a[0] * b[1] * a[1]


def _limits(spec: Spec) -> str:
    if spec.inputs[0].order != "row":
        return 'kernels read whole rows of A: declare A with order="row"'
    if any(len({tensor.local_shape(rank, spec.world) for rank in range(spec.world)}) > 1 for tensor in spec.inputs):
        return "every rank multiplies as much: pad to sizes that the ranks divide, or declare what one holds as Replicate"
    return ""


OPERATIONS.register(
    Operation(
        name="gemm",
        summary="no communication is needed: each rank multiplies what it holds",
        flops=_flops,
        link_bytes=no_bytes,
        moves=(),
        compute="gemm",
        kernels=True,
        limits=_limits,
        extras=scale_operands,
    )
)
