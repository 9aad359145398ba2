"""CUDA IPC and virtual memory with file descriptors, beside each other: every transport right on both, and how long.

    python benchmarks/peer_memory.py [-o FILE] [--ranks 2] [--kinds ipc vmm ipc]

On as many GPUs as there are ranks, by their links; on fewer, ranks share the first one. Every schedule is checked on three
calls before it is timed. Results are printed and written as they come; the first kind is measured once more at the end, so
that a difference between kinds can be told from a difference between visits.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common

from tilescale.deploy.peer_memory import IPC, KINDS, VARIABLE, VMM
from tilescale.errors import TilescaleError
from tilescale.runtime.gpu_runner import GpuRunner
from tilescale.schedules.knob import BY_NAME
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.spec.op import Spec, matmul, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow, Partial, Replicate

COLUMNS = 8192
SIZES = ("chunk_rows", "num_comm_blocks", "block_m", "block_n", "block_k", "num_stages", "raster_group")


def topology_of(ranks: int) -> Topology:
    """GPUs of their own where there are enough, else a share of one each."""
    here = Topology.detect()
    return here.with_ranks(ranks) if here.ranks >= ranks else Topology.shared_gpu(ranks)


def specs(topology: Topology) -> list[Spec]:
    """64 MB and 1 MB of output where bytes only move, a sum, and a fused product."""
    rows = [4096, 64 * topology.ranks]
    found = [redistribute(Tensor((each, COLUMNS), "bfloat16", FullRow), Replicate, topology) for each in rows]
    found.append(redistribute(Tensor((1024, COLUMNS), "bfloat16", Partial), Replicate, topology))
    a, b = Tensor((4096, 4096), "bfloat16", FullRow), Tensor((4096, 8192), "bfloat16", FullCol, order="col")
    return [*found, matmul(a, b, FullCol, topology)]


def sample(spec: Spec) -> list[Schedule]:
    """One schedule of every kind that neither multiplies by the library nor needs multicast: knobs that only size things
    have one value."""
    allowed = {name: BY_NAME[name].allowed(spec) for name in SIZES}
    narrowed = {name: [values[len(values) // 2]] for name, values in allowed.items()} | {"compute": ["generated"]}
    kinds: dict[tuple[str, ...], Schedule] = {}
    for each in space(spec, narrowed).without_multicast:
        kinds.setdefault((each.algorithm, each.overlap, each.transport, each.direction), each)
    return [each for _, each in sorted(kinds.items())]


def measure(kind: str, topology: Topology, chosen: Sequence[tuple[Spec, Schedule]]) -> dict[str, Any]:
    """Of one kind of memory: what ranks say they use, and time or failure by spec and schedule."""
    os.environ[VARIABLE] = kind  # ranks inherit it
    row: dict[str, Any] = {"kind": kind, "us": {}, "failed": {}}
    start = time.perf_counter()
    with GpuRunner(topology) as runner:
        row["ranks"] = [dataclasses.asdict(facts) for facts in runner.start()]
        for spec, schedule in chosen:
            (found,) = runner.measure(spec, [schedule])
            name = f"{spec.label} | {schedule.label}"
            if found.ok:
                row["us"][name] = round(found.value_us, 2)
            else:
                row["failed"][name] = f"{found.status}: {found.message[:300]}"
            print(f"{kind:4s} {name:100s} {row['us'].get(name) or row['failed'][name]}", flush=True)
    row["wall_s"] = round(time.perf_counter() - start, 1)
    row["as_asked"] = {each["peer_memory"] for each in row["ranks"]} == {kind}
    return row


def table(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Time by virtual memory over time by IPC, of each schedule: the least of every kind."""
    least: dict[str, dict[str, float]] = {}
    for row in rows:
        for name, us in row.get("us", {}).items():
            times = least.setdefault(name, {})
            times[row["kind"]] = min(us, times.get(row["kind"], us))
    ratios = {name: round(times[VMM] / times[IPC], 3) for name, times in least.items() if VMM in times and IPC in times}
    failed = sum(len(row.get("failed", {})) + ("error" in row) + (not row.get("as_asked", True)) for row in rows)
    return {"vmm_over_ipc": ratios, "failed": failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[IPC, VMM, IPC])
    given = parser.parse_args()
    topology = topology_of(given.ranks)
    chosen = [(spec, schedule) for spec in specs(topology) for schedule in sample(spec)]
    rows: list[dict[str, Any]] = []
    for kind in given.kinds:
        try:
            rows.append(measure(kind, topology, chosen))
        except TilescaleError as error:  # the other kind is wanted all the same
            rows.append({"kind": kind, "error": f"{type(error).__name__}: {error}"[:1500]})
            print(kind, rows[-1]["error"], flush=True)
        result = {**common.header("peer_memory"), "topology": topology.name, "source": topology.source, "rows": rows,
                  **table(rows)}
        if given.output:
            given.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in ("topology", "source", "vmm_over_ipc", "failed")}, indent=1), flush=True)
    raise SystemExit(1 if result["failed"] else 0)


if __name__ == "__main__":
    common.run(main)
