"""Products without communication against torch.mm: tuned within a budget, then both in turn in one process.

Sizes are those that one of 8 ranks multiplies in the layers of data/tp_shapes.csv. Inputs are random numbers. Every sample
starts with nothing of the last in the L2, and is one replay of a graph with two calls on two sets of inputs, on both sides.
"""

from __future__ import annotations

import csv
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common

import tilescale as ts
from tilescale.runtime.gpu_runner import GpuRunner
from tilescale.runtime.sampling import Bounds
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.declaration import Spec
from tilescale.tuner.prior import Prior

RANKS = 8
PEER = "compute_only"  # torch.mm on this rank's SMs
SPACE: dict[str, Sequence[str | int]] = {"compute": ["generated"]}
AHEAD = 16             # schedules that are compiled before a search asks for them
BOUNDS = Bounds(minimum=6, maximum=6, batch=6, warmup=2)
SHAPES = Path(__file__).parent / "data" / "tp_shapes.csv"


@dataclass(frozen=True)
class Layer:
    """A product of one rank."""

    name: str
    n: int
    k: int


def layers() -> Iterator[Layer]:
    with SHAPES.open() as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            n, k = int(row["N"]), int(row["K"])
            n, k = (n // RANKS, k) if row["op"] == "ag_gemm" else (n, k // RANKS)
            yield Layer(f"{row['model']} {row['layer']}", n, k)


def declare(m: int, layer: Layer, topology: ts.Topology) -> Spec:
    """x (M, K) times the transposed weights of a linear layer, (N, K)."""
    x = ts.Tensor((m, layer.k), "bfloat16", ts.Replicate)
    w = ts.Tensor((layer.n, layer.k), "bfloat16", ts.Replicate)
    return ts.linear(x, w, out=ts.Replicate, topology=topology)


def promising(spec: Spec) -> tuple[Schedule, ...]:
    """What a search will ask for first: so that it finds it compiled."""
    return Prior(spec, Space(spec, SPACE).schedules).ranked[:AHEAD]


def measure(rows_m: Sequence[int], trials: int, rounds: int, seconds: float, db: str | None = None) -> list[dict[str, Any]]:
    """A row for every layer and M, until `seconds` are over. With `db`, a search learns from those of the other rows."""
    topology = ts.Topology.detect().with_ranks(1)
    work = [(m, layer, declare(m, layer, topology)) for m in rows_m for layer in layers()]
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    with GpuRunner(topology, bounds=BOUNDS) as runner:
        runner.start()
        with ProcessPoolExecutor() as pool:
            for (_, _, spec), schedules in zip(work, pool.map(promising, [spec for _, _, spec in work]), strict=True):
                runner.prefetch(spec, schedules)
        for m, layer, spec in work:
            if time.monotonic() - started > seconds:
                print(f"stopped after {len(rows)} of {len(work)} rows: {seconds:g} s are over")
                break
            result = ts.tune(spec, trials=trials, db=db, runner=runner, space=SPACE)
            found = runner.race(spec, [result.best], (PEER,), rounds)
            rows.append(_row(m, layer, result.best, found))
            print({key: value for key, value in rows[-1].items() if not key.startswith("samples")}, flush=True)
    return rows


def _row(m: int, layer: Layer, best: Schedule, found: Sequence[Any]) -> dict[str, Any]:
    ours = [round(us, 2) for turn in found for us in turn[best.digest][0]]
    theirs = [round(us, 2) for turn in found for us in turn[PEER][0]]
    ours_us, theirs_us = statistics.median(ours), statistics.median(theirs)
    return {
        "layer": layer.name, "m": m, "n": layer.n, "k": layer.k, "schedule": best.label, "peer": "torch.mm",
        "ours_us": round(ours_us, 2), "theirs_us": round(theirs_us, 2), "ratio": round(theirs_us / ours_us, 4),
        "tflops": round(2 * m * layer.n * layer.k / ours_us / 1e6, 1), "samples_ours_us": ours, "samples_theirs_us": theirs,
    }


def write(name: str, rows: Sequence[dict[str, Any]], **more: Any) -> None:
    """results/<name>.json; the summary is printed."""
    ratios = [row["ratio"] for row in rows]
    summary = {"geomean_ratio": round(statistics.geometric_mean(ratios), 4), "min_ratio": min(ratios), **more}
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.write_text(json.dumps({**common.header(name), "rows": list(rows), **summary}) + "\n")
    print(json.dumps({"rows": len(rows), **summary}))
