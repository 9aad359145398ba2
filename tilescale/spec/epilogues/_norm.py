"""What epilogues with a residual and RMSNorm share: y = x + residual, over the root of its mean square, times gamma."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilescale.errors import SpecError
from tilescale.spec.epilogue import EPSILON, Math
from tilescale.spec.operand import Operand
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import Replicate

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec

NORM_EPSILON = 2.0**-20  # added to the mean square: 9.5e-7


def _scale(math: Math, y: Any) -> Any:
    return 1.0 / math.sqrt(math.mean(y * y) + NORM_EPSILON)


def added(math: Math, x: Any, extras: Sequence[Any]) -> Any:
    """y, of a residual and gamma."""
    return x + extras[0]


def added_room(math: Math, x: Any, room: Any, extras: Sequence[Any]) -> Any:
    """One addition in fp32."""
    return room * (1 + EPSILON) + abs(x + extras[0]) * EPSILON


def normalised(math: Math, x: Any, extras: Sequence[Any]) -> Any:
    """y / rms * gamma."""
    y = added(math, x, extras)
    return y * _scale(math, y) * extras[1]


def normalised_room(math: Math, x: Any, room: Any, extras: Sequence[Any]) -> Any:
    """A row's scale is off by half of what its mean square is off by, relative; the mean adds up in fp32."""
    y, off = added(math, x, extras), added_room(math, x, room, extras)
    square, scale = math.mean(y * y) + NORM_EPSILON, _scale(math, y)
    relative = (math.mean(abs(y) * off) + math.mean(off * off)) / square + (y.shape[-1] + 8) * EPSILON
    return abs(extras[1]) * scale * (off + abs(y) * relative + off * relative)


def norm_operands(spec: Spec) -> tuple[Operand, ...]:
    """A residual as the output, and a number a column."""
    gamma = Tensor((spec.output.shape[-1],), spec.output.dtype, Replicate)
    return Operand("residual", spec.output, rows=True), Operand("gamma", gamma)


def check_norm(spec: Spec, name: str) -> None:
    """SpecError where rows are not whole where they are summed, or other epilogues are named."""
    moves = spec.operation.moves
    if not moves or moves[0].kind not in ("reduce_scatter", "all_reduce"):
        raise SpecError(f"{name} follows a sum over ranks: all_reduce, reduce_scatter, gemm_ar or gemm_rs",
                        spec.op, "apply it with torch to the output")
    if spec.output.ndim != 2 or spec.output.shard_dim not in (None, 0):
        raise SpecError(f"{name} has whole rows of a matrix on a rank", spec.output.label,
                        "flatten the leading dimensions, and shard rows")
    if spec.then != (name,):
        raise SpecError(f"{name} is the only epilogue", list(spec.then), "apply others with torch")
