"""Bias: a number for every column is added; where experts multiply, each has numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilescale.spec.epilogue import EPILOGUES, EPSILON, Epilogue, Math
from tilescale.spec.epilogues._rules import column_view, product_columns
from tilescale.spec.operand import Operand
from tilescale.spec.tensor import Tensor

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _apply(math: Math, x: Any, extras: Sequence[Any]) -> Any:
    return x + extras[0]


def _room(math: Math, x: Any, room: Any, extras: Sequence[Any]) -> Any:
    return room * (1 + EPSILON) + abs(x + extras[0]) * EPSILON


def _extras(spec: Spec) -> tuple[Operand, ...]:
    """(N,), sharded as the columns of the output are; (experts, N) with a row for each expert, which lies where its matrix
    does."""
    matrices = spec.inputs[-1]
    if matrices.ndim == 3 and spec.operation.compute == "gemm":
        return (Operand("bias", Tensor((matrices.shape[0], matrices.shape[2]), spec.output.dtype, matrices.view)),)
    return (Operand("bias", Tensor((product_columns(spec),), spec.output.dtype, column_view(spec))),)


EPILOGUES.register(Epilogue("bias", "a number a column is added", _apply, _room, "Bias", _extras, exact=True))
