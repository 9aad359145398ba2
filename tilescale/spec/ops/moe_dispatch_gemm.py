"""Expert parallelism, the way out and the product behind it: each token goes to the ranks of its experts, and each expert
multiplies its rows by a matrix of its own (a grouped GEMM)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import count_attribute
from tilescale.spec.ops._experts import check_products, product_flops, product_limits
from tilescale.spec.ops._moe import counts_of, indices_of, uniform_bytes
from tilescale.spec.scales import scales_of_experts

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _flops(spec: Spec) -> int:
    return product_flops(spec)


def _link_bytes(spec: Spec) -> int:
    """A token crosses a link once for each rank that it goes to."""
    return uniform_bytes(spec, min(count_attribute(spec, "top_k"), spec.world))


OPERATIONS.register(
    Operation(
        name="moe_dispatch_gemm",
        summary="send each token to the ranks of its experts, which multiply it",
        flops=_flops,
        link_bytes=_link_bytes,
        moves=(Move("dispatch", 0, 0),),
        compute="gemm",
        kernels=True,
        check=check_products,
        limits=product_limits,
        extras=lambda spec: (*scales_of_experts(spec), indices_of(spec),),
        results=lambda spec: (counts_of(spec),),
    )
)
