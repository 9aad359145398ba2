"""GELU: x times the normal distribution's integral up to x, by the error function (torch's default)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilescale.spec.epilogue import EPILOGUES, EPSILON, Epilogue, Math

STEEPEST = 1.13  # of its derivatives


def _apply(math: Math, x: Any, extras: Sequence[Any]) -> Any:
    return x * 0.5 * (1.0 + math.erf(x * 0.5**0.5))


def _room(math: Math, x: Any, room: Any, extras: Sequence[Any]) -> Any:
    # 1 + erf cancels where x is negative: the error is relative to x, not to the result.
    return room * STEEPEST + (abs(x) + room) * (4 * EPSILON)


EPILOGUES.register(Epilogue("gelu", "x * 0.5 * (1 + erf(x / sqrt(2)))", _apply, _room, "Gelu"))
