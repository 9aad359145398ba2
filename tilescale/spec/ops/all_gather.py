"""All-gather: the shards of every rank, on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import lacking_bytes, no_flops

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _link_bytes(spec: Spec) -> int:
    return lacking_bytes(spec.inputs[0], spec.world)


def _limits(spec: Spec) -> str:
    tensor = spec.inputs[0]
    if tensor.shard_dim != 0 or tensor.order != "row":
        return (
            "kernels gather contiguous shards: declare the tensor with the sharded dimension first "
            '(FullRow, order="row"), permuted by torch where it is not'
        )
    return ""


OPERATIONS.register(
    Operation(
        name="all_gather",
        summary="every rank receives the shards of the others",
        flops=no_flops,
        link_bytes=_link_bytes,
        moves=(Move("gather", 0, 0),),
        compute="copy",
        kernels=True,
        limits=_limits,
    )
)
