"""Tuned schedules beside peers: the table behind the fused and the small benchmarks.

A schedule is found by `tilescale.tune`, then raced with the peers: all in one run, round by round, graphs on both sides,
behind barriers on the GPU, on random data. The ratio of a row is the fastest peer's time over ours.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import common
from written import Written

import tilescale as ts
from tilescale.costmodel import memo
from tilescale.errors import RunnerError
from tilescale.runtime.baselines import names_for
from tilescale.runtime.gpu_runner import GpuRunner
from tilescale.runtime.links import LinkProbe
from tilescale.runtime.measure import Samples
from tilescale.runtime.sampling import Bounds
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.tuner.baselines import first_candidates
from tilescale.tuner.prior import Prior
from tilescale.tuner.strategies.learned import shortlist

SHAPES = {  # of Llama 3 70B: N, K by layer
    "ag_gemm": {"mlp_up": (28672, 8192), "attn_qkv": (10240, 8192)},
    "gemm_rs": {"mlp_down": (8192, 28672), "attn_out": (8192, 8192)},
    "gemm_ar": {"mlp_down": (8192, 28672), "attn_out": (8192, 8192)},
}
VIEWS = {"ag_gemm": (ts.FullRow, ts.FullCol, ts.FullCol), "gemm_rs": (ts.FullCol, ts.FullRow, ts.FullRow),
         "gemm_ar": (ts.FullCol, ts.FullRow, ts.Replicate)}
TOKENS = (512, 8192)
ROUNDED = {"gemm_rs": "bfloat16", "gemm_ar": "bfloat16"}  # products before they are added up, as all peers round them
ROUNDS = 4
BOUNDS = Bounds(minimum=6, maximum=12, batch=6, warmup=2)
SMALL_BOUNDS = Bounds(minimum=6, maximum=12, batch=6, warmup=2, calls=20)  # a graph's start outweighs two such calls
FORESEEING, AHEAD = 2, 24  # processes, each of which starts more; schedules whose kernels are compiled ahead
MACHINE = "8xH200-NVSwitch"  # that the scale model stands for
COLUMNS = 4096  # bfloat16: 8 KB a row
MESSAGES = (1, 4, 16, 64)  # rows
SIZES = {"64 KB": 8, "256 KB": 32, "1 MB": 128, "4 MB": 512, "16 MB": 2048, "64 MB": 8192}  # rows of a whole tensor
MOVES = {"all_gather": (ts.FullRow, ts.Replicate), "reduce_scatter": (ts.Partial, ts.FullRow),
         "all_reduce": (ts.Partial, ts.Replicate)}  # operations that torch's symmetric memory has on ranks that share a GPU
RESULTS = Path(__file__).parent / "results"
BOUND = "compute_only"  # no peer: what no overlap can beat


@dataclass(frozen=True)
class Row:
    """A line of a table: what it is called, what is tuned, and how often it is timed."""

    label: str
    spec: Spec
    bounds: Bounds = BOUNDS


def layers(op: str, ranks: int, kind: str = "shared_gpu", partial_dtype: str | None = None) -> list[Row]:
    """The layers of Llama 3 70B that an operation stands for, on ranks that share a GPU. Weights lie as Linear has them."""
    topology = ts.Topology.shared_gpu(ranks) if kind == "shared_gpu" else ts.Topology.scale_model(kind, ranks=ranks)
    a, b, out = VIEWS[op]
    return [
        Row(f"{op} {layer} M={m} ranks={ranks}", ts.matmul(
            ts.Tensor((m, k), "bfloat16", a), ts.Tensor((k, n), "bfloat16", b, order="col"), out=out, topology=topology,
            partial_dtype=partial_dtype))
        for layer, (n, k) in SHAPES[op].items() for m in TOKENS]


@dataclass(frozen=True)
class Table:
    """A table: `finish` completes a row once its times are there; `extra` are keys of the result. `before` measures what
    rows of a topology are held against, and gives keys that each of them gets. What is `beside` is timed and no peer."""

    name: str
    rows: Sequence[Row]
    extra: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[dict[str, Any]], None] = lambda row: None
    before: Callable[[ts.Topology], dict[str, Any]] = lambda topology: {}
    beside: tuple[str, ...] = (BOUND,)


def fused(op: str, ranks: Sequence[int]) -> Table:
    """An operation on ranks that share a GPU. What is added up is rounded first, as its peers do."""
    rows = [row for count in ranks for row in layers(op, count, partial_dtype=ROUNDED.get(op))]
    return Table(f"fused_{op}", rows, _partial(ROUNDED.get(op)))


def fused_fp32(op: str, ranks: Sequence[int]) -> Table:
    """The same with sums of fp32, twice the bytes that the peers move: what a declaration gives that asks for nothing."""
    return Table(f"fused_{op}_fp32", [row for count in ranks for row in layers(op, count)], _partial("float32"))


def _partial(dtype: str | None) -> dict[str, Any]:
    return {"partial_dtype": dtype} if dtype else {}


def all_reduce_small(ranks: Sequence[int]) -> Table:
    """Messages of 8 KB to 512 KB, against torch's operators: "unfused" is a schedule of our own here."""
    rows = []
    for count, size in product(ranks, MESSAGES):
        tensor = ts.Tensor((size, COLUMNS), "bfloat16", ts.Partial)
        spec = ts.redistribute(tensor, to=ts.Replicate, topology=ts.Topology.shared_gpu(count))
        rows.append(Row(f"all_reduce {size * 8} KB ranks={count}", spec, SMALL_BOUNDS))
    return Table("all_reduce_small", rows, {"calls_a_sample": SMALL_BOUNDS.calls},
                 finish=_in_round_trips, before=_round_trip, beside=("unfused",))


