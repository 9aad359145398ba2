"""Registers, spilled bytes and shared memory of kernel bodies, from the compiler's log.

    python benchmarks/bodies.py [--each N] [--workers N]

For every operation of the tables, on the topologies that they are measured on: all kernels of those that communicate, and
of products without communication those of the schedules that the cost model ranks first for every layer, and first of those
that share tiles or take turns at them. Each text once.
Needs no GPU. Exits with 1 where one spills, or does not compile.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
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
from tilescale.costmodel.product import product_us
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.declaration import Spec

BEFORE = "4xA100-NVLink"  # a machine of sm_80
RANKS = 2
MANY = 8  # whose kernels have more parts in a sum, and in a tile the rows of two owners, or of several shards
LOCAL_ROWS, LAYERS = (1, 16, 64, 512, 8192), 3  # every third of them
# What kernels differ by.
SHAPING = ("transport", "direction", "algorithm", "overlap", "chunk_order", "protocol", "block_m", "block_n", "num_stages")


def workloads() -> Iterator[Spec]:
    """One of every kind: a kernel's text depends on sizes only where they decide its accesses."""
    alone = ts.Topology.named(beside.MACHINE).with_ranks(1)
    for m, layer in product(LOCAL_ROWS, tuple(products.layers())[::LAYERS]):
        yield products.declare(m, layer, alone)
    for op, kind in product(beside.SHAPES, ("shared_gpu", beside.MACHINE)):
        for ranks, dtype in product((RANKS, MANY), dict.fromkeys((None, beside.ROUNDED.get(op)))):
            yield beside.layers(op, ranks, kind, dtype)[0].spec
    before = ts.Topology.named(BEFORE).with_ranks(RANKS)
    for op in beside.SHAPES:
        spec = beside.layers(op, RANKS, "shared_gpu")[0].spec
        yield replace(spec, topology=before)
    yield products.declare(LOCAL_ROWS[-1], next(iter(products.layers())), before.with_ranks(1))
    yield beside.all_reduce_small([RANKS]).rows[-1].spec
    shared = ts.Topology.shared_gpu(RANKS)
    for rows in (4096, 32):
        yield ts.redistribute(ts.Tensor((rows, 8192), "bfloat16", ts.FullRow), to=ts.Replicate, topology=shared)
        yield ts.redistribute(ts.Tensor((rows, 8192), "bfloat16", ts.Partial), to=ts.FullRow, topology=shared)


def first(spec: Spec, each: int) -> tuple[Schedule, ...]:
    """Of products without communication the schedules that the cost model ranks first, of all, of those that share
    tiles and of those whose warpgroups take turns; of others one for every kernel that the space holds."""
    limits: dict[str, Sequence[str | int]] = {"compute": ["generated"]} if spec.operation.compute == "gemm" else {}
    found = Space(spec, limits).schedules
    if spec.local:
        ranked = sorted(found, key=lambda schedule: product_us(spec, schedule))
        shared = [schedule for schedule in ranked if schedule.stream_k]
        turns = [schedule for schedule in ranked if schedule.consumers == "pingpong"]
        return tuple(dict.fromkeys([*ranked[:each], *shared[:1], *turns[:1]]))
    kinds: dict[tuple[object, ...], Schedule] = {}
    for schedule in found:
        kinds.setdefault(tuple(getattr(schedule, name) for name in SHAPING), schedule)
    return tuple(kinds.values())


def bodies(each: int) -> dict[Kernel, tuple[Schedule, ProgramLaunch]]:
    """Kernels, with a schedule and a launch of each."""
    found: dict[Kernel, tuple[Schedule, ProgramLaunch]] = {}
    for program, schedule in ((emit(spec, schedule), schedule) for spec in workloads() for schedule in first(spec, each)):
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
    parser.add_argument("--each", type=int, default=2, help="schedules of a product without communication")
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
