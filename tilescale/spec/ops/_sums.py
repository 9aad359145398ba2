"""Limits that the operations with sums over ranks share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec

ADDED = ("bfloat16", "float16", "float32")


def sum_limits(spec: Spec) -> str:
    """Why kernels cannot add this up, and what to do instead; "" where they can."""
    operand, output = spec.inputs[0], spec.output
    if output.dtype not in ADDED or (spec.operation.compute == "copy" and operand.dtype not in ADDED):
        return f"kernels add {', '.join(ADDED)}: convert the tensor, or reduce it with torch.distributed"
    if operand.order != "row" or output.order != "row":
        return 'kernels add row-major tensors: declare them with order="row", or pass .contiguous()'
    if output.shard_dim not in (None, 0):
        return "kernels scatter rows: declare the output FullRow, permuted by torch where it is not"
    return ""
