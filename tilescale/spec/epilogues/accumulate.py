"""Accumulation: the result is added to a tensor of its shape, ``addend``; with ``out`` in the same memory, in place.

Gradient accumulation into fp32: ``matmul(a, b, ..., out_dtype="float32", then=["accumulate"])``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilescale.spec.epilogue import EPILOGUES, EPSILON, Epilogue, Math
from tilescale.spec.operand import Operand

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _apply(math: Math, x: Any, extras: Sequence[Any]) -> Any:
    return x + extras[0]


def _room(math: Math, x: Any, room: Any, extras: Sequence[Any]) -> Any:
    return room * (1 + EPSILON) + abs(x + extras[0]) * EPSILON


def _extras(spec: Spec) -> tuple[Operand, ...]:
    return (Operand("addend", spec.output, rows=True),)


EPILOGUES.register(Epilogue(
    "accumulate", "a tensor of the output's shape is added", _apply, _room, "Addend", _extras, exact=True, linear=True))
