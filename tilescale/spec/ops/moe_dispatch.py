"""Expert parallelism, the way out: each token goes to the ranks of its experts (ragged, sizes known on the device)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import count_attribute, no_flops
from tilescale.spec.ops._moe import check_experts, counts_of, indices_of, moe_limits, uniform_bytes

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _link_bytes(spec: Spec) -> int:
    """A token crosses a link once for each rank that it goes to."""
    return uniform_bytes(spec, min(count_attribute(spec, "top_k"), spec.world))


OPERATIONS.register(
    Operation(
        name="moe_dispatch",
        summary="send each token to the ranks of its experts",
        flops=no_flops,
        link_bytes=_link_bytes,
        moves=(Move("dispatch", 0, 0),),
        compute="copy",
        kernels=True,
        check=check_experts,
        limits=moe_limits,
        extras=lambda spec: (indices_of(spec),),
        results=lambda spec: (counts_of(spec),),
    )
)
