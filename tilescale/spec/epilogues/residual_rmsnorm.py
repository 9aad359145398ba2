"""Residual and RMSNorm: x + residual, divided by the root of its mean square over a row, times gamma."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilescale.spec.epilogue import EPILOGUES, Epilogue, Math
from tilescale.spec.epilogues._norm import check_norm, norm_operands, normalised, normalised_room

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _apply(math: Math, x: Any, extras: Sequence[Any]) -> Any:
    return normalised(math, x, extras)


def _check(spec: Spec) -> None:
    check_norm(spec, "residual_rmsnorm")


EPILOGUES.register(Epilogue(
    "residual_rmsnorm", "(x + residual) / rms * gamma", _apply, normalised_room, "ResidualRmsnorm", norm_operands, _check,
    whole_rows=True))