def family(ranks: Sequence[int], ops: Sequence[str] = tuple(MOVES), sizes: Sequence[str] = tuple(SIZES),
           placements: Sequence[str] = ("ordinary",)) -> Table:
    """Data that moves or is summed, of 64 KB to 64 MB (the whole tensor: what is gathered, what each rank adds), against
    torch's symmetric memory. Its all_to_all is left out: it needs NVSHMEM, which this memory does without."""
    rows = []
    for count, op, size, placement in product(ranks, ops, sizes, placements):
        tensor = ts.Tensor((SIZES[size], COLUMNS), "bfloat16", MOVES[op][0])
        spec = ts.redistribute(tensor, to=MOVES[op][1], topology=ts.Topology.shared_gpu(count), inputs=placement)
        bounds = SMALL_BOUNDS if SIZES[size] <= SIZES["4 MB"] else BOUNDS
        rows.append(Row(f"{op} {size} ranks={count}" + " symmetric" * (placement == "symmetric"), spec, bounds))
    return Table("family", rows, beside=("unfused",))


def _round_trip(topology: ts.Topology) -> dict[str, Any]:
    """A flag from a rank to another and back."""
    with LinkProbe(topology) as probe:
        return {"round_trip_us": round(probe.ping(0, 1).us, 3)}


def _in_round_trips(row: dict[str, Any]) -> None:
    if "round_trip_us" in row:
        row["round_trips"] = round(row["ours_us"] / row["round_trip_us"], 2)


def overlap(ranks: Sequence[int]) -> Table:
    """All operations in the scale model of MACHINE. What is added up is rounded first, as today's libraries do."""
    def finish(row: dict[str, Any]) -> None:
        unfused, alone = row["peers_us"]["unfused"], row["peers_us"][BOUND]
        row["hidden"] = round((unfused - row["ours_us"]) / (unfused - alone), 3) if unfused > alone else None
        row["computing_is_larger"] = alone > unfused - alone

    rows = [row for op in SHAPES for count in ranks if count > 2 for row in layers(op, count, MACHINE, ROUNDED.get(op))]
    return Table("overlap", rows, {"machine": MACHINE}, finish=finish)


TABLES: dict[str, Callable[[Sequence[int]], Table]] = {
    **{f"fused_{op}": partial(fused, op) for op in SHAPES},
    **{f"fused_{op}_fp32": partial(fused_fp32, op) for op in ROUNDED},
    "all_reduce_small": all_reduce_small, "overlap": overlap, "family": family,
}


def arguments(description: str | None, trials: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS,
                        help="a file, or a folder where several tables are measured; rows that are there are kept")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose label holds one of these texts")
    parser.add_argument("--trials", type=int, default=trials)
    parser.add_argument("--seconds", type=float, default=60.0, help="for finding a schedule, a row")
    parser.add_argument("--limit", type=float, default=3600.0, help="no row is begun after so many seconds")
    parser.add_argument("--db", default=None)
    return parser


def run(tables: Sequence[Table], given: argparse.Namespace) -> None:
    """Measure the rows, those of a topology of all tables with one group of ranks. What is finished is written at once and
    found again by a second run of the same sources; a row that fails is written with its error, and the next one begins.
    What the cost model expects, and the kernels that it ranks first, are made ahead while the ranks measure."""
    began = time.monotonic()
    written = {table.name: Written(_path(given, table, len(tables)), {**common.header(table.name), **table.extra})
               for table in tables}
    named = [(table, row) for table in tables for row in table.rows
             if any(text in row.label for text in given.only) and row.spec.world in given.ranks]
    if not named:
        raise RunnerError("a row is named", f"--only {' '.join(given.only)}, --ranks {' '.join(map(str, given.ranks))}",
                          f"as {tables[0].rows[0].label!r} is" if tables[0].rows else "name other ranks")
    todo = [(table, row) for table, row in named if (row.label,) not in written[table.name].done]
    if todo:
        ts.Topology.detect()  # without a GPU nothing is made ahead
    pool = ProcessPoolExecutor(FORESEEING)
    try:
        foreseen = {row: pool.submit(_foresee, row.spec) for _, row in todo}
        kinds = dict.fromkeys((row.spec.topology, row.bounds) for _, row in todo)
        for topology, bounds in kinds:
            mine = [(table, row) for table, row in todo if (row.spec.topology, row.bounds) == (topology, bounds)]
            if time.monotonic() - began > given.limit:
                break
            known = {name: _known(table, topology) for name, table in {table.name: table for table, _ in mine}.items()}
            with GpuRunner(topology, bounds=bounds) as runner:
                runner.start()
                for table, row in mine:
                    if time.monotonic() - began < given.limit:
                        runner.prefetch(row.spec, foreseen[row].result())
                        found = _tried(runner, table, row, given, known[table.name])
                        written[table.name].add(found)
                        _print(found)
    finally:
        pool.shutdown(cancel_futures=True)


