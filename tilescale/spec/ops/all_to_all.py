"""All-to-all: another dimension is sharded afterwards (sequence-parallel attention, before and after)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.errors import SpecError
from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import no_flops
from tilescale.spec.tensor import shard_sizes

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
    element_rows = tensor.nbytes // tensor.sizes[before] // tensor.sizes[after]
    return max((tensor.sizes[before] - held) * wanted * element_rows for held, wanted in pairs)


def _check(spec: Spec) -> None:
    before, after = source_dims(spec)
    if before == after:
        raise SpecError(
            "an all_to_all shards another dimension afterwards",
            f"dimension {before} of the input before and after",
            "this needs no communication: transpose the local tensor with torch",
        )


OPERATIONS.register(
    Operation(
        name="all_to_all",
        summary="shard another dimension, with an optional transpose on the way",
        flops=no_flops,
        link_bytes=_link_bytes,
        moves=(Move("all_to_all", 0, 0),),
        compute="copy",
        remedy="all_to_all has no kernels: use torch.distributed.all_to_all_single",
        check=_check,
    )
)
