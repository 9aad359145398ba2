"""The table of the family: op by transport by algorithm by overlap: feasible, proved, emulated, measured, shapes tried.

    python benchmarks/family_table.py [--db perf.db] [--worlds 2,3,4,8] [--op shift] [-o docs/ops/table.md]

What is counted, so that the table takes minutes: *feasible* is the number of schedules in the whole spaces of the
sample's
workloads (a small and a large one of each, on every world); *proved* is one schedule of each direction and number of
chunks in flight, of every row, at the small size on every world and at the large one on the largest; *emulated* is one
schedule of each direction, on the smallest and largest world, at the small size. *Measured* counts trials that ended
well in the database, by source; shapes are those of the
sample and of the database. The second file that is written, beside the first, holds the same as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import common

import tilescale as ts
from tilescale.errors import SpecError
from tilescale.runtime.emulate import emulate
from tilescale.schedules.lower import lower
from tilescale.schedules.proof_cache import ProofCache
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec
from tilescale.spec.operation import OPERATIONS
from tilescale.spec.topology import Topology

DEFAULT = Path(__file__).parents[1] / "docs" / "ops" / "table.md"
WORLDS = (2, 3, 4, 8)
DTYPE = "bfloat16"
Key = tuple[str, str, str, str]
Make = Callable[[Topology, bool], Spec]


def _tensor(view: Any, shape: tuple[int, ...]) -> ts.Tensor:
    return ts.Tensor(shape, DTYPE, view)


def _product(a: Any, b: Any, out: Any) -> Make:
    def make(topology: Topology, large: bool) -> Spec:
        world = topology.world
        m, n, k = (1024 * world, 1024 * world, 512 * world) if large else (128 * world, 64 * world, 64 * world)
        return ts.matmul(_tensor(a, (m, k)), ts.Tensor((k, n), DTYPE, b, "col"), out, topology)

    return make


def _along(view: Any, order: str) -> Make:
    """A product whose contraction is gathered; `order` is that of what is sent."""
    def make(topology: Topology, large: bool) -> Spec:
        world, rows = topology.world, view is ts.FullRow
        m, n, k = (1024 * world, 1024 * world, 512 * world) if large else (128 * world, 64 * world, 128 * world)
        a = ts.Tensor((m, k), DTYPE, view, "row" if rows else order)
        return ts.matmul(a, ts.Tensor((k, n), DTYPE, view, order if rows else "row"), view, topology)

    return make


def _blocks(algorithm: str | None) -> Make:
    """A product of block matrices; worlds that make no such mesh are left out (see `specs`)."""
    def make(topology: Topology, large: bool) -> Spec:
        rows, cols = topology.mesh_sizes
        m, n, k = (2048, 2048, 1024) if large else (64, 128, 64)
        a, b = _tensor(ts.Block, (m * rows, k * cols)), _tensor(ts.Block, (k * cols, n * cols))
        return ts.matmul(a, b, ts.Block, topology, algorithm=algorithm)

    return make


def _moved(view: Any, to: Any, root: int | None = None) -> Make:
    def make(topology: Topology, large: bool) -> Spec:
        rows, columns = (1024, 1024) if large else (128, 24)
        shape = (rows * topology.world, columns * topology.world)
        return ts.redistribute(_tensor(view, shape), to, topology, root=root)

    return make


def _attention(view: Any, to: Any, transpose: tuple[int, ...] | None) -> Make:
    def make(topology: Topology, large: bool) -> Spec:
        heads, sequence, size = (8, 1024, 128) if large else (2, 128, 16)
        shape = (1 if large else 2, heads * topology.world, sequence * topology.world, size)
        return ts.redistribute(_tensor(view, shape), to, topology, transpose=transpose)

    return make


def _shift(topology: Topology, large: bool) -> Spec:
    rows, columns = (2048, 2048) if large else (128, 24)
    return ts.shift(_tensor(ts.FullRow, (rows * topology.world, columns)), 1, topology)


def _routed(combines: bool) -> Make:
    def make(topology: Topology, large: bool) -> Spec:
        world, (tokens, columns, experts, top_k) = topology.world, (1024, 1024, 32, 8) if large else (16, 24, 4, 2)
        if not combines:
            tensor = _tensor(ts.FullRow, (tokens * world, columns))
            return ts.moe_dispatch(tensor, experts * world, top_k, topology)
        rows = _tensor(ts.FullRow, (world * tokens * world * top_k, columns))
        return ts.moe_combine(rows, tokens * world, experts * world, top_k, topology, inputs="symmetric")

    return make


def _experts(combines: bool) -> Make:
    def make(topology: Topology, large: bool) -> Spec:
        world, (tokens, size, experts, top_k) = topology.world, (1024, 1024, 32, 8) if large else (16, 136, 4, 2)
        weights = _tensor(ts.FullRow, (experts * world, size, size))
        if not combines:
            return ts.moe_dispatch_gemm(_tensor(ts.FullRow, (tokens * world, size)), weights, top_k, topology)
        rows = _tensor(ts.FullRow, (world * tokens * world * top_k, size))
        return ts.moe_gemm_combine(rows, weights, tokens * world, top_k, topology)

    return make


# The workloads of each operation, in the two sizes of the sample.
WORKLOADS: dict[str, tuple[Make, ...]] = {
    "ag_gemm": (_product(ts.FullRow, ts.FullCol, ts.FullCol),),
    "ag_gemm_k": (_along(ts.FullCol, "col"), _along(ts.FullCol, "row")),
    "all_gather": (_moved(ts.FullRow, ts.Replicate),),
    "all_reduce": (_moved(ts.Partial, ts.Replicate),),
    "all_to_all": (_moved(ts.FullRow, ts.FullCol), _attention(ts.Shard(2), ts.Shard(1), None),
                   _attention(ts.Shard(1), ts.Shard(1), (0, 2, 1, 3))),
    "broadcast": (_moved(ts.Replicate, ts.Replicate, 0),),
    "gemm": (_product(ts.Replicate, ts.FullCol, ts.FullCol),),
    "gemm_ar": (_product(ts.FullCol, ts.FullRow, ts.Replicate),),
    "gemm_rs": (_product(ts.FullCol, ts.FullRow, ts.FullRow),),
    "moe_combine": (_routed(True),),
    "moe_dispatch": (_routed(False),),
    "moe_dispatch_gemm": (_experts(False),),
    "moe_gemm_combine": (_experts(True),),
    "reduce_scatter": (_moved(ts.Partial, ts.FullRow),),
    "shift": (_shift,),
    "summa": (_blocks(None), _blocks("cannon")),
    "weight_gather_gemm": (_along(ts.FullRow, "row"), _along(ts.FullRow, "col")),
}


@dataclass
class Row:
    """One line. `proved` and `emulated`: how many of the sample, and of how many; `shapes` by number of elements."""

    feasible: int = 0
    proved: int = 0
    verified: int = 0
    right: int = 0
    emulated: int = 0
    measured: dict[str, int] = field(default_factory=dict)
    shapes: dict[int, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def tried(self, shape: str) -> None:
        self.shapes[prod(int(size) for size in shape.replace("<=", "").split("x") if size.isdigit())] = shape

    @property
    def extremes(self) -> tuple[str, str]:
        return (self.shapes[min(self.shapes)], self.shapes[max(self.shapes)]) if self.shapes else ("", "")


def specs(op: str, worlds: tuple[int, ...]) -> Iterator[tuple[Spec, bool]]:
    """The workloads of the sample, each with whether it is a small one."""
    for world in worlds:
        topology = Topology.scale_model("8xH200-NVSwitch", ranks=world)
        for make in WORKLOADS.get(op, ()):
            for large in (False, True):
                with contextlib.suppress(SpecError):
                    if (spec := make(topology, large)).kernels:
                        yield spec, not large


def key_of(op: str, schedule: Schedule) -> Key:
    local = not OPERATIONS[op].moves
    if local:
        return op, "-", "-", schedule.compute
    return op, schedule.transport, schedule.algorithm, schedule.overlap


def count(rows: dict[Key, Row], op: str, worlds: tuple[int, ...], say: Callable[[str], None]) -> None:
    """Spaces, proofs and emulations of one operation."""
    cache, emulated = ProofCache(), set[tuple[Any, ...]]()
    for spec, small in specs(op, worlds):
        say(spec.label)
        sample: dict[tuple[Any, ...], Schedule] = {}
        for schedule in Space(spec):
            key = key_of(op, schedule)
            rows.setdefault(key, Row()).feasible += 1
            rows[key].tried("x".join(map(str, spec.inputs[0].shape)) if spec.operation.compute != "gemm" else
                            "x".join(map(str, spec.mnk)))
            sample.setdefault((key, schedule.direction, schedule.depth > 1), schedule)
        for (key, direction, _), schedule in sample.items() if small or spec.world == max(worlds) else ():
            row, proof = rows[key], verify(lower(spec, schedule), cache=cache)
            row.verified += 1
            row.proved += proof.ok
            if not proof.ok:
                row.failures.append(f"{spec.label} {schedule.label}: {proof}")
            orders = tuple(tensor.order for tensor in spec.inputs)
            again = (key, direction, spec.world, spec.output.view, spec.attributes, orders)
            if small and spec.world in (min(worlds), max(worlds)) and again not in emulated:
                emulated.add(again)
                found = emulate(spec, schedule, seed=len(emulated))
                row.emulated += 1
                row.right += found.ok
                if not found.ok:
                    row.failures.append(found.report)


SQL = """
select workload.op, workload.shape, schedule.document, trial.source, count(*)
from trial join workload on workload.id = trial.workload_id join schedule on schedule.id = trial.schedule_id
where trial.status = 'ok' group by workload.op, workload.shape, schedule.id, trial.source
order by workload.op, workload.shape, schedule.id, trial.source
"""


def measured(rows: dict[Key, Row], url: str) -> None:
    """Trials of a database that ended well."""
    from perfdb import open_database

    with open_database(url, create=False) as database:
        found = database.rows(SQL)
    for op, shape, document, source, trials in found:
        if op not in OPERATIONS:
            continue
        row = rows.setdefault(key_of(op, Schedule.from_dict(json.loads(document))), Row())
        row.measured[source] = row.measured.get(source, 0) + trials
        row.tried(shape)


def markdown(rows: dict[Key, Row], result: dict[str, Any]) -> str:
    head = ["op", "transport", "algorithm", "overlap", "feasible", "proved", "emulated right", "measured", "smallest",
            "largest"]
    worlds = ", ".join(map(str, result["worlds"]))
    lines = [
        "# The family of operations", "", f"Made by `{result['command']}`; version {result['version']}.", "",
        f"Sample: two sizes a workload on worlds {worlds} of the scale model. Feasible: schedules of the whole spaces.",
        "Proved: one of each direction and depth, at the small size on every world and at the large one on the largest.",
        "Emulated: one of each direction on the smallest and the largest world, at the small size. Measured: trials of the",
        "database, by source. A local product has its kind of product where others have an overlap. Operations without a",
        "row have no kernels, or were not asked for.", "",
        "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key, row in sorted(rows.items()):
        sources = ", ".join(f"{source} {trials}" for source, trials in sorted(row.measured.items())) or "-"
        cells = [*key, str(row.feasible), f"{row.proved} of {row.verified}", f"{row.right} of {row.emulated}", sources,
                 *row.extremes]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=DEFAULT)
    parser.add_argument("--db", help="a database of measurements: a file or a URL")
    parser.add_argument("--worlds", default=",".join(map(str, WORLDS)))
    parser.add_argument("--op", action="append", choices=sorted(WORKLOADS), help="these alone; may be repeated")
    given = parser.parse_args()
    worlds, rows = tuple(int(word) for word in given.worlds.split(",")), dict[Key, Row]()
    for op in given.op or sorted(WORKLOADS):
        count(rows, op, worlds, lambda label: print(label, file=sys.stderr, flush=True))
    if given.db:
        measured(rows, given.db)
    result: dict[str, Any] = common.header("family_table") | {"worlds": list(worlds), "rows": [
        dict(zip(("op", "transport", "algorithm", "overlap"), key, strict=True)) | {
            "feasible": row.feasible, "verified": row.verified, "proved": row.proved, "emulated": row.emulated,
            "emulated_right": row.right, "measured": row.measured, "smallest": row.extremes[0],
            "largest": row.extremes[1], "failures": row.failures}
        for key, row in sorted(rows.items())]}
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(markdown(rows, result))
    given.output.with_suffix(".json").write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    failed = [failure for row in rows.values() for failure in row.failures]
    print("\n".join(failed) or f"{len(rows)} rows, all of the sample proved and right")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
