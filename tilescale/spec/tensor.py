"""Tensors as a declaration sees them: global shape, dtype, view, and the order of the local memory."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass

from tilescale.errors import SpecError, nearest
from tilescale.spec.views import BlockView, Replicate, Shard, View, as_view

ITEMSIZE = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}
ORDERS = ("row", "col")


@dataclass(frozen=True)
class Dim:
    """A size known only at run time, in [low, high]. Counts that need a number take ``high``."""

    name: str
    low: int
    high: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise SpecError("a Dim is named by an identifier", repr(self.name), 'for example Dim("M", 1, 16384)')
        for bound in (self.low, self.high):
            if isinstance(bound, bool) or not isinstance(bound, int):
                raise SpecError("bounds of a Dim are integers", repr(bound), 'for example Dim("M", 1, 16384)')
        if not 1 <= self.low <= self.high:
            raise SpecError("a Dim has 1 <= low <= high", f"low={self.low}, high={self.high}", "correct the bounds")

    def __str__(self) -> str:
        return f"{self.name}<={self.high}"


def upper(size: int | Dim) -> int:
    """The size itself, or the upper bound of a Dim."""
    return size.high if isinstance(size, Dim) else size


def shard_sizes(size: int, world: int) -> tuple[int, ...]:
    """Sizes of the ``world`` shards of ``size``: ceil(size / world) each, the last ones smaller or empty.

    This is DTensor's rule (``torch.chunk`` with empty shards appended).
    """
    if world < 1:
        raise SpecError("a world has at least one rank", world, "use the topology's world")
    chunk = -(-size // world)
    return tuple(max(0, min(chunk, size - rank * chunk)) for rank in range(world))


def shard_offset(size: int, rank: int, world: int) -> int:
    """First index of ``rank``'s shard; ``size`` where the shard is empty."""
    return min(size, rank * -(-size // world))


def square_mesh(world: int) -> tuple[int, int]:
    """(rows, cols) of the most square 2-D mesh of ``world`` ranks, with rows <= cols."""
    rows = max(r for r in range(1, math.isqrt(world) + 1) if world % r == 0)
    return rows, world // rows


@dataclass(frozen=True)
class Tensor:
    """A global tensor.

    ``shape``: ints or Dims; with a 0, it holds nothing. ``dtype``: a name in ``ITEMSIZE`` or a torch.dtype. ``view``: see
    views.py; kept in canonical form, so that equal layouts are equal values: ``Shard(0)`` for the first dimension,
    ``Shard(-1)`` for the last of several, a positive index between (``shard_dim`` gives the non-negative index).
    ``order``: memory order of the local matrix, ``"row"`` (the last dimension is contiguous) or ``"col"`` (the one before
    is; of matrices, and of stacks of them (experts, K, N), which then lie as (experts, N, K) one behind the other).
    Raises SpecError.
    """

    shape: tuple[int | Dim, ...]
    dtype: str
    view: View = Replicate
    order: str = "row"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape(self.shape))
        object.__setattr__(self, "dtype", as_dtype(self.dtype))
        object.__setattr__(self, "view", _canonical_view(as_view(self.view), self.ndim))
        if self.order not in ORDERS:
            raise SpecError('the order of local memory is "row" or "col"', repr(self.order), 'leave it out for "row"')
        if self.order == "col" and self.ndim not in (2, 3):
            raise SpecError('order "col" is for matrices and stacks of them', f"{self.ndim} dimensions", 'use order="row"')

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZE[self.dtype]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The global shape in numbers; a Dim counts with its upper bound."""
        return tuple(upper(size) for size in self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of the global tensor."""
        return self.numel * self.itemsize

    @property
    def shard_dim(self) -> int | None:
        """Non-negative index of the sharded dimension; None where the view is not a Shard."""
        return self.view.dim % self.ndim if isinstance(self.view, Shard) else None

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(size for size in self.shape if isinstance(size, Dim))

    @staticmethod
    def shard_sizes(dim_size: int, world: int) -> tuple[int, ...]:
        """Sizes of all shards of a dimension by DTensor's rule; see the function of that name."""
        return shard_sizes(dim_size, world)

    def local_shape(self, rank: int, world: int, mesh: tuple[int, int] | None = None) -> tuple[int, ...]:
        """Shape of ``rank``'s part; a Dim counts with its upper bound. ``mesh``: (rows, cols) for Block."""
        return tuple(size for _, size in self._local(rank, world, mesh))

    def local_offset(self, rank: int, world: int, mesh: tuple[int, int] | None = None) -> tuple[int, ...]:
        """Global index of the first element of ``rank``'s part."""
        return tuple(offset for offset, _ in self._local(rank, world, mesh))

    def _local(self, rank: int, world: int, mesh: tuple[int, int] | None) -> tuple[tuple[int, int], ...]:
        if not 0 <= rank < world:
            raise SpecError("a rank is in [0, world)", f"rank {rank}, world {world}", "use ranks of the topology")
        cuts: dict[int, tuple[int, int]] = {}
        if self.shard_dim is not None:
            cuts[self.shard_dim] = (rank, world)
        elif isinstance(self.view, BlockView):
            rows, cols = mesh or square_mesh(world)
            cuts = {0: (rank // cols, rows), 1: (rank % cols, cols)}
        return tuple(
            (shard_offset(size, *cuts[dim]), shard_sizes(size, cuts[dim][1])[cuts[dim][0]])
            if dim in cuts
            else (0, size)
            for dim, size in enumerate(self.sizes)
        )

    def with_view(self, view: View) -> Tensor:
        return dataclasses.replace(self, view=view)

    def bind(self, **sizes: int) -> Tensor:
        """The tensor with each named Dim replaced by a size within its bounds; other Dims stay. Raises SpecError."""
        return dataclasses.replace(self, shape=tuple(_bound(size, sizes) for size in self.shape))

    @property
    def label(self) -> str:
        """Such as ``8192x28672 bfloat16 FullCol col``."""
        order = " col" if self.order == "col" else ""
        return f"{'x'.join(map(str, self.shape))} {self.dtype} {self.view.label}{order}"


def as_dtype(value: object) -> str:
    """The name of a dtype given as a name or a torch.dtype; SpecError names the known ones."""
    name = str(value).removeprefix("torch.")
    if name not in ITEMSIZE:
        raise SpecError("a dtype is known", repr(value), nearest(name, ITEMSIZE))
    return name


def _bound(size: int | Dim, sizes: dict[str, int]) -> int | Dim:
    if not isinstance(size, Dim) or size.name not in sizes:
        return size
    value = sizes[size.name]
    if not size.low <= value <= size.high:
        raise SpecError(f"{size.name} is in [{size.low}, {size.high}]", value, "declare a wider Dim")
    return value


def _shape(value: object) -> tuple[int | Dim, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SpecError("a shape is a sequence of integers or Dims", repr(value), "for example (8192, 28672)")
    shape = tuple(_size(item) for item in value)
    if not shape:
        raise SpecError("a tensor has at least one dimension", "()", "give a shape such as (8192, 28672)")
    return shape


def _size(value: object) -> int | Dim:
    if isinstance(value, Dim):
        return value
    rule = "a size is an integer from 0 up or a Dim"
    if isinstance(value, bool):
        raise SpecError(rule, repr(value), 'for example 8192 or Dim("M", 1, 16384)')
    try:
        size = int(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        raise SpecError(rule, repr(value), 'for example 8192 or Dim("M", 1, 16384)') from None
    if size < 0:
        raise SpecError(rule, size, "correct it")
    return size


def _canonical_view(view: View, ndim: int) -> View:
    if isinstance(view, BlockView) and ndim != 2:
        raise SpecError("a Block view is for matrices", f"{ndim} dimensions", "use Shard(dim)")
    if not isinstance(view, Shard):
        return view
    if not -ndim <= view.dim < ndim:
        raise SpecError(
            f"Shard(dim) of a tensor with {ndim} dimensions has {-ndim} <= dim < {ndim}",
            view.label,
            f"use Shard(0) to Shard({ndim - 1})",
        )
    dim = view.dim % ndim
    return dataclasses.replace(view, dim=-1 if dim == ndim - 1 and dim > 0 else dim)
