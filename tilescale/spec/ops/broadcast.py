"""Broadcast: one rank's tensor, on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.errors import SpecError
from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import no_flops

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def _link_bytes(spec: Spec) -> int:
    return spec.output.nbytes


def _check(spec: Spec) -> None:
    root = spec.attribute("root")
    if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < spec.world:
        raise SpecError("root is a rank", f"root={root!r}, world {spec.world}", f"use 0 to {spec.world - 1}")


OPERATIONS.register(
    Operation(
        name="broadcast",
        summary="every rank receives the root's tensor",
        flops=no_flops,
        link_bytes=_link_bytes,
        moves=(Move("broadcast", 0, 0),),
        compute="copy",
        remedy="broadcast has no kernels: use torch.distributed.broadcast",
        check=_check,
    )
)
