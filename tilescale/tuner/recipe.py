"""Recipes: TOML files that declare workloads on a topology, and how long to search.

    title = "..."
    [topology]                 # kind "real" (default), "shared_gpu" or "scale_model"; name or file, ranks
    [[workload]]               # name; a, b, out | x, w, out | x, to | x, k | tokens, experts, top_k | tokens, weights,
                               # top_k | combined, experts, top_k (the output of a moe_combine) | combined, weights,
                               # top_k; and op to check the derivation against
    [space]                    # optional: knob = [allowed values]
    [tune]                     # optional: trials, seconds, seed, strategy
    [export]                   # optional: dir, relative to the recipe

Tensors are tables: shape, dtype, view and order. What cannot be printed of a name or a title is written as escapes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilescale.errors import RecipeError, TilescaleError, nearest, printable
from tilescale.schedules.knob import Value, check_restriction
from tilescale.spec.derive import OPERATIONS, TABLE
from tilescale.spec.op import (
    Spec,
    linear,
    matmul,
    moe_combine,
    moe_dispatch,
    moe_dispatch_gemm,
    moe_gemm_combine,
    redistribute,
    shift,
)
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.tuner.strategy import STRATEGIES

KINDS = ("real", "shared_gpu", "scale_model")
_TOP = ("title", "topology", "workload", "space", "tune", "export")
_TENSOR = ("shape", "dtype", "view", "order")
_COMMON = ("name", "op", "inputs", "deterministic", "then", "out_dtype")
# The keys that make a workload, by the declaration they stand for.
DECLARATIONS: dict[str, tuple[str, ...]] = {
    "matmul": ("a", "b", "out", "algorithm", "partial_dtype", "scales", "gathered"),
    "linear": ("x", "w", "out", "partial_dtype", "scales", "gathered"),
    "redistribute": ("x", "to", "transpose", "root"),
    "shift": ("x", "k"),
    "moe_dispatch": ("tokens", "experts", "top_k", "routing"),
    "moe_dispatch_gemm": ("tokens", "weights", "top_k", "routing", "scales"),
    "moe_combine": ("combined", "experts", "top_k", "routing"),
    "moe_gemm_combine": ("combined", "weights", "top_k", "routing", "partial_dtype", "scales"),
}


def _combine(combined: Tensor, top_k: int, topology: Topology, **rest: Any) -> Spec:
    """A combine by its output: the rows of experts follow from it."""
    rows = Tensor((topology.world * combined.sizes[0] * top_k, *combined.sizes[1:]), combined.dtype, combined.view)
    return moe_combine(rows, combined.sizes[0], top_k=top_k, topology=topology, **rest)


def _multiply_and_combine(combined: Tensor, weights: Tensor, top_k: int, topology: Topology, **rest: Any) -> Spec:
    """The same with products before it; rows have the type of the matrices."""
    rows = Tensor((topology.world * combined.sizes[0] * top_k, weights.shape[1]), weights.dtype, combined.view)
    out_dtype = rest.pop("out_dtype", combined.dtype)
    return moe_gemm_combine(rows, weights, combined.sizes[0], top_k, topology, out_dtype=out_dtype, **rest)


_DECLARES = {"matmul": matmul, "linear": linear, "redistribute": redistribute, "shift": shift,
             "moe_dispatch": moe_dispatch, "moe_dispatch_gemm": moe_dispatch_gemm, "moe_combine": _combine,
             "moe_gemm_combine": _multiply_and_combine}


@dataclass(frozen=True)
class Tuning:
    """How long to search. None: as the command line or `tune` says."""

    trials: int | None = None
    seconds: float | None = None
    seed: int | None = None
    strategy: str | None = None


@dataclass(frozen=True)
class Recipe:
    """A parsed recipe. `export`: folder of the bundle, or None."""

    path: Path
    title: str
    workloads: tuple[tuple[str, Spec], ...]
    restrict: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    tuning: Tuning = Tuning()
    export: Path | None = None

    @property
    def specs(self) -> dict[str, Spec]:
        return dict(self.workloads)

    def spec(self, name: str) -> Spec:
        """One workload; RecipeError names the others."""
        if name not in self.specs:
            raise RecipeError(f"{self.path} has the workload", repr(name), nearest(name, self.specs))
        return self.specs[name]


def read(path: str | Path) -> Recipe:
    """The recipe in a file. Raises RecipeError, or the error of the declaration, with the file and the place in it."""
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"recipe {path} can be read", error.strerror, "check the path") from None
    except ValueError as error:
        raise RecipeError(f"recipe {path} is TOML", str(error), "correct the syntax") from None
    except RecursionError:
        raise RecipeError(f"recipe {path} is TOML", "brackets in brackets", "nest less deeply") from None
    try:
        return parse(data, path)
    except TilescaleError as error:
        raise type(error)(f"recipe {path}: {error.rule}", error.actual, error.remedy) from None


def parse(data: Mapping[str, Any], path: Path) -> Recipe:
    """The recipe in parsed TOML; `path` places relative files. Errors are those of `read`, without the file."""
    _known(data, _TOP, "a recipe")
    topology = topology_of(_table(data.get("topology"), "[topology]"), path.parent)
    workloads: dict[str, Spec] = {}
    for number, entry in enumerate(_tables(data.get("workload"))):
        name = printable(_text(entry.get("name", f"workload{number}"), "name of a workload"))
        if name in workloads:
            raise RecipeError("names of workloads are different", repr(name), "rename one")
        workloads[name] = _within(f"workload {name!r}", workload_of, entry, topology)
    restrict = _restriction(data.get("space", {}))
    export = _table(data.get("export", {}), "[export]")
    _known(export, ("dir",), "[export]")
    folder = path.parent / _text(export["dir"], "[export] dir") if "dir" in export else None
    title = printable(_text(data.get("title", path.stem), "title"))
    return Recipe(path, title, tuple(workloads.items()), restrict, _tuning(data.get("tune", {})), folder)


def topology_of(table: Mapping[str, Any], folder: Path) -> Topology:
    """The topology that a [topology] table names; a `file` is relative to `folder`."""
    _known(table, ("kind", "name", "ranks", "file"), "[topology]")
    kind = table.get("kind", "real")
    if kind not in KINDS:
        raise RecipeError(f"[topology] kind is one of {', '.join(KINDS)}", repr(kind), nearest(kind, KINDS))
    ranks = table.get("ranks")
    if ranks is not None and (isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1):
        raise RecipeError("[topology] ranks is an integer from 1", repr(ranks), "for example ranks = 4")
    if "file" in table:
        if kind != "real" or "name" in table:
            raise RecipeError("[topology] file goes without kind and name", sorted(table), "give the file alone")
        topology = Topology.load(folder / _text(table["file"], "[topology] file"))
        return topology if ranks is None else topology.with_ranks(ranks)
    if kind == "shared_gpu":
        return Topology.shared_gpu(_ranks(ranks, kind))
    if kind == "scale_model":
        return Topology.scale_model(_name(table), _ranks(ranks, kind))
    return Topology.named(_name(table), ranks)


def workload_of(entry: Mapping[str, Any], topology: Topology) -> Spec:
    """The spec that a [[workload]] table declares."""
    declaration = _declaration(entry)
    own, needed = DECLARATIONS[declaration], _needed(declaration)
    _known(entry, (*_COMMON, *own), f"a {declaration} workload")
    for key in needed:
        if key not in entry:
            others = f"; it may have {', '.join(own[len(needed):])}" if own[len(needed):] else ""
            raise RecipeError(f"a {declaration} workload has all its keys", f"no {key}",
                              f"give {', '.join(needed)}{others}")
    arguments = {key: entry[key] for key in (*_COMMON[2:], *own) if key in entry}
    for key in ("a", "b", "x", "w", "tokens", "weights", "combined"):
        if key in arguments:
            given = arguments[key]
            several = key == "b" and isinstance(given, list)
            arguments[key] = [_within(key, _tensor, each) for each in given] if several else _within(key, _tensor, given)
    if declaration in ("redistribute", "shift"):
        arguments["tensor"] = arguments.pop("x")
    spec: Spec = _DECLARES[declaration](topology=topology, **arguments)  # type: ignore[operator]
    if "op" in entry and entry["op"] != spec.op:
        raise RecipeError(
            "op is what the views declare",
            f"op = {entry['op']!r}, the views say {spec.op!r}",
            "correct op, or the views",
        )
    return spec


def _needed(declaration: str) -> tuple[str, ...]:
    """The keys that a declaration cannot do without."""
    return DECLARATIONS[declaration][: 2 if declaration == "redistribute" else 3]


def _declaration(entry: Mapping[str, Any]) -> str:
    """Which declaration the keys stand for: the one that most of them belong to; of several, that of `op`, else one that
    has all it needs."""
    op, given = entry.get("op"), set(entry) - set(_COMMON)
    if op is not None and (not isinstance(op, str) or op not in OPERATIONS):
        raise RecipeError("op is known", repr(op), nearest(op, OPERATIONS.names()))
    fits = {name: len(given & set(keys)) for name, keys in DECLARATIONS.items()}
    most = max(fits.values())
    likely = [name for name in DECLARATIONS if fits[name] == most]
    if not most:
        known = "; ".join(f"{name}: {', '.join(keys)}" for name, keys in DECLARATIONS.items())
        raise RecipeError("a workload declares tensors", sorted(entry), known)
    of_op = {rule.declaration.split()[0] for rule in TABLE if rule.op == op}
    able = [name for name in likely if set(_needed(name)) <= given]
    chosen = [name for name in likely if name in of_op] or able
    if len(likely) > 1 and not chosen:
        raise RecipeError("a workload has all the keys of a declaration", ", ".join(sorted(given)),
                          "; ".join(f"{name}: {', '.join(_needed(name))}" for name in likely))
    return min(chosen or likely, key=lambda name: len(DECLARATIONS[name]))


def _tensor(value: Any) -> Tensor:
    table = _table(value, "a tensor")
    _known(table, _TENSOR, "a tensor")
    for key in ("shape", "dtype"):
        if key not in table:
            raise RecipeError(
                "a tensor has a shape and a dtype",
                f"no {key}",
                'such as { shape = [8192, 8192], dtype = "bfloat16", view = "FullRow" }',
            )
    return Tensor(**table)


def _restriction(value: Any) -> tuple[tuple[str, tuple[Value, ...]], ...]:
    table = _table(value, "[space]")
    for name, values in table.items():
        if not isinstance(values, list) or not values:
            actual = f"{name} = {values!r}"
            raise RecipeError("[space] gives each knob a list of values", actual, f"write {name} = [...]")
    try:
        check_restriction(dict(table))
    except TilescaleError as error:
        raise RecipeError(f"[space] {error.rule}", error.actual, error.remedy) from None
    return tuple((name, tuple(values)) for name, values in table.items())


def _tuning(value: Any) -> Tuning:
    table = _table(value, "[tune]")
    _known(table, ("trials", "seconds", "seed", "strategy"), "[tune]")
    for key, least in (("trials", 1), ("seed", 0)):
        number = table.get(key, least)
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise RecipeError(f"[tune] {key} is an integer from {least}", repr(number), "correct it")
    seconds = table.get("seconds", 1)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise RecipeError("[tune] seconds is a positive number", repr(seconds), "correct it")
    strategy = table.get("strategy")
    if strategy is not None and strategy not in STRATEGIES:
        raise RecipeError("[tune] strategy is known", repr(strategy), nearest(strategy, STRATEGIES.names()))
    return Tuning(**table)


def _within(place: str, make: Any, *arguments: Any) -> Any:
    """The value, or its error with the place in the recipe."""
    try:
        return make(*arguments)
    except TilescaleError as error:
        raise type(error)(f"{place}: {error.rule}", error.actual, error.remedy) from None


def _known(table: Mapping[str, Any], keys: Sequence[str], owner: str) -> None:
    for key in table:
        if key not in keys:
            raise RecipeError(f"{owner} has only known keys", repr(key), nearest(key, keys))


def _table(value: Any, owner: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecipeError(f"{owner} is a table", "nothing" if value is None else repr(value), f"add {owner}")
    return value


def _tables(value: Any) -> Iterable[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise RecipeError("a recipe has [[workload]] tables", "none" if value is None else repr(value), "add one")
    return [_table(entry, "[[workload]]") for entry in value]


def _text(value: Any, owner: str) -> str:
    if not isinstance(value, str) or not value:
        raise RecipeError(f"{owner} is a non-empty text", repr(value), "quote it")
    return value


def _name(table: Mapping[str, Any]) -> str:
    from tilescale.spec import catalog

    if "name" not in table:
        raise RecipeError("[topology] names a machine", "no name", f"name = one of {', '.join(catalog.names())}")
    return _text(table["name"], "[topology] name")


def _ranks(value: int | None, kind: str) -> int:
    if value is None:
        raise RecipeError(f"[topology] of kind {kind} has ranks", "no ranks", "for example ranks = 4")
    return value
