"""Registers, spilled bytes and shared memory of the bodies that the tuner turns to first, from the compiler's log.

    python benchmarks/bodies.py [--each N] [--workers N]

For every operation of the tables, on the topologies that they are measured on: the kernels of the schedules that the cost
model ranks first, each text once. Needs no GPU. Exits with 1 where one spills, or does not compile.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import beside
import common
import products

import tilescale as ts
from tilescale.codegen.cache import Binary
from tilescale.codegen.compile import Compiler, Source
from tilescale.codegen.emit import emit
from tilescale.codegen.program import Kernel, ProgramLaunch
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.declaration import Spec
from tilescale.tuner.prior import Prior

RANKS = 8
FORESEEING = 4  # processes, each of which starts more
LOCAL_ROWS = (16, 64, 512, 8192)
COPIES = ("all_gather", "reduce_scatter", "all_reduce")


def workloads() -> Iterator[Spec]:
    """One of every kind: a kernel's text depends on sizes only where they decide its accesses."""
    alone = ts.Topology.named(beside.MACHINE).with_ranks(1)
    for m in LOCAL_ROWS:
        for layer in list(products.layers())[::4]:
            yield products.declare(m, layer, alone)
    for op in beside.SHAPES:
        for kind in ("shared_gpu", beside.MACHINE):
            yield from (row.spec for row in beside.layers(op, RANKS, kind))
    yield from (row.spec for row in beside.all_reduce_small([RANKS]).rows)
    shared = ts.Topology.shared_gpu(RANKS)
    tensor = ts.Tensor((4096, 8192), "bfloat16", ts.FullRow)
    yield ts.redistribute(tensor, to=ts.Replicate, topology=shared)
    yield ts.redistribute(ts.Tensor((4096, 8192), "bfloat16", ts.Partial), to=ts.FullRow, topology=shared)


def first(spec: Spec, each: int) -> tuple[Schedule, ...]:
    """The first schedules by the cost model, of generated kernels, and the first of every transport."""
    limits: dict[str, Sequence[str | int]] = {"compute": ["generated"]} if spec.operation.compute == "gemm" else {}
    ranked = Prior(spec, Space(spec, limits).schedules).ranked
    of_transport = {schedule.transport: schedule for schedule in reversed(ranked)}
    return tuple(dict.fromkeys([*ranked[:each], *of_transport.values()]))


def bodies(each: int) -> dict[Kernel, tuple[Schedule, ProgramLaunch]]:
    """Kernels, with a schedule and a launch of each."""
    found: dict[Kernel, tuple[Schedule, ProgramLaunch]] = {}
    specs = tuple(workloads())
    with ProcessPoolExecutor(FORESEEING) as pool:
        chosen = pool.map(partial(first, each=each), specs)
        pairs = [(spec, schedule) for spec, schedules in zip(specs, chosen, strict=True) for schedule in schedules]
    for spec, schedule in pairs:
        program = emit(spec, schedule)
        for launch in program.ranks[0]:
            if launch.kernel is not None:
                found.setdefault(program.kernels[launch.kernel], (schedule, launch))
    return found


def _row(kernel: Kernel, schedule: Schedule, launch: ProgramLaunch, binary: Binary) -> dict[str, Any]:
    return {"body": kernel.entry.removeprefix("tilescale_"), "text": kernel.digest, "schedule": schedule.label,
            "threads": launch.threads, "registers": binary.registers, "spill_bytes": binary.spill_bytes,
            "stack_bytes": binary.stack_bytes, "shared_bytes": launch.shared_bytes + binary.shared_bytes,
            "cluster": launch.cluster}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=4, help="schedules of a workload")
    parser.add_argument("--workers", type=int, default=None)
    given = parser.parse_args()
    found = bodies(given.each)
    with Compiler(workers=given.workers) as compiler:
        made = compiler.compile([Source(kernel.text, kernel.entry, kernel.arch) for kernel in found])
    rows = [_row(kernel, *found[kernel], binary) for kernel, binary in zip(found, made, strict=True)
            if isinstance(binary, Binary)]
    failed = [f"{binary.entry}: {binary.message[:300]}" for binary in made if not isinstance(binary, Binary)]
    rows.sort(key=lambda row: (row["body"], row["schedule"], row["text"]))
    summary = {"bodies": len(rows), "failed": failed, "spilling": sum(1 for row in rows if row["spill_bytes"]),
               "most_registers": max(row["registers"] for row in rows)}
    path = Path(__file__).parent / "results" / "bodies.json"
    path.write_text(json.dumps({**common.header("bodies"), **summary, "rows": rows}, indent=1) + "\n")
    print(json.dumps(summary))
    return 1 if failed or summary["spilling"] else 0


if __name__ == "__main__":
    sys.exit(main())
