"""Counts that several operations share. Uneven shards: the rank with most work, the rank that lacks most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.errors import SpecError, nearest
from tilescale.spec.tensor import Tensor, shard_sizes

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec

PARTIALS = ("bfloat16", "float16")  # what products of a rank may be rounded to before they are summed


def largest(size: int, world: int) -> int:
    """Largest shard of ``size`` elements."""
    return max(shard_sizes(size, world))


def lacking_bytes(tensor: Tensor, world: int, dim: int | None = None) -> int:
    """Bytes that the rank with the smallest shard along ``dim`` (default: the sharded one) does not hold."""
    size = tensor.sizes[(tensor.shard_dim or 0) if dim is None else dim]
    return tensor.nbytes // max(1, size) * (size - min(shard_sizes(size, world)))


def own_shard_bytes(tensor: Tensor, world: int, dim: int) -> int:
    """Bytes of the largest shard along ``dim``."""
    size = tensor.sizes[dim]
    return tensor.nbytes // max(1, size) * largest(size, world)


def no_flops(spec: Spec) -> int:
    return 0


def no_bytes(spec: Spec) -> int:
    return 0


def count_attribute(spec: Spec, name: str) -> int:
    """A positive integer attribute; SpecError where it is none."""
    value = spec.attribute(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{spec.op}: {name} is a positive integer", repr(value), "for example 8")
    return value


def segment_limits(spec: Spec) -> str:
    """Where kernels of products in segments end, and what to do instead."""
    if spec.then:
        return f"products of {spec.op} end without epilogues: apply {', '.join(spec.then)} with torch"
    if spec.inputs[0].itemsize == 1:
        return f"{spec.op} multiplies operands of two bytes: gather {spec.inputs[0].dtype} with all_gather, then multiply"
    return ""


def check_partial_dtype(spec: Spec) -> None:
    """SpecError for a ``partial_dtype`` that addends are never rounded to."""
    value = spec.attribute("partial_dtype", PARTIALS[0])
    if value not in PARTIALS:
        raise SpecError(f"partial_dtype of {spec.op} is {' or '.join(PARTIALS)}, or None for sums in fp32", repr(value),
                        nearest(str(value), PARTIALS))
