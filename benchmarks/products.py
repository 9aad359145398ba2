"""Products without communication against torch.mm: tuned within a budget, then both in turn in one process.

Sizes are those that one of 8 ranks multiplies in the layers of data/tp_shapes.csv. Inputs are random numbers. Every sample
starts with nothing of the last in the L2, and is one replay of a graph with two calls on two sets of inputs, on both sides.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import written

import tilescale as ts
from tilescale.errors import RunnerError
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
RESULTS = Path(__file__).parent / "results"
KEYS = ("layer", "m", "n", "k")


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


def arguments(description: str | None, name: str, rounds: int, rows_m: Sequence[int]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8, help="candidates that the tuner measures for a row")
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of both sides")
    parser.add_argument("--seconds", type=float, default=1800.0, help="no row is begun after so many")
    parser.add_argument("-m", type=int, nargs="+", default=list(rows_m))
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT",
                        help='rows whose name, as "llama-3-8b mlp_up M=512" is, holds one of these texts; others stay')
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / f"{name}.json",
                        help="rows of the same sources that are there are kept and not measured again")
    parser.add_argument("--db", help="a performance database: searches learn from earlier rows and runs")
    parser.add_argument("--keep-older", action="store_true",
                        help="keep rows of other sources too, until they are measured again; each names its sources")
    return parser


def table(name: str, given: argparse.Namespace, summary: written.Summary = written.ratios) -> written.Written:
    """The file that rows are joined in."""
    older = given.keep_older or given.only != [""]
    return written.Written(given.output, common.header(name), KEYS, keep_older=older, summary=summary)


def measure(found: written.Written, given: argparse.Namespace) -> None:
    """A row for every layer and M that `found` lacks, written when it is there, until `given.seconds` are over."""
    topology = ts.Topology.detect().with_ranks(1)
    named = [(m, layer) for m in given.m for layer in layers() if any(text in f"{layer.name} M={m}" for text in given.only)]
    if not named:
        raise RunnerError("a row is named", f"--only {' '.join(given.only)}", 'as "llama-3-8b mlp_up M=512" is')
    work = [(m, layer, declare(m, layer, topology)) for m, layer in named
            if (layer.name, m, layer.n, layer.k) not in found.done]
    if not work:
        return
    started = time.monotonic()
    with GpuRunner(topology, bounds=BOUNDS) as runner:
        runner.start()
        with ProcessPoolExecutor() as pool:
            for (_, _, spec), schedules in zip(work, pool.map(promising, [spec for _, _, spec in work]), strict=True):
                runner.prefetch(spec, schedules)
        for number, (m, layer, spec) in enumerate(work):
            if time.monotonic() - started > given.seconds:
                print(f"stopped after {number} of {len(work)} rows: {given.seconds:g} s are over")
                break
            best = ts.tune(spec, trials=given.trials, db=given.db, runner=runner, space=SPACE).best
            row = _row(m, layer, best, runner.race(spec, [best], (PEER,), given.rounds))
            found.add(row)
            print({key: value for key, value in row.items() if not key.startswith("samples")}, flush=True)


def _row(m: int, layer: Layer, best: Schedule, found: Sequence[Any]) -> dict[str, Any]:
    ours = [round(us, 2) for turn in found for us in turn[best.digest][0]]
    theirs = [round(us, 2) for turn in found for us in turn[PEER][0]]
    ours_us, theirs_us = statistics.median(ours), statistics.median(theirs)
    return {
        "layer": layer.name, "m": m, "n": layer.n, "k": layer.k, "schedule": best.label, "peer": "torch.mm",
        "ours_us": round(ours_us, 2), "theirs_us": round(theirs_us, 2), "ratio": round(theirs_us / ours_us, 4),
        "tflops": round(2 * m * layer.n * layer.k / ours_us / 1e6, 1), "samples_ours_us": ours, "samples_theirs_us": theirs,
    }