def _path(given: argparse.Namespace, table: Table, tables: int) -> Path:
    output: Path = given.output
    if tables == 1 and output.suffix == ".json":
        return output
    output.mkdir(parents=True, exist_ok=True)
    return output / f"{table.name}.json"


def _foresee(spec: Spec) -> tuple[Schedule, ...]:
    """The schedules that a search will ask for first. What the cost model expects is kept for it."""
    prior = Prior(spec, Space(spec).schedules)
    for schedule in shortlist(prior):
        prior.us(schedule)
    memo.save(spec)
    return (*first_candidates(spec, prior), *prior.ranked[:AHEAD])


def _known(table: Table, topology: ts.Topology) -> dict[str, Any]:
    try:
        return table.before(topology)
    except ts.TilescaleError as error:
        print(f"{table.name}: {error}", flush=True)
        return {}


def _tried(runner: GpuRunner, table: Table, row: Row, given: argparse.Namespace, known: Mapping[str, Any]
           ) -> dict[str, Any]:
    began = time.monotonic()
    try:
        found = {**_measured(runner, table, row, given), **known}
        table.finish(found)
    except Exception as error:  # noqa: BLE001 - a row of its own, with what went wrong
        told = "".join(traceback.format_exception(error))[-2000:]
        found = {"label": row.label, "workload": row.spec.label, "error": told}
    found["took_s"] = round(time.monotonic() - began, 1)
    return found


def _measured(runner: GpuRunner, table: Table, row: Row, given: argparse.Namespace) -> dict[str, Any]:
    tuned = ts.tune(row.spec, given.trials, given.seconds, given.db, runner=runner)
    names = names_for(row.spec)
    best = tuned.best
    rounds = runner.race(row.spec, [best], names, ROUNDS)
    able = [name for name in names if name in rounds[0]]
    lacking = [name for name in names if name not in rounds[0]]
    times = _slowest(rounds, best.digest)
    peers = {name: _slowest(rounds, name) for name in able}
    medians = {name: statistics.median(samples) for name, samples in peers.items()}
    not_run = {name: timing.message for name, timing in
               (runner.baselines(row.spec, lacking) if lacking else {}).items()}
    peer = min((name for name in medians if name not in table.beside), key=medians.__getitem__, default=None)
    if peer is None:
        raise RunnerError("a row has a peer that runs", not_run, "see what each of them says")
    ours = statistics.median(times)
    return {
        "label": row.label, "workload": row.spec.label, "source": runner.source, "schedule": best.label,
        "digest": best.digest, "candidates": len(tuned.rows), "ours_us": round(ours, 2), "peer": peer,
        "theirs_us": round(medians[peer], 2), "ratio": round(medians[peer] / ours, 4),
        "peers_us": {name: round(value, 2) for name, value in medians.items()},
        "not_run": not_run,
        "tried_us": {trial.schedule.label: trial.value_us and round(trial.value_us, 1) for trial in tuned.rows},
        "samples_ours_us": times, "samples_theirs_us": peers[peer],
        "samples_others_us": {name: samples for name, samples in peers.items() if name != peer},
    }


def _slowest(rounds: Sequence[Mapping[str, Samples]], name: str) -> list[float]:
    """The slowest rank's time of every sample."""
    return [round(max(call), 2) for each in rounds for call in zip(*each[name], strict=True)]


def _print(row: Mapping[str, Any]) -> None:
    if "error" in row:
        print(f"{row['label']}: {row['error'][-200:]}", flush=True)
        return
    others = " ".join(f"{name}={us:.1f}" for name, us in row["peers_us"].items())
    more = "".join(f", {name} {row[name]}" for name in ("hidden", "round_trips") if name in row)
    verdict = f"{row['ours_us']:.1f} us, ratio {row['ratio']:.3f} to {row['peer']}"
    print(f"{row['label']}: {verdict} ({others}) {row['schedule']}{more}; "
          f"{row['candidates']} tried, {row['took_s']} s", flush=True)
