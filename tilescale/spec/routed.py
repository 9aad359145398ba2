"""How far what comes out of dispatch and combine may be off, whose results depend on indices as much as on tensors."""

from __future__ import annotations

from tilescale.spec.declaration import Spec
from tilescale.spec.ops._counts import count_attribute
from tilescale.spec.ops._moe import combines, multiplies
from tilescale.spec.result import (
    ACCUMULATION_EPSILON,
    EPSILON,
    ONE_BYTE,
    SCALINGS,
    TENSOR_CORE_DEVIATION,
    Deviation,
    deviation,
    result_of,
)

KINDS = ("dispatch", "combine")  # of moves


def is_routed(spec: Spec) -> bool:
    """Whether how much goes where is known on the device alone."""
    return any(move.kind in KINDS for move in spec.operation.moves)


def routed_deviation(spec: Spec, integers: bool = False) -> Deviation:
    """Nothing for rows that only move; for products of experts as of any product, with a spread where each may be rounded
    before it is weighted. A combine rounds each product with a
    weight and each sum in fp32, which is exact for small integers, and the sum to the type of its output."""
    if multiplies(spec):
        added = spec.mnk[2] + (2 * count_attribute(spec, "top_k") if combines(spec) else 0)
        added += SCALINGS if spec.attribute("scales") else 0
        lost = TENSOR_CORE_DEVIATION if spec.inputs[0].dtype in ONE_BYTE else 0.0
        partial = spec.attribute("partial_dtype")
        spread = EPSILON[str(partial)] / 2 if partial else 0.0
        accumulated = 0.0 if integers else lost + added * ACCUMULATION_EPSILON
        return Deviation(EPSILON.get(spec.output.dtype, 0.0) / 2, accumulated, spread)
    if spec.operation.moves[0].kind == "dispatch":
        return Deviation()
    accumulated = 0.0 if integers else 2 * count_attribute(spec, "top_k") * ACCUMULATION_EPSILON
    return Deviation(EPSILON.get(spec.output.dtype, 0.0) / 2, accumulated)


def allowed_of(spec: Spec) -> Deviation:
    """Of any operation: what rank 0 may be off by, for random numbers."""
    return routed_deviation(spec) if is_routed(spec) else deviation(spec, result_of(spec, 0))
