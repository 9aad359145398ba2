"""The same as residual_rmsnorm, and x + residual is returned as well, as ``added``: the residual of the next layer.

It is rounded once, on its own: the norm is that of the sum in fp32, not of the rounded one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilescale.spec.epilogue import EPILOGUES, Epilogue, Math
from tilescale.spec.epilogues._norm import (
    added,
    added_room,
    check_norm,
    norm_operands,
    normalised,
    normalised_room,
)

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _apply(math: Math, x: Any, extras: Sequence[Any]) -> Any:
    return normalised(math, x, extras)


def _check(spec: Spec) -> None:
    check_norm(spec, "add_rmsnorm")


EPILOGUES.register(Epilogue(
    "add_rmsnorm", "(x + residual) / rms * gamma, and x + residual", _apply, normalised_room, "AddRmsnorm", norm_operands,
    _check, whole_rows=True, aside=Epilogue("added", "x + residual", added, added_room, "Addend", exact=True)))
