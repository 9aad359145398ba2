"""SiLU: x / (1 + exp(-x))."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilescale.spec.epilogue import EPILOGUES, Epilogue, Math
from tilescale.spec.epilogues._rules import silu, silu_room


def _apply(math: Math, x: Any, extras: Sequence[Any]) -> Any:
    return silu(math, x)


def _room(math: Math, x: Any, room: Any, extras: Sequence[Any]) -> Any:
    return silu_room(math, x, room)


EPILOGUES.register(Epilogue("silu", "x / (1 + exp(-x))", _apply, _room, "Silu"))
