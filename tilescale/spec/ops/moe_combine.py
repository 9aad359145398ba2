"""Expert parallelism, the way back: the rows of a token's experts are weighted and summed where the token lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import count_attribute, largest
from tilescale.spec.ops._moe import check_experts, counts_of, indices_of, moe_limits, uniform_bytes, weights_of

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec

SUMMED = ("bfloat16", "float16", "float32")


def _flops(spec: Spec) -> int:
    tokens, hidden = spec.output.sizes
    return 2 * largest(tokens, spec.world) * count_attribute(spec, "top_k") * hidden


def _link_bytes(spec: Spec) -> int:
    """Every row crosses a link: weights are applied where the token lives."""
    return uniform_bytes(spec, count_attribute(spec, "top_k"))


def _limits(spec: Spec) -> str:
    if spec.output.dtype not in SUMMED:
        return f"kernels add rows of {', '.join(SUMMED)}: convert them with torch"
    return moe_limits(spec)


OPERATIONS.register(
    Operation(
        name="moe_combine",
        summary="bring the rows of a token's experts back and add them up",
        flops=_flops,
        link_bytes=_link_bytes,
        moves=(Move("combine", 0, 0),),
        compute="copy",
        kernels=True,
        check=check_experts,
        limits=_limits,
        extras=lambda spec: (indices_of(spec), weights_of(spec), counts_of(spec)),
    )
)
