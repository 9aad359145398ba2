"""All-reduce: the sum over ranks, on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import largest
from tilescale.spec.ops._sums import sum_limits

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _flops(spec: Spec) -> int:
    return largest(spec.output.numel, spec.world) * (spec.world - 1)


def _link_bytes(spec: Spec) -> int:
    """Reduce-scatter, then all-gather, over the flat elements: what no algorithm without in-network sums undercuts."""
    numel, world = spec.output.numel, spec.world
    share = largest(numel, world)
    return (share * (world - 1) + numel - share) * spec.output.itemsize


OPERATIONS.register(
    Operation(
        name="all_reduce",
        summary="sum over ranks, everywhere",
        flops=_flops,
        link_bytes=_link_bytes,
        moves=(Move("all_reduce", 0, 0),),
        compute="copy",
        kernels=True,
        limits=sum_limits,
    )
)
