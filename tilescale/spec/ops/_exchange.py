"""Limits that the operations share that only exchange parts of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def exchange_limits(spec: Spec) -> str:
    """Why kernels cannot exchange this, and what to do instead; "" where they can."""
    if spec.inputs[0].order != "row":
        return 'kernels exchange row-major tensors: declare it with order="row", or pass .contiguous() of torch'
    return ""
