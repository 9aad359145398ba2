"""Views: how a global tensor lies on the ranks of a mesh axis.

The words are those of DTensor: ``Shard(dim)``, ``Replicate`` (also ``Replica``), ``Partial`` (every rank holds an
addend of the sum), and ``Block`` for a matrix cut both ways over a 2-D mesh. ``FullRow`` keeps rows whole
(``Shard(0)``), ``FullCol`` keeps columns whole (``Shard(-1)``). DTensor placements are accepted wherever a view is,
without importing torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilescale.errors import SpecError, nearest

V = TypeVar("V", bound="View")


@dataclass(frozen=True)
class View:
    """Base of the views. ``mesh_axis`` names the mesh axis it lies on; None is the only axis there is."""

    mesh_axis: str | None = dataclasses.field(default=None, kw_only=True)

    def on(self: V, mesh_axis: str) -> V:
        """The same view on a named axis of the mesh."""
        if not isinstance(mesh_axis, str) or not mesh_axis:
            raise SpecError("a mesh axis is a non-empty name", repr(mesh_axis), 'for example FullRow.on("tp")')
        return dataclasses.replace(self, mesh_axis=mesh_axis)

    def bare(self: V) -> V:
        """The same view without its mesh axis."""
        return dataclasses.replace(self, mesh_axis=None)

    @property
    def label(self) -> str:
        """The name a user would write, such as ``FullRow`` or ``Shard(1).on('tp')``."""
        name = type(self).__name__.removesuffix("View")
        return name + (f".on({self.mesh_axis!r})" if self.mesh_axis else "")


@dataclass(frozen=True)
class Shard(View):
    """Dimension ``dim`` is cut over the ranks, by DTensor's rule for uneven sizes; negative counts from the end."""

    dim: int

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int):
            raise SpecError("Shard(dim) takes an integer dimension", repr(self.dim), "for example Shard(0)")

    @property
    def label(self) -> str:
        name = {0: "FullRow", -1: "FullCol"}.get(self.dim, f"Shard({self.dim})")
        return name + (f".on({self.mesh_axis!r})" if self.mesh_axis else "")


@dataclass(frozen=True)
class ReplicateView(View):
    """Every rank holds the whole tensor."""

    def __call__(self) -> ReplicateView:
        """``Replicate()``, as DTensor spells it."""
        return self


@dataclass(frozen=True)
class PartialView(View):
    """Every rank holds an addend; their sum is the tensor."""

    def __call__(self, reduce_op: str = "sum") -> PartialView:
        """``Partial()``, as DTensor spells it; sums only."""
        _check_reduction(reduce_op)
        return self


@dataclass(frozen=True)
class BlockView(View):
    """A matrix on a 2-D mesh: rows cut over the first mesh axis, columns over the second."""

    def __call__(self) -> BlockView:
        return self


FullRow = Shard(0)
FullCol = Shard(-1)
Replicate = Replica = ReplicateView()
Partial = PartialView()
Block = BlockView()

NAMED: dict[str, View] = {
    "FullRow": FullRow,
    "FullCol": FullCol,
    "Replicate": Replicate,
    "Replica": Replica,
    "Partial": Partial,
    "Block": Block,
}


def parse_view(text: str) -> View:
    """The view a recipe or a command line names: ``FullRow``, ``FullCol``, ``Replicate``, ``Shard(1)``, ...

    Raises SpecError naming the known ones.
    """
    word = text.strip()
    if word in NAMED:
        return NAMED[word]
    if word.startswith("Shard(") and word.endswith(")"):
        inner = word[len("Shard(") : -1].strip()
        if inner.removeprefix("-").isdigit():
            return Shard(int(inner))
    raise SpecError("a view is known", repr(text), nearest(word, [*NAMED, "Shard(dim)"]))


def as_view(value: object) -> View:
    """``value`` as a View: a View, a view's name, a DTensor placement, or a sequence of placements (one a mesh axis).

    In a sequence, the axes that are not ``Replicate`` matter: one gives that view on that axis (named by its index,
    as ``Shard(0).on("1")``), ``(Shard(0), Shard(1))`` gives Block. Raises SpecError for anything else.
    """
    if isinstance(value, View):
        return value
    if isinstance(value, str):
        return parse_view(value)
    if isinstance(value, Sequence):
        return _from_placements([as_view(item) for item in value])
    return _from_placement(value)


def _from_placement(value: object) -> View:
    # By class name, so that torch is never imported for it. Subclasses that change the layout have names of their own.
    kind = type(value).__name__
    if kind == "Shard" and isinstance(getattr(value, "dim", None), int):
        return Shard(int(getattr(value, "dim", 0)))
    if kind == "Replicate":
        return Replicate
    if kind == "Partial":
        _check_reduction(getattr(value, "reduce_op", "sum"))
        return Partial
    if value is Shard:
        raise SpecError("Shard names its dimension", "Shard", "write Shard(0) (FullRow) or Shard(-1) (FullCol)")
    raise SpecError(
        "a view is a tilescale view or a DTensor placement (Shard, Replicate, Partial)",
        f"{kind}: {value!r}",
        nearest(kind, [*NAMED, "Shard(dim)"]),
    )


def _check_reduction(reduce_op: object) -> None:
    if reduce_op != "sum":
        raise SpecError("a pending reduction is a sum", f"reduce_op={reduce_op!r}", "reduce with torch first")


def _from_placements(views: list[View]) -> View:
    if len(views) == 1:
        return views[0]
    cut = [(axis, view) for axis, view in enumerate(views) if not isinstance(view, ReplicateView)]
    if not cut:
        return Replicate
    if len(cut) == 1:
        axis, view = cut[0]
        return view if view.mesh_axis else view.on(str(axis))
    shards = [view.dim if isinstance(view, Shard) else None for _, view in cut]
    if len(views) == 2 and shards in ([0, 1], [0, -1]):
        return Block
    raise SpecError(
        "placements on several mesh axes are one view with the rest Replicate, or (Shard(0), Shard(1)) on a 2-D mesh",
        ", ".join(view.label for view in views),
        "redistribute one axis first",
    )
