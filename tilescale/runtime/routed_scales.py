"""Scales of products of experts, for checkers: numbers for every rank, and as wide as what they scale.

What is said of arrays here holds for those of numpy and tensors of torch alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilescale.runtime.check import Array, random_input
from tilescale.spec.declaration import Spec
from tilescale.spec.scales import BLOCK, scales_of_experts
from tilescale.spec.views import ReplicateView

Scales = dict[str, Array]


def drawn_scales(spec: Spec, rng: np.random.Generator, exact: bool) -> list[Scales]:
    """Both scales on every rank, fp32; empty where there are none. `exact`: powers of two."""
    found: list[Scales] = [{} for _ in range(spec.world)]
    for operand in scales_of_experts(spec):
        alike = isinstance(operand.tensor.view, ReplicateView)
        for rank, scales in enumerate(found):
            drawn = random_input(rng, operand.tensor.local_shape(rank, spec.world), exact)
            drawn = np.where(drawn > 0, 2.0, np.where(drawn < 0, 0.5, 1.0)) if exact else np.abs(drawn) / 2 + 0.25
            scales[operand.name] = found[0][operand.name] if alike and rank else drawn.astype(np.float32)
    return found


def as_bytes(scales: Scales) -> dict[str, bytes]:
    """By buffer."""
    return {name: values.tobytes() for name, values in scales.items()}


def scaled_rows(spec: Spec, rows: Any, scales: Any) -> Any:
    """`rows` (M, K) times their scales, of the shape of scale_a for M rows."""
    kind = spec.attribute("scales")
    if kind is None:
        return rows
    return rows * (scales[:, _blocks(rows.shape[1])] if kind == "block" else scales)


def scaled_matrices(spec: Spec, matrices: Any, scales: Any) -> Any:
    """`matrices` (experts, K, N) times their scales, of the shape of scale_b for these experts."""
    kind = spec.attribute("scales")
    if kind is None:
        return matrices
    if kind == "tensor":
        return matrices * scales[:, None, None]
    if kind == "rowcol":
        return matrices * scales[:, None, :]
    return matrices * scales[:, _blocks(matrices.shape[1])][:, :, _blocks(matrices.shape[2])]


def _blocks(size: int) -> list[int]:
    return [at // BLOCK for at in range(size)]
