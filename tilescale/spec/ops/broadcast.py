"""Broadcast: one rank's tensor, on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.errors import SpecError
from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import no_flops
from tilescale.spec.ops._exchange import exchange_limits
from tilescale.spec.result import Factor, Result

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _link_bytes(spec: Spec) -> int:
    return spec.output.nbytes


def _check(spec: Spec) -> None:
    root = spec.attribute("root")
    if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < spec.world:
        raise SpecError("root is a rank", f"root={root!r}, world {spec.world}", f"use 0 to {spec.world - 1}")


def _holds(spec: Spec, rank: int) -> Result:
    return Result(((Factor(0, (int(spec.attribute("root") or 0),)),),))


OPERATIONS.register(
    Operation(
        name="broadcast",
        summary="every rank receives the root's tensor",
        flops=no_flops,
        link_bytes=_link_bytes,
        moves=(Move("exchange", 0, 0),),
        compute="copy",
        kernels=True,
        check=_check,
        limits=exchange_limits,
        holds=_holds,
    )
)
