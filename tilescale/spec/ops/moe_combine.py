"""Expert parallelism, the way back: the rows of a token's experts are weighted and summed where the token lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import count_attribute, largest
from tilescale.spec.ops.moe_dispatch import check_experts, uniform_bytes

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _flops(spec: Spec) -> int:
    tokens, hidden = spec.output.sizes
    return 2 * largest(tokens, spec.world) * count_attribute(spec, "top_k") * hidden


def _link_bytes(spec: Spec) -> int:
    tokens, hidden = spec.output.sizes
    return uniform_bytes(spec, tokens, hidden, spec.output.itemsize)


OPERATIONS.register(
    Operation(
        name="moe_combine",
        summary="bring the rows of a token's experts back and add them up",
        flops=_flops,
        link_bytes=_link_bytes,
        moves=(Move("combine", 0, 0),),
        compute="copy",
        remedy="moe_combine has no kernels: use torch.distributed.all_to_all_single, then index_add_",
        check=check_experts,
    )
)
