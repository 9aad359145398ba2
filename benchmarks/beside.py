"""Tuned schedules beside peers: the table behind the fused and the small benchmarks.

A schedule is found by `tilescale.tune`, then raced with the peers: all in one run, round by round, graphs on both sides,
behind barriers on the GPU, on random data. The ratio of a row is the fastest peer's time over ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common

import tilescale as ts
from tilescale.runtime.baselines import names_for
from tilescale.runtime.gpu_runner import GpuRunner
from tilescale.runtime.measure import Samples
from tilescale.spec.op import Spec

SHAPES = {  # of Llama 3 70B: N, K by layer
    "ag_gemm": {"mlp_up": (28672, 8192), "attn_qkv": (10240, 8192)},
    "gemm_rs": {"mlp_down": (8192, 28672), "attn_out": (8192, 8192)},
    "gemm_ar": {"mlp_down": (8192, 28672), "attn_out": (8192, 8192)},
}
VIEWS = {"ag_gemm": (ts.FullRow, ts.FullCol, ts.FullCol), "gemm_rs": (ts.FullCol, ts.FullRow, ts.FullRow),
         "gemm_ar": (ts.FullCol, ts.FullRow, ts.Replicate)}
TOKENS = (512, 8192)
ROUNDS = 6
BOUND = "compute_only"  # no peer: what no overlap can beat


@dataclass(frozen=True)
class Row:
    """A line of a table: what it is called, and what is tuned."""

    label: str
    spec: Spec


def layers(op: str, ranks: int, kind: str = "shared_gpu", partial_dtype: str | None = None) -> list[Row]:
    """The layers of Llama 3 70B that an operation stands for, on ranks that share a GPU. Weights lie as Linear has them."""
    topology = ts.Topology.shared_gpu(ranks) if kind == "shared_gpu" else ts.Topology.scale_model(kind, ranks=ranks)
    a, b, out = VIEWS[op]
    return [
        Row(f"{layer} M={m} ranks={ranks}", ts.matmul(
            ts.Tensor((m, k), "bfloat16", a), ts.Tensor((k, n), "bfloat16", b, order="col"), out=out, topology=topology,
            partial_dtype=partial_dtype))
        for layer, (n, k) in SHAPES[op].items() for m in TOKENS]


def arguments(description: str | None, trials: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--only", default="", help="rows whose label holds this text")
    parser.add_argument("--trials", type=int, default=trials)
    parser.add_argument("--seconds", type=float, default=60.0, help="for finding a schedule, a row")
    parser.add_argument("--limit", type=float, default=3600.0, help="no row is begun after so many seconds")
    parser.add_argument("--db", default=None)
    return parser


def run(
    name: str, rows: Sequence[Row], given: argparse.Namespace, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Measure the rows, those of a topology with one group of ranks; what is finished is written at once."""
    began, found = time.monotonic(), []
    chosen = [row for row in rows if given.only in row.label and row.spec.world in given.ranks]
    for topology in dict.fromkeys(row.spec.topology for row in chosen):
        with GpuRunner(topology) as runner:
            for row in (row for row in chosen if row.spec.topology == topology):
                if time.monotonic() - began > given.limit:
                    break
                try:
                    found.append(_measured(runner, row, given))
                except ts.TilescaleError as error:
                    found.append({"label": row.label, "workload": row.spec.label, "error": str(error)})
                _print(found[-1])
                result = {**common.header(name), **(extra or {}), **summary(found), "rows": found}
                given.output.write_text(json.dumps(result, indent=1) + "\n")
    return result


def _measured(runner: GpuRunner, row: Row, given: argparse.Namespace) -> dict[str, Any]:
    tuned = ts.tune(row.spec, given.trials, given.seconds, given.db, runner=runner)
    names = names_for(row.spec)
    tried = runner.baselines(row.spec, names)
    able = [name for name, timing in tried.items() if timing.ok]
    finalists = [tuned.best, *tuned.ties[:2]]
    rounds = runner.race(row.spec, finalists, able, ROUNDS)
    times = {schedule.digest: _slowest(rounds, schedule.digest) for schedule in finalists}
    best = min(finalists, key=lambda schedule: statistics.median(times[schedule.digest]))
    peers = {name: _slowest(rounds, name) for name in able}
    medians = {name: statistics.median(samples) for name, samples in peers.items()}
    peer = min((name for name in medians if name != BOUND), key=medians.__getitem__)
    ours = statistics.median(times[best.digest])
    return {
        "label": row.label, "workload": row.spec.label, "source": runner.source, "schedule": best.label,
        "digest": best.digest, "candidates": len(tuned.rows), "ours_us": round(ours, 2), "peer": peer,
        "theirs_us": round(medians[peer], 2), "ratio": round(medians[peer] / ours, 4),
        "peers_us": {name: round(value, 2) for name, value in medians.items()},
        "not_run": {name: timing.message for name, timing in tried.items() if not timing.ok},
        "samples_ours_us": times[best.digest], "samples_theirs_us": peers[peer],
    }


def _slowest(rounds: Sequence[Mapping[str, Samples]], name: str) -> list[float]:
    """The slowest rank's time of every sample."""
    return [round(max(call), 2) for each in rounds for call in zip(*each[name], strict=True)]


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    return {"geomean_ratio": round(statistics.geometric_mean(ratios), 4) if ratios else None,
            "min_ratio": min(ratios, default=None)}


def _print(row: Mapping[str, Any]) -> None:
    if "error" in row:
        print(f"{row['label']}: {row['error'][:200]}", flush=True)
        return
    others = " ".join(f"{name}={us:.1f}" for name, us in row["peers_us"].items())
    verdict = f"{row['ours_us']:.1f} us, ratio {row['ratio']:.3f} to {row['peer']}"
    print(f"{row['label']}: {verdict} ({others}) {row['schedule']}", flush=True)
