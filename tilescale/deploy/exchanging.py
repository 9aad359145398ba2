"""Exchanges by library calls: torch.distributed in the place of kernels, for what an operation says that ranks receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilescale.spec.declaration import Spec
from tilescale.spec.result import Result, result_of


class LibraryExchange:
    """An operation that only moves parts of tensors, on whatever device they are. Sizes may be others than the declared
    ones; shards are then taken to be equal."""

    def __init__(self, torch: Any, spec: Spec, group: Any, distributed: Any = None) -> None:
        """`distributed`: the collectives to use, where torch.distributed counts ranks otherwise (see members.py)."""
        self._torch, self._spec, self._group = torch, spec, group
        self._distributed = distributed or torch.distributed
        self._results = [result_of(spec, rank) for rank in range(spec.world)]

    def shape(self, local: Sequence[Any], rank: int) -> list[Any]:
        """The local output for a local operand of that shape. Sizes may be symbolic."""
        result = self._results[rank]
        found = list(local)
        factor = result.terms[0][0]
        if len(factor.ranks) > 1:
            found[factor.dim] = self._whole(local[factor.dim], rank)
        if result.size is not None:
            found[result.dim] = _shard(found[result.dim], rank, self._spec.world)[1]
        return [found[dim] for dim in result.order] if result.order else found

    def __call__(self, a: Any, out: Any) -> None:
        """Fill `out`. Collective; every rank passes shapes that go together."""
        rank = self._distributed.get_rank(self._group)
        if all(result == self._results[0] and len(result.terms[0][0].ranks) == 1 for result in self._results):
            self._broadcast(a, out, rank, self._results[0].terms[0][0].ranks[0])
        else:
            self._exchange(a, out, rank)

    def _whole(self, size: Any, rank: int) -> Any:
        """Of the joined dimension, from the shard of a rank."""
        spec, factor = self._spec, self._results[rank].terms[0][0]
        declared = spec.inputs[0].local_shape(rank, spec.world)[factor.dim]
        return spec.inputs[0].sizes[factor.dim] if size == declared else size * spec.world

    def _broadcast(self, a: Any, out: Any, rank: int, root: int) -> None:
        torch, group, distributed = self._torch, self._group, self._distributed
        whole = a.contiguous() if rank == root else torch.empty(a.shape, dtype=a.dtype, device=a.device)
        source = root if group is None else distributed.get_global_rank(group, root)
        distributed.broadcast(whole, source, group=group)
        out.copy_(whole)

    def _exchange(self, a: Any, out: Any, rank: int) -> None:
        torch, world = self._torch, self._spec.world
        given = [self._given(result, a, rank, target) for target, result in enumerate(self._results)]
        shapes = [self._taken(a, rank, source) for source in range(world)]
        sent = torch.cat([piece.reshape(-1) for piece in given])
        sizes = [_count(shape) for shape in shapes]
        received = torch.empty(sum(sizes), dtype=a.dtype, device=a.device)
        lengths = [piece.numel() for piece in given]
        self._distributed.all_to_all_single(received, sent, sizes, lengths, group=self._group)
        result = self._results[rank]
        parts = [part.view(shape) for part, shape in zip(received.split(sizes), shapes, strict=True) if shape is not None]
        joined = torch.cat(parts, result.terms[0][0].dim)
        out.copy_(joined.permute(result.order) if result.order else joined)

    def _given(self, result: Result, a: Any, rank: int, target: int) -> Any:
        """What `target` receives of this rank's operand."""
        if rank not in result.terms[0][0].ranks:
            return a.new_empty(0)
        if result.size is None:
            return a
        first, size = _shard(a.shape[result.dim], target, self._spec.world)
        return a.narrow(result.dim, first, size)

    def _taken(self, a: Any, rank: int, source: int) -> list[int] | None:
        """The shape of what this rank receives from `source`; None for nothing."""
        result = self._results[rank]
        factor = result.terms[0][0]
        if source not in factor.ranks:
            return None
        shape = list(a.shape)
        if len(factor.ranks) > 1:
            shape[factor.dim] = _shard(self._whole(shape[factor.dim], rank), source, self._spec.world)[1]
        if result.size is not None:
            shape[result.dim] = _shard(shape[result.dim], rank, self._spec.world)[1]
        return shape


def _count(shape: list[int] | None) -> int:
    if shape is None:
        return 0
    found = 1
    for size in shape:
        found *= size
    return found


def _shard(size: Any, rank: int, world: int) -> tuple[Any, Any]:
    """First index and size of a rank's shard, by DTensor's rule."""
    chunk = -(-size // world)
    first = min(size, rank * chunk)
    return first, min(chunk, size - first)
