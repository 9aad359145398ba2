"""The workloads of a recipe on another number of ranks."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilescale.commands.output import UsageError, say
from tilescale.commands.target import Declared, Target, targets_of
from tilescale.errors import printable
from tilescale.spec.scales import BLOCK

# Where a sharded size is not divided by the ranks, it grows to the next multiple of so many rows a rank.
ROWS = 8
MOST = 1024  # ranks of a world, far above what any topology has


def targets_on(
    recipe: Path | None, workload: str | None, declared: Declared, worlds: str | None
) -> tuple[Target, ...]:
    """The workloads of `recipe`, or of all shipped recipes, on each of `worlds` ("2,3,8"), or as the recipes say."""
    workload = None if workload is None else printable(workload)
    if declared.op is not None:
        raise UsageError("--worlds and --all go over recipes", "--op", "give --ranks with --op")
    paths = shipped() if recipe is None else (recipe,)
    if not paths:
        raise UsageError("--all finds recipes below ./recipes", "none", "run it in the project's folder, or name a recipe")
    if worlds is None:
        return _as_declared(paths, workload, declared)
    try:
        ranks = [int(word) for word in worlds.split(",")]
    except ValueError:
        raise UsageError("--worlds is numbers joined by commas", repr(worlds), "such as --worlds 2,3,4,6,8") from None
    if not all(1 <= number <= MOST for number in ranks):
        raise UsageError(f"--worlds is numbers of ranks from 1 to {MOST}", repr(worlds), "such as --worlds 2,3,4,6,8")
    each = [(path, world) for world in dict.fromkeys(ranks) for path in paths]
    found = tuple(target for path, world in each for target in targets_for(path, world))
    left_out = [f"{name} w{world}" for path, world in each for name in _without_mesh(path, world)]
    if left_out:
        say(f"left out, since so many ranks make no mesh for their blocks: {', '.join(left_out)}")
    if not found:
        raise UsageError("--worlds has numbers of ranks for the workloads", repr(worlds), "4 for block matrices")
    chosen = tuple(t for t in found if workload is None or t.name.split(" ")[0] == workload)
    if not chosen:
        names = dict.fromkeys(target.name.split(" ")[0] for target in found)
        raise UsageError("--workload chooses from the recipe", repr(workload), "one of " + ", ".join(names))
    return chosen


def _as_declared(paths: Sequence[Path], workload: str | None, declared: Declared) -> tuple[Target, ...]:
    """The workloads of recipes as these say; of several recipes, those of the name that is asked for."""
    if len(paths) == 1:
        return targets_of(paths[0], workload, declared)
    found = tuple(target for path in paths for target in targets_of(path, None, declared))
    chosen = tuple(target for target in found if workload in (None, target.name))
    if not chosen:
        raise UsageError("--workload chooses from the recipes", repr(workload),
                         "one of " + ", ".join(dict.fromkeys(target.name for target in found)))
    return chosen


def targets_for(recipe: Path, ranks: int) -> tuple[Target, ...]:
    """The targets of `recipe` on `ranks` ranks. A name says so, and which sizes had to grow to be divided. Left out are
    block matrices where so many ranks make no mesh for them.

    Raises what reading the recipe raises, and TopologyError where the machine does not have so many.
    """
    from tilescale.tuner.recipe import parse

    data = tomllib.loads(recipe.read_text(encoding="utf-8"))
    data.setdefault("topology", {})["ranks"] = ranks
    declared = data.get("workload", [])
    data["workload"] = [entry for entry in declared if _has_mesh(entry, ranks)]
    if declared and not data["workload"]:
        return ()
    grown = {_name(entry): _grow(entry, ranks) for entry in data.get("workload", [])}
    read = parse(data, recipe)
    restrict: dict[str, Sequence[str | int]] = dict(read.restrict)
    found = []
    for name, spec in read.workloads:
        said = f" ({', '.join(grown[name])})" if grown.get(name) else ""
        found.append(Target(f"{name} w{ranks}{said}", spec, restrict))
    return tuple(found)


def _without_mesh(recipe: Path, ranks: int) -> list[str]:
    """Names of the workloads of a recipe for which so many ranks make no mesh."""
    declared = tomllib.loads(recipe.read_text(encoding="utf-8")).get("workload", [])
    return [_name(entry) for entry in declared if not _has_mesh(entry, ranks)]


def _name(entry: dict[str, Any]) -> str:
    """As `parse` calls the workload."""
    return printable(str(entry.get("name", "")))


def _has_mesh(entry: dict[str, Any], ranks: int) -> bool:
    """Whether block matrices, where the workload declares them, have kernels on the most square mesh."""
    from tilescale.spec.tensor import square_mesh

    rows, cols = square_mesh(ranks)
    a = entry.get("a")
    blocks = isinstance(a, dict) and str(a.get("view")) == "Block"
    return not blocks or (rows > 1 and cols % rows == 0 and (rows == cols or entry.get("algorithm") != "cannon"))


def _grow(entry: dict[str, Any], ranks: int) -> list[str]:
    """Rounds the sharded sizes of a workload up in place, and says which."""
    said: list[str] = []
    for key in ("a", "b", "x", "w"):
        given = entry.get(key)
        for tensor in given if isinstance(given, list) else [given]:
            if isinstance(tensor, dict):
                said += _grown(entry, key, tensor, ranks)
    _match(entry)
    return said + _grow_experts(entry, ranks)


def _grow_experts(entry: dict[str, Any], ranks: int) -> list[str]:
    """Experts lie evenly on ranks; those that a histogram lacks are as likely as its last. Their number is declared, or
    is the first size of their matrices."""
    matrices = entry.get("weights")
    shape = list(matrices["shape"]) if isinstance(matrices, dict) else []
    experts = shape[0] if shape else entry.get("experts")
    if not isinstance(experts, int) or experts % ranks == 0:
        return []
    grown = -(-experts // ranks) * ranks
    if isinstance(matrices, dict):
        matrices["shape"] = [grown, *shape[1:]]
    else:
        entry["experts"] = grown
    routing = str(entry.get("routing", ""))
    if routing.startswith("histogram:"):
        entry["routing"] = routing + ("," + routing.rpartition(",")[2]) * (grown - experts)
    return [f"experts {experts} as {grown}"]


def _unit(entry: dict[str, Any], tensor: dict[str, Any]) -> int:
    """What the part of a rank is a multiple of, where a sharded size must grow."""
    if entry.get("scales") == "block":
        return BLOCK
    if "swiglu" in entry.get("then", ()):
        return 2 * ROWS  # whole blocks of columns of gate and of up
    return 2 * ROWS if str(tensor.get("dtype")).startswith("float8") else ROWS  # rows of 16 bytes


def _grown(entry: dict[str, Any], key: str, tensor: dict[str, Any], ranks: int) -> list[str]:
    """The same for one tensor."""
    said: list[str] = []
    shape = list(tensor["shape"])
    order = entry.get("transpose") or list(range(len(shape)))
    dims = [_sharded(str(tensor.get("view")), len(shape))]
    if key == "x" and dims[0] is not None:  # an exchange shards another dimension afterwards
        after = _sharded(str(entry.get("to")), len(shape))
        dims.append(None if after is None else order[after])
    for dim in sorted({dim for dim in dims if dim is not None}):
        size = shape[dim]
        # Heads and the like, of which a rank has few, grow by as few as can be.
        unit = _unit(entry, tensor) if len(shape) == 2 else 1
        if isinstance(size, int) and size % (ranks * unit if unit > ROWS else ranks):
            shape[dim] = -(-size // (ranks * unit)) * ranks * unit
            said.append(f"{'MN'[dim] if len(shape) == 2 else f'dim {dim}'} {size} as {shape[dim]}")
    tensor["shape"] = shape
    return said


def _match(entry: dict[str, Any]) -> None:
    """A contraction that grew in one operand grows in the other: it may be sharded in one alone."""
    a, b = entry.get("a"), entry.get("b")
    if not isinstance(a, dict) or not isinstance(b, dict):
        return
    sizes = (a["shape"][-1], b["shape"][0])
    if all(isinstance(size, int) for size in sizes):
        a["shape"][-1] = b["shape"][0] = max(sizes)


def _sharded(view: str, ndim: int) -> int | None:
    """The dimension that a view of this name shards."""
    from tilescale.errors import SpecError
    from tilescale.spec.views import Shard, parse_view

    try:
        found = parse_view(view)
    except SpecError:
        return None  # the declaration will say so
    return found.dim % ndim if isinstance(found, Shard) else None


def shipped(folder: Path = Path("recipes")) -> tuple[Path, ...]:
    """The recipes of operations below a folder: files that declare workloads."""
    return tuple(path for path in sorted(folder.rglob("*.toml")) if "[[workload]]" in path.read_text(encoding="utf-8"))
