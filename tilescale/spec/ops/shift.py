"""Shift: every rank receives the shard of the rank k before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.errors import SpecError
from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import no_flops
from tilescale.spec.ops._exchange import exchange_limits
from tilescale.spec.result import Factor, Result

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _link_bytes(spec: Spec) -> int:
    return spec.inputs[0].nbytes // spec.world


def _check(spec: Spec) -> None:
    k, tensor = spec.attribute("k"), spec.inputs[0]
    if isinstance(k, bool) or not isinstance(k, int) or k % spec.world == 0:
        raise SpecError(
            "a shift is by an integer that is no multiple of the world",
            f"k={k!r}, world {spec.world}",
            "a shift by 0 needs no communication: use the tensor as it is",
        )
    size = tensor.sizes[tensor.shard_dim or 0]
    if size % spec.world:
        raise SpecError("a shift has even shards", f"{size} over {spec.world} ranks", "pad the sharded dimension")


def _holds(spec: Spec, rank: int) -> Result:
    k = spec.attribute("k")
    return Result(((Factor(0, ((rank - int(k or 0)) % spec.world,)),),))


OPERATIONS.register(
    Operation(
        name="shift",
        summary="receive the shard of the rank k before",
        flops=no_flops,
        link_bytes=_link_bytes,
        moves=(Move("exchange", 0, 0),),
        compute="copy",
        kernels=True,
        check=_check,
        limits=exchange_limits,
        holds=_holds,
    )
)
