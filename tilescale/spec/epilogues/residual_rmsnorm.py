"""Residual and RMSNorm: x + residual, divided by the root of its mean square over a row, times gamma."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilescale.errors import SpecError
from tilescale.spec.epilogue import EPILOGUES, EPSILON, Epilogue, Math
from tilescale.spec.operand import Operand
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import Replicate

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec

NORM_EPSILON = 2.0**-20  # added to the mean square: 9.5e-7


def _scale(math: Math, y: Any) -> Any:
    return 1.0 / math.sqrt(math.mean(y * y) + NORM_EPSILON)


def _apply(math: Math, x: Any, extras: Sequence[Any]) -> Any:
    residual, gamma = extras
    y = x + residual
    return y * _scale(math, y) * gamma


def _room(math: Math, x: Any, room: Any, extras: Sequence[Any]) -> Any:
    """A row's scale is off by half of what its mean square is off by, relative; the mean adds up in fp32."""
    residual, gamma = extras
    y = x + residual
    off = room * (1 + EPSILON) + abs(y) * EPSILON
    square, scale = math.mean(y * y) + NORM_EPSILON, _scale(math, y)
    relative = (math.mean(abs(y) * off) + math.mean(off * off)) / square + (y.shape[-1] + 8) * EPSILON
    return abs(gamma) * scale * (off + abs(y) * relative + off * relative)


def _extras(spec: Spec) -> tuple[Operand, ...]:
    gamma = Tensor((spec.output.shape[-1],), spec.output.dtype, Replicate)
    return Operand("residual", spec.output, rows=True), Operand("gamma", gamma)


def _check(spec: Spec) -> None:
    moves = spec.operation.moves
    if not moves or moves[0].kind not in ("reduce_scatter", "all_reduce"):
        raise SpecError("residual_rmsnorm follows a sum over ranks: all_reduce, reduce_scatter, gemm_ar or gemm_rs",
                        spec.op, "apply it with torch to the output")
    if spec.output.ndim != 2 or spec.output.shard_dim not in (None, 0):
        raise SpecError("residual_rmsnorm has whole rows of a matrix on a rank", spec.output.label,
                        "flatten the leading dimensions, and shard rows")
    if spec.then != ("residual_rmsnorm",):
        raise SpecError("residual_rmsnorm is the only epilogue", list(spec.then), "apply others with torch")


EPILOGUES.register(Epilogue(
    "residual_rmsnorm", "(x + residual) / rms * gamma", _apply, _room, "ResidualRmsnorm", _extras, _check,
    whole_rows=True))
