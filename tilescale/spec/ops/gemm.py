"""Local GEMM: the declaration needs no communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Operation
from tilescale.spec.ops._counts import no_bytes

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _flops(spec: Spec) -> int:
    a, b = (tensor.local_shape(0, spec.world) for tensor in spec.inputs)  # rank 0 has the largest shards
    return 2 * a[0] * b[1] * a[1]


OPERATIONS.register(
    Operation(
        name="gemm",
        summary="no communication is needed: each rank multiplies what it holds",
        flops=_flops,
        link_bytes=no_bytes,
        moves=(),
        compute="gemm",
        remedy="this declaration needs no communication and is a local GEMM: call torch.matmul",
    )
)
