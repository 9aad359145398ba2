"""Reduce-scatter: the sum over ranks, of which each keeps its shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import own_shard_bytes
from tilescale.spec.ops._sums import sum_limits

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _link_bytes(spec: Spec) -> int:
    return own_shard_bytes(spec.output, spec.world, spec.output.shard_dim or 0) * (spec.world - 1)


def _flops(spec: Spec) -> int:
    return _link_bytes(spec) // spec.output.itemsize  # one addition an element received


OPERATIONS.register(
    Operation(
        name="reduce_scatter",
        summary="sum over ranks, each keeps its shard",
        flops=_flops,
        link_bytes=_link_bytes,
        moves=(Move("reduce_scatter", 0, 0),),
        compute="copy",
        kernels=True,
        limits=sum_limits,
    )
)
