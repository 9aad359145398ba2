"""Expert parallelism, the way out: each token goes to the ranks of its experts (ragged, sizes known on the device)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.errors import SpecError
from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import count_attribute, largest, no_flops

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec


def check_experts(spec: Spec) -> None:
    """Experts lie evenly on the ranks, and a token goes to at most all of them."""
    experts, top_k = count_attribute(spec, "experts"), count_attribute(spec, "top_k")
    if experts % spec.world:
        raise SpecError("experts lie evenly on the ranks", f"{experts} over {spec.world}", "use another world")
    if top_k > experts:
        raise SpecError("top_k is at most the number of experts", f"top_k={top_k}, experts={experts}", "correct it")


def uniform_bytes(spec: Spec, tokens: int, hidden: int, itemsize: int) -> int:
    """Bytes a rank exchanges when the routing is uniform; the real number is known on the device alone."""
    routed = largest(tokens, spec.world) * count_attribute(spec, "top_k") * hidden * itemsize
    return routed * (spec.world - 1) // spec.world


def _link_bytes(spec: Spec) -> int:
    tokens, hidden = spec.inputs[0].sizes
    return uniform_bytes(spec, tokens, hidden, spec.inputs[0].itemsize)


OPERATIONS.register(
    Operation(
        name="moe_dispatch",
        summary="send each token to the ranks of its experts",
        flops=no_flops,
        link_bytes=_link_bytes,
        moves=(Move("dispatch", 0, 0),),
        compute="copy",
        remedy="moe_dispatch has no kernels: sort tokens by expert, then use torch.distributed.all_to_all_single",
        check=check_experts,
    )
)
