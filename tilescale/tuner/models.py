"""Recipes of public models: the tensor-parallel layers of one, at a number of ranks and tokens."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilescale.errors import RecipeError, TilescaleError, nearest
from tilescale.spec.op import Spec, matmul
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow, Replicate, View
from tilescale.tuner.recipe import Recipe

# Views of A, B and the product by operation. Weights lie as torch.nn.Linear holds them: (N, K) row-major.
VIEWS: Mapping[str, tuple[View, View, View]] = {
    "ag_gemm": (FullRow, FullCol, FullCol),
    "gemm_rs": (FullCol, FullRow, FullRow),
    "gemm_ar": (FullCol, FullRow, Replicate),
    "gemm": (Replicate, FullCol, FullCol),  # each rank multiplies what it holds
}
# Products whose contraction is gathered: the view of all tensors, the orders of A and B. What is sent has its contraction
# outside, so that it moves in chunks.
ALONG: Mapping[str, tuple[View, str, str]] = {
    "ag_gemm_k": (FullCol, "col", "row"),
    "weight_gather_gemm": (FullRow, "row", "row"),
}
_TOP = ("title", "model", "layer")
_LAYER = ("layer", "op", "N", "K")


def folder() -> Path:
    """Where the recipes of models are: below the working directory, else in the checkout this package runs from."""
    here = Path("recipes") / "models"
    return here if here.is_dir() else Path(__file__).parents[2] / "recipes" / "models"


def names(where: Path | None = None) -> tuple[str, ...]:
    """Models that have a recipe: those files that list layers."""
    return tuple(sorted(path.stem for path in (where or folder()).glob("*.toml") if "[[layer]]" in path.read_text()))


def read_model(
    name: str, topology: Topology, tokens: int, dtype: str = "bfloat16", where: Path | None = None
) -> tuple[Recipe, dict[str, str]]:
    """The layers of a model as workloads, for `tokens` rows on the ranks of `topology`; and what was left out, why.

    Left out are layers whose operation has no kernels. Raises RecipeError for an unknown model, a bad file, or a model
    without any layer left.
    """
    place = where or folder()
    if name not in names(place):
        raise RecipeError(f"{place} has a recipe of the model", repr(name), nearest(name, names(place)))
    path = place / f"{name}.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        specs = {layer["layer"]: _layer(layer, topology, tokens, dtype) for layer in _layers(data)}
    except ValueError as error:
        raise RecipeError(f"recipe {path} is TOML", str(error), "correct the syntax") from None
    except TilescaleError as error:
        raise type(error)(f"recipe {path}: {error.rule}", error.actual, error.remedy) from None
    skipped = {layer: spec.without_kernels for layer, spec in specs.items() if spec.without_kernels}
    kept = {layer: spec for layer, spec in specs.items() if layer not in skipped}
    if not kept:
        raise RecipeError(f"a layer of {name} has kernels", "; ".join(skipped.values()), "declare another operation")
    return Recipe(path, str(data.get("title", name)), tuple(kept.items())), skipped


def _layers(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    _known(data, _TOP, "a recipe of a model")
    layers: list[dict[str, Any]] = data["layer"]
    for layer in layers:
        _known(layer, _LAYER, "[[layer]]")
        if missing := sorted(set(_LAYER) - set(layer)):
            raise RecipeError("[[layer]] has all its keys", f"no {', '.join(missing)}", "add them")
        if layer["op"] not in VIEWS:
            raise RecipeError("the op of a layer is known", repr(layer["op"]), nearest(layer["op"], VIEWS))
    return layers


def _layer(layer: Mapping[str, Any], topology: Topology, tokens: int, dtype: str) -> Spec:
    a, b, out = VIEWS[layer["op"]]
    n, k = layer["N"], layer["K"]
    return matmul(Tensor((tokens, k), dtype, a), Tensor((k, n), dtype, b, "col"), out, topology)


def _known(table: Mapping[str, Any], keys: tuple[str, ...], owner: str) -> None:
    for key in table:
        if key not in keys:
            raise RecipeError(f"{owner} has only known keys", repr(key), nearest(key, keys))
