"""Scales of float8 operands: A and B stand for their numbers times their scales, which are fp32 operands of their own.

Kinds, with the global shapes of `scale_a` and `scale_b` for A (M, K) and B (K, N):

- "tensor": (1,) and (1,), a number each
- "rowcol": (M, 1) and (1, N), a number a row of A and a column of B
- "block": (M, K / 128) and (K / 128, N / 128), rounded up: a number for 128 of K of a row of A, and for 128 x 128 of B

Where experts have matrices of their own, (experts, K, N), `scale_b` has as much for every one of them: (experts,),
(experts, N) or (experts, K / 128, N / 128), which lie where the matrices do.

A rank holds the scales of what it multiplies: those of a row of A that is gathered, or whose contraction ranks share, lie
on every rank; blocks along a shared contraction are cut as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilescale.errors import SpecError, nearest
from tilescale.spec.operand import SCALES, Operand
from tilescale.spec.tensor import Dim, Tensor, upper
from tilescale.spec.views import FullCol, FullRow, Replicate, Shard, View

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec

BLOCK = 128  # of K of a row of A, and both ways of B
KINDS = ("tensor", "rowcol", "block")
NAMES = ("scale_a", "scale_b")
SCALED = ("float8_e4m3fn", "float8_e5m2")

Shape = tuple[int | Dim, ...]


def shapes_of(kind: str, m: int | Dim, n: int | Dim, k: int | Dim) -> tuple[Shape, Shape]:
    """Global shapes of both scales."""
    blocks = -(-upper(k) // BLOCK)
    return {
        "tensor": ((1,), (1,)), "rowcol": ((m, 1), (1, n)), "block": ((m, blocks), (blocks, -(-upper(n) // BLOCK))),
    }[kind]


def _shapes(kind: str, a: Tensor, b: Tensor) -> tuple[Shape, Shape]:
    """Of a matrix, or of one for each expert."""
    of_a, of_b = shapes_of(kind, a.shape[0], b.shape[-1], a.shape[1])
    if b.ndim == 2:
        return of_a, of_b
    return of_a, (b.shape[0], *{"tensor": (), "rowcol": of_b[1:], "block": of_b}[kind])


def kind_of_scales(a: Tensor, b: Tensor, scales: object) -> str:
    """The kind that a declaration means by its name, or by the two shapes (or Tensors). SpecError where it is none."""
    for name, tensor in (("A", a), ("B", b)):
        if tensor.dtype not in SCALED:
            raise SpecError(f"scales go with {' and '.join(SCALED)}", f"{name} {tensor.dtype}", "leave them out")
    if isinstance(scales, str):
        if scales not in KINDS:
            raise SpecError("scales are one of " + ", ".join(KINDS), repr(scales), nearest(scales, KINDS))
        return scales
    given = _pair(scales)
    known = {kind: _shapes(kind, a, b) for kind in KINDS}
    for kind, shapes in known.items():
        if given == shapes:
            return kind
    rule = "; ".join(f"{kind}: {_shown(one)} and {_shown(other)}" for kind, (one, other) in known.items())
    raise SpecError(f"the shapes of scale_a and scale_b are, by kind, {rule}", " and ".join(map(_shown, given)),
                    "give scales these shapes, or the name of the kind")


def scale_operands(spec: Spec) -> tuple[Operand, ...]:
    """Both scales of a spec, none where it has none. SpecError where ranks would share a block."""
    kind = spec.attribute("scales")
    if kind is None:
        return ()
    if kind not in KINDS:
        raise SpecError("scales are one of " + ", ".join(KINDS), repr(kind), nearest(str(kind), KINDS))
    if any(epilogue.halves for epilogue in spec.epilogues):
        raise SpecError("scales go with epilogues that keep all columns", ", ".join(spec.then), "apply it to the output")
    a, b = spec.inputs
    shapes = shapes_of(str(kind), a.shape[0], b.shape[1], a.shape[1])
    if kind == "block":
        _check_cuts(spec, a, b)
    views = _views(str(kind), a, b, gathered=bool(spec.operation.moves) and spec.operation.moves[0].kind == "gather")
    return tuple(Operand(name, Tensor(shape, "float32", view), values=SCALES)
                 for name, shape, view in zip(NAMES, shapes, views, strict=True))


def scales_of_experts(spec: Spec) -> tuple[Operand, ...]:
    """Both scales of products of experts, none where there are none: those of rows or tokens lie where these do."""
    kind = spec.attribute("scales")
    if kind is None:
        return ()
    if kind not in KINDS:
        raise SpecError("scales are one of " + ", ".join(KINDS), repr(kind), nearest(str(kind), KINDS))
    a, b = spec.inputs
    of_a, of_b = _shapes(str(kind), a, b)
    view = Replicate if kind == "tensor" else FullRow
    return (Operand(NAMES[0], Tensor(of_a, "float32", view), values=SCALES),
            Operand(NAMES[1], Tensor(of_b, "float32", FullRow), values=SCALES))


def _views(kind: str, a: Tensor, b: Tensor, gathered: bool) -> tuple[View, View]:
    rows, deep, columns = (a.shard_dim == 0 and not gathered, kind == "block", b.shard_dim == 1)
    if kind == "tensor":
        return Replicate, Replicate
    of_a = FullRow if rows else FullCol if deep and a.shard_dim == 1 else Replicate
    of_b = FullCol if columns else FullRow if deep and b.shard_dim == 0 else Replicate
    return of_a, of_b


def _check_cuts(spec: Spec, a: Tensor, b: Tensor) -> None:
    """Whole blocks on every rank."""
    for name, tensor, dim in (("K", a, 1), ("K", b, 0), ("N", b, 1)):
        size = upper(tensor.shape[dim])
        if isinstance(tensor.view, Shard) and tensor.shard_dim == dim and size % (BLOCK * spec.world):
            raise SpecError(f"block scales are cut between ranks in whole blocks of {BLOCK}",
                            f"{name}={size} over {spec.world} ranks",
                            f"make {name} a multiple of {BLOCK * spec.world}, or scale rows and columns")


def _pair(scales: object) -> tuple[Shape, Shape]:
    pair = tuple(scales) if isinstance(scales, Sequence) else ()
    shapes = tuple(getattr(each, "shape", each) for each in pair)
    if len(shapes) != 2 or not all(isinstance(shape, Sequence) for shape in shapes):
        raise SpecError("scales are a kind, or the shapes of scale_a and scale_b", repr(scales),
                        f"one of {', '.join(KINDS)}, or such as ((8192, 1), (1, 4096))")
    return tuple(shapes[0]), tuple(shapes[1])


def _shown(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"
