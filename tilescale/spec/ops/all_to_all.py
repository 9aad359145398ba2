"""All-to-all: another dimension is sharded afterwards (sequence-parallel attention, before and after)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.errors import SpecError
from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import no_flops
from tilescale.spec.ops._exchange import exchange_limits
from tilescale.spec.result import Factor, Result
from tilescale.spec.tensor import shard_offset, shard_sizes

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def source_dims(spec: Spec) -> tuple[int, int]:
    """The dimension of the input sharded before, and the one (also of the input) sharded after."""
    before, after = spec.inputs[0].shard_dim or 0, spec.output.shard_dim or 0
    order = spec.attribute("transpose")
    return before, int(str(order).split(",")[after]) if order is not None else after


def _link_bytes(spec: Spec) -> int:
    tensor, world = spec.inputs[0], spec.world
    before, after = source_dims(spec)
    pairs = zip(shard_sizes(tensor.sizes[before], world), shard_sizes(tensor.sizes[after], world), strict=True)
    element_rows = tensor.nbytes // max(1, tensor.sizes[before]) // max(1, tensor.sizes[after])
    return max((tensor.sizes[before] - held) * wanted * element_rows for held, wanted in pairs)


def _check(spec: Spec) -> None:
    before, after = source_dims(spec)
    if before == after:
        raise SpecError(
            "an all_to_all shards another dimension afterwards",
            f"dimension {before} of the input before and after",
            "this needs no communication: transpose the local tensor with torch",
        )


def _holds(spec: Spec, rank: int) -> Result:
    """Of the shards of all ranks, joined, this rank's part along the other dimension."""
    before, after = source_dims(spec)
    size, order = spec.inputs[0].sizes[after], spec.attribute("transpose")
    part = shard_sizes(size, spec.world)[rank]
    turned = () if order is None else tuple(int(dim) for dim in str(order).split(","))
    joined = Factor(0, tuple(range(spec.world)), before)
    return Result(((joined,),), after, shard_offset(size, rank, spec.world), part, turned)


OPERATIONS.register(
    Operation(
        name="all_to_all",
        summary="shard another dimension, with an optional transpose on the way",
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
