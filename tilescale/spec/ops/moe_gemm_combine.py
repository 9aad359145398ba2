"""Expert parallelism, the product before the way back: each expert multiplies its rows by a matrix of its own (a grouped
GEMM), and products are weighted and summed where the tokens live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import check_partial_dtype, count_attribute, largest
from tilescale.spec.ops._experts import check_products, part_dtype, product_flops, product_limits
from tilescale.spec.ops._moe import counts_of, indices_of, weights_of
from tilescale.spec.scales import scales_of_experts
from tilescale.spec.tensor import ITEMSIZE

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _flops(spec: Spec) -> int:
    tokens, columns = spec.output.sizes
    return product_flops(spec) + 2 * largest(tokens, spec.world) * count_attribute(spec, "top_k") * columns


def _link_bytes(spec: Spec) -> int:
    """Every product crosses a link, in float32 or what it may be rounded to: weights are applied where the token lives."""
    tokens, columns = spec.output.sizes
    rows = largest(tokens, spec.world) * count_attribute(spec, "top_k")
    return rows * columns * ITEMSIZE[part_dtype(spec)] * (spec.world - 1) // spec.world


def _check(spec: Spec) -> None:
    check_products(spec)
    check_partial_dtype(spec)


OPERATIONS.register(
    Operation(
        name="moe_gemm_combine",
        summary="multiply the rows of experts, bring the products of a token back and add them up",
        flops=_flops,
        link_bytes=_link_bytes,
        moves=(Move("combine", 0, 0),),
        compute="gemm",
        kernels=True,
        check=_check,
        limits=product_limits,
        extras=lambda spec: (*scales_of_experts(spec), indices_of(spec), weights_of(spec), counts_of(spec)),
    )
)
