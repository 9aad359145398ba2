"""Products of experts, each with a matrix of its own: what those behind a dispatch and before a combine share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.errors import SpecError
from tilescale.spec.ops._counts import count_attribute, largest
from tilescale.spec.ops._moe import check_experts, combines, moe_limits, tokens_of
from tilescale.spec.scales import SCALED
from tilescale.spec.tensor import ITEMSIZE

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec

MULTIPLIED = ("bfloat16", "float16", *SCALED)
STORED = ("bfloat16", "float16", "float32")


def check_products(spec: Spec) -> None:
    """Beside the rules of routing: a matrix an expert, as high as rows are wide. Raises SpecError."""
    check_experts(spec)
    rows, matrices = spec.inputs
    if matrices.ndim != 3 or matrices.sizes[0] != count_attribute(spec, "experts"):
        raise SpecError("experts have a matrix each: weights are (experts, K, N)", matrices.label,
                        f"declare {count_attribute(spec, 'experts')} matrices, sharded by experts")
    if matrices.sizes[1] != rows.sizes[1]:
        raise SpecError("the contraction sizes match: rows (M, K), weights (experts, K, N)",
                        f"{rows.label} and {matrices.label}", "give the matrices as (K, N)")
    if matrices.dtype != rows.dtype:
        raise SpecError("rows and weights have one dtype", f"{rows.dtype} and {matrices.dtype}", "convert one with torch")
    kind = spec.attribute("scales")
    if kind is not None and rows.dtype not in SCALED:
        raise SpecError(f"scales go with {' and '.join(SCALED)}", rows.dtype, "leave them out")


def product_flops(spec: Spec) -> int:
    """Those of a rank where tokens meet all ranks alike; the real number is known on the device alone."""
    tokens, (_, k, n) = tokens_of(spec).sizes[0], spec.inputs[1].sizes
    return 2 * largest(tokens, spec.world) * count_attribute(spec, "top_k") * k * n


def part_dtype(spec: Spec) -> str:
    """What products are stored and sent in before they are summed: float32, or what the declaration lets them be."""
    return str(spec.attribute("partial_dtype", "float32"))


def sent_scale_bytes(spec: Spec) -> int:
    """Bytes of the scales that travel with a token: where they are those of its row, or of 128 of K of it."""
    kind = spec.attribute("scales")
    if combines(spec) or kind in (None, "tensor"):
        return 0
    return spec.extras[0].tensor.sizes[1] * ITEMSIZE["float32"]


def product_limits(spec: Spec) -> str:
    """Why kernels cannot multiply this, and what to do instead; "" where they can."""
    if spec.inputs[0].dtype not in MULTIPLIED:
        return f"experts multiply {', '.join(MULTIPLIED)}: use moe_dispatch or moe_combine beside products of torch"
    if spec.inputs[0].itemsize == 1 and spec.inputs[1].order != "col":
        return 'bytes are multiplied along K: declare weights of float8 with order="col", each as a Linear holds it, (N, K)'
    if spec.output.dtype not in STORED:
        return f"products of experts are rounded to {', '.join(STORED)}: convert them with torch"
    if min(spec.mnk[1:]) < 1:
        return "products of nothing need no kernel: use moe_dispatch or moe_combine"
    return moe_limits(spec)
