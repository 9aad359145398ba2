"""All-gather of A's rows, then GEMM with the local columns of B (column-parallel linear with sequence parallelism)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.errors import SpecError
from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import lacking_bytes, largest
from tilescale.spec.scales import scale_operands
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import Replicate

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _flops(spec: Spec) -> int:
    m, n, k = spec.mnk
    return 2 * m * k * largest(n, spec.world)


def _link_bytes(spec: Spec) -> int:
    return lacking_bytes(spec.inputs[0], spec.world)


def _check(spec: Spec) -> None:
    if spec.attribute("gathered", 1) != 1:
        raise SpecError("gathered is True or left out", repr(spec.attribute("gathered")), "leave it out")


def _beside(spec: Spec) -> tuple[tuple[str, Tensor], ...]:
    return (("gathered", spec.inputs[0].with_view(Replicate)),) if spec.attribute("gathered") else ()


def _limits(spec: Spec) -> str:
    if spec.inputs[0].order != "row":
        return 'kernels gather whole rows of A: declare A with order="row"'
    if spec.then and spec.inputs[0].sizes[0] % spec.world:
        return ("products of uneven shards are the library's, which has no epilogues: declare rows that the ranks divide, "
                "or apply them with torch to the output")
    return ""


OPERATIONS.register(
    Operation(
        name="ag_gemm",
        summary="gather the rows of A, multiply by the local columns of B",
        flops=_flops,
        link_bytes=_link_bytes,
        moves=(Move("gather", 0, 0),),
        compute="gemm",
        kernels=True,
        limits=_limits,
        extras=scale_operands,
        check=_check,
        beside=_beside,
    )
)
