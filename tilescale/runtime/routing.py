"""Which experts tokens go to: as a declaration says, and as it might go wrong for kernels that count on something."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tilescale import canon
from tilescale.errors import RunnerError
from tilescale.spec.declaration import Spec
from tilescale.spec.ops._counts import count_attribute
from tilescale.spec.ops._moe import histogram_of, tokens_of

Indices = npt.NDArray[np.int32]
NONE = -1
# What a run meets call by call: as declared; every token to the experts of one place; tokens without experts, and a rank
# without tokens; the same expert twice, and numbers that are no expert's.
TURNS = ("declared", "one", "gaps", "twice")


def routing_of(spec: Spec, rng: np.random.Generator, turn: str = "declared") -> list[Indices]:
    """The experts of the tokens of every rank: (tokens, top_k) int32, -1 for none."""
    experts, top_k, world = count_attribute(spec, "experts"), count_attribute(spec, "top_k"), spec.world
    shapes = [(tokens_of(spec).local_shape(rank, world)[0], top_k) for rank in range(world)]
    if turn == "one":
        first = int(rng.integers(experts))
        row = (first + np.arange(top_k)) % experts
        return [np.broadcast_to(row, shape).astype(np.int32) for shape in shapes]
    if turn == "twice":
        return [rng.integers(-2, experts + 2, shape).astype(np.int32) for shape in shapes]
    found = [_declared(spec, rank, shape, rng) for rank, shape in enumerate(shapes)]
    if turn == "gaps":
        for indices in found:
            indices[rng.random(indices.shape) < 0.4] = NONE
        found[int(rng.integers(world))][:] = NONE
    return found


def _declared(spec: Spec, rank: int, shape: tuple[int, int], rng: np.random.Generator) -> Indices:
    routing, experts = str(spec.attribute("routing")), count_attribute(spec, "experts")
    if routing.startswith("trace:"):
        trace = _trace(routing)
        first = rank * tokens_of(spec).local_shape(0, spec.world)[0]
        rows = (first + np.arange(shape[0])) % len(trace)
        return np.where(trace[rows, :shape[1]] < experts, trace[rows, :shape[1]], NONE).astype(np.int32)
    weights = histogram_of(routing) if routing.startswith("histogram:") else (1,) * experts
    # The largest of log(weight) + Gumbel noise: draws without replacement, in proportion to the weights.
    with np.errstate(divide="ignore"):
        score = np.log(np.array(weights, dtype=np.float64)) + rng.gumbel(size=(shape[0], experts))
    best = np.argsort(-score, axis=1)[:, :shape[1]]
    return np.where(np.take_along_axis(score, best, axis=1) > -np.inf, best, NONE).astype(np.int32)


def trace_routing(path: str) -> str:
    """The ``routing`` of a recorded trace, for a declaration: a JSON file with a list of the experts of each token. The
    digest of what it holds is part of it. Raises RunnerError."""
    return f"trace:{path}#{canon.digest(_read(path))}"


@lru_cache(maxsize=4)
def _trace(routing: str) -> Indices:
    path, _, digest = routing.removeprefix("trace:").rpartition("#")
    rows = _read(path)
    if canon.digest(rows) != digest:
        raise RunnerError("a trace holds what it held when it was declared", canon.digest(rows), "declare it anew")
    return np.array(rows, dtype=np.int32)


def _read(path: str) -> list[list[int]]:
    try:
        rows = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise RunnerError("a trace is a JSON file", f"{path}: {error}", "give the path of one") from None
    if not isinstance(rows, list) or not rows or len({len(row) for row in rows}) != 1:
        raise RunnerError("a trace is a list of rows of equal length, one a token", path, "record it so")
    return rows
