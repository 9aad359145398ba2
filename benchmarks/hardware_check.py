"""Every kind of generated schedule of every shipped operation on one GPU, in rank processes: right, and as emulated?

    python benchmarks/hardware_check.py [-o FILE] [--ranks 4,8] [--only WORDS] [--most N] [--no-emulation]

A kind is what chooses the code that runs: algorithm, transport, direction, overlap, clusters, split contraction, few rows,
and where operands lie. Of each, one schedule is run three times on the smallest workload of the recipes (small integers
exactly, random numbers within the bound), and so is the size that the emulator takes it at: there both sides run the
same binaries, on integers whose sums are exact, so both must give the bits of the reference. Ranks share the GPU: 4 in
the scale model of 8xH200-NVSwitch, which charges every remote byte to its links, others without charges. Times are of
a few samples, for orientation: the emulator works meanwhile, in processes that give way to those of the ranks. Results are
written as they come, and a second run of the same sources does what is missing: what was right is not measured again, and
emulated alone where that was not reached. Exit 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import common
from written import Row, Written

from tilescale.codegen.emit import emit
from tilescale.commands.worlds import shipped, targets_for
from tilescale.errors import TilescaleError
from tilescale.processes.worker import die_with
from tilescale.runtime.emulate import emulate
from tilescale.runtime.gpu_runner import GpuRunner
from tilescale.runtime.measure import Measurement
from tilescale.runtime.sampling import Bounds
from tilescale.runtime.scaled import scaled
from tilescale.schedules.knob import BY_NAME
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

Kind = tuple[tuple[str, ...], Schedule]
FEW = Bounds(minimum=4, maximum=4, batch=4, warmup=1)
CHARGED = 4  # ranks in the scale model
AHEAD = 2  # processes that enumerate spaces before ranks need them
KNOBS = ("algorithm", "transport", "direction", "overlap")
SOME: dict[str, Callable[[Schedule], bool]] = {
    "clusters": lambda s: s.cluster_m > 1,
    "split contraction": lambda s: s.split_k > 1,
    "shared tiles": lambda s: s.stream_k > 0,
    "turns": lambda s: s.consumers == "pingpong",
    "few rows": lambda s: 0 < s.block_m < 64,
    "in packets": lambda s: s.protocol == "ll",
}


def kind(schedule: Schedule) -> tuple[str, ...]:
    """The words that name the code a schedule runs."""
    some = [name for name, holds in SOME.items() if holds(schedule)]
    scope = [f"by {schedule.copy_scope}"] if schedule.copy_scope != "block" else []
    return (*(getattr(schedule, knob) for knob in KNOBS), *some, *scope)


def may_name(spec: Spec, wanted: Sequence[str]) -> bool:
    """Whether a family of this workload can have a name that holds one of these texts: known before its schedules are."""
    of_kinds = {str(value) for knob in (*KNOBS, "copy_scope") for value in BY_NAME[knob].domain}
    words = {spec.op, *spec.then, spec.placement, *of_kinds, "by", *" ".join(SOME).split()}
    return any(all(any(part in word for word in words) for part in text.split()) for text in wanted)


def sample(spec: Spec) -> dict[tuple[str, ...], Schedule]:
    """The middle generated schedule of every kind that needs no multicast."""
    kinds: dict[tuple[str, ...], list[Schedule]] = {}
    for each in Space(spec).without_multicast:
        if each.compute == "generated":
            kinds.setdefault(kind(each), []).append(each)
    return {name: found[len(found) // 2] for name, found in sorted(kinds.items())}


def spread(kinds: list[Kind], most: int) -> list[Kind]:
    """At most so many kinds, evenly from all of them; 0: all."""
    step = max(1, -(-len(kinds) // most)) if most else 1
    return kinds[::step]


def workloads(recipes: Path, topology: Topology) -> Iterator[Spec]:
    """The smallest shipped workload of every operation that has kernels, with operands of both placements; products of
    few and of many rows count as two, and so do tensors of two and of four dimensions, elements of one byte and of more,
    and other operands beside the inputs."""
    smallest: dict[tuple[str, ...], Spec] = {}
    for path in shipped(recipes):
        for target in targets_for(path, topology.ranks):
            spec = dataclasses.replace(target.spec, topology=topology)
            sizes = spec.inputs[0].sizes
            bytewise = spec.inputs[0].itemsize == 1
            key = (spec.op, *spec.then, str(len(sizes)), str(sizes[0] < 64 and spec.local), str(bytewise),
                   *(extra.name for extra in spec.extras))
            if spec.kernels and (key not in smallest or _work(spec) < _work(smallest[key])):
                smallest[key] = spec
    for spec in smallest.values():
        for placement in ("ordinary",) if spec.local else ("ordinary", "symmetric"):
            yield dataclasses.replace(spec, placement=placement)


def _work(spec: Spec) -> tuple[int, int]:
    return spec.flops, spec.link_bytes


def emulated(spec: Spec, schedule: Schedule) -> str:
    """What the emulator says of the same schedule: "ok", or what is wrong."""
    try:
        run = emulate(spec, schedule)
    except TilescaleError as error:
        return str(error)[:300]
    return "ok" if run.ok else run.report[:300]


def said(measure: Callable[[], Measurement]) -> str | list[float]:
    """The samples in us where everything was right, or what was not."""
    try:
        found = measure()
    except TilescaleError as error:
        return str(error)[:300]
    return [round(us, 2) for us in found.calls_us] if found.ok else f"{found.status}: {found.message[:300]}"


class Check:
    """`ahead` enumerates, `behind` emulates (None: nothing is), both while the ranks measure."""

    def __init__(self, options: argparse.Namespace, table: Written, ahead: ProcessPoolExecutor,
                 behind: ProcessPoolExecutor | None) -> None:
        self.options, self.table = options, table
        self.wanted = options.only.split(",")
        self._ahead, self._behind = ahead, behind
        self._pending: list[tuple[Row, Future[str]]] = []

    def samples(self, topology: Topology) -> list[tuple[Spec, Future[dict[tuple[str, ...], Schedule]]]]:
        """The workloads that may hold what is wanted; their schedules are being enumerated."""
        specs = [spec for spec in workloads(self.options.recipes, topology) if may_name(spec, self.wanted)]
        return [(spec, self._ahead.submit(sample, spec)) for spec in specs]

    def families(self, spec: Spec, found: dict[tuple[str, ...], Schedule]) -> Iterator[tuple[Row, Schedule]]:
        for words, schedule in spread(list(found.items()), self.options.most):
            name = " ".join((spec.op, *spec.then, *words, spec.placement))
            if any(text in name for text in self.wanted):
                yield {"family": name, "ranks": spec.world, "topology": spec.topology.kind, "workload": spec.label,
                       "schedule": schedule.label}, schedule

    def on(self, topology: Topology, samples: list[tuple[Spec, Future[dict[tuple[str, ...], Schedule]]]]) -> None:
        with GpuRunner(topology, bounds=FEW) as runner:
            runner.start()  # without a GPU: one error, not one a family
            for spec, found in samples:
                for row, schedule in self.families(spec, found.result()):
                    self.one(runner, spec, row, schedule)
                    self.collect()

    def one(self, runner: GpuRunner, spec: Spec, row: Row, schedule: Schedule) -> None:
        """What the file lacks of a family."""
        known = next((each for each in self.table.mine if self.table.key(each) == self.table.key(row)), None)
        if known is None:
            known = {**row, **self.measured(runner, spec, schedule)}
            self.table.add(known)
            print(json.dumps(known), flush=True)
        if self._behind and "emulated" not in known:
            self._pending.append((known, self._behind.submit(emulated, spec, schedule)))

    def measured(self, runner: GpuRunner, spec: Spec, schedule: Schedule) -> dict[str, Any]:
        small = scaled(spec, schedule)
        program = emit(small.spec, small.schedule, small.plan)  # which the space may lack: tiles are not those of its size
        found: dict[str, Any] = {
            "small": said(lambda: runner.measure_program(small.spec, small.schedule, program)),
            "whole": said(lambda: runner.measure(spec, [schedule])[0]),
        }
        if isinstance(found["whole"], list):
            found["samples_us"] = found["whole"]
        return {name: "ok" if isinstance(value, list) and name != "samples_us" else value for name, value in found.items()}

    def collect(self, *, wait: bool = False) -> None:
        """Note what the emulator has said by now, or all that it was asked."""
        pending, self._pending = self._pending, []
        for row, job in pending:
            if not wait and not job.done():
                self._pending.append((row, job))
                continue
            error = job.exception()  # of the emulator itself: it is no reason to leave the ranks' work undone
            row["emulated"] = job.result() if error is None else f"{type(error).__name__}: {error}"[:300]
            self.table.write()
            if row["emulated"] != "ok":
                print(json.dumps(row), flush=True)


def right(row: dict[str, Any]) -> bool:
    return row["small"] == row["whole"] == row.get("emulated", "ok") == "ok"


def counts(rows: Sequence[Row]) -> dict[str, int]:
    return {"families": len(rows), "right": sum(map(right, rows)), "emulated": sum("emulated" in row for row in rows)}


def table_of(path: Path) -> Written:
    """The file: rows that were right are kept, the others are measured again."""
    return Written(path, common.header("hardware_check"), ("family", "ranks", "topology", "workload", "schedule"),
                   keep_older=False, finished=right, summary=counts, every_s=1.0)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE",
                        help="rows of the same sources that are there are kept")
    parser.add_argument("--ranks", default="4,8", help="numbers of ranks, joined by commas")
    parser.add_argument("--only", default="", metavar="WORDS",
                        help="families whose name holds one of these, joined by commas")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="kinds of a workload, where time is short")
    parser.add_argument("--no-emulation", action="store_true", help="where there is no C++ compiler")
    parser.add_argument("--jobs", type=int, default=0, help="emulations side by side; 0: a core each, less one a rank")
    parser.add_argument("--recipes", type=Path, default=common.ROOT / "recipes")
    return parser


def give_way(parent: int) -> None:
    """What a process of a pool does first: it ends with this one, and ranks come before it."""
    die_with(parent)
    os.nice(10)


def pool(processes: int) -> ProcessPoolExecutor:
    """Processes that hold nothing open of this one, so that ranks notice when it is gone."""
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), give_way, (os.getpid(),))


def run(options: argparse.Namespace, path: Path) -> list[Row]:
    """The rows of these sources, new and kept."""
    table, worlds = table_of(path), [int(word) for word in options.ranks.split(",")]
    ahead = pool(AHEAD)
    behind = None if options.no_emulation else pool(options.jobs or max(1, (os.cpu_count() or 1) - max(worlds)))
    check = Check(options, table, ahead, behind)
    try:
        topologies = [Topology.scale_model("8xH200-NVSwitch", ranks) if ranks == CHARGED else Topology.shared_gpu(ranks)
                      for ranks in worlds]
        for topology, samples in [(each, check.samples(each)) for each in topologies]:
            check.on(topology, samples)
        check.collect(wait=True)
    finally:
        table.write(now=True)
        for each in (ahead, behind):
            if each:
                each.shutdown(wait=False, cancel_futures=True)
    return table.mine


def main() -> int:
    options = arguments().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = run(options, options.output or Path(folder) / "hardware_check.json")
    wrong = [row for row in rows if not right(row)]
    print("\n".join(f"WRONG {json.dumps(row)}" for row in wrong))
    print(f"{len(rows) - len(wrong)} of {len(rows)} right")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    common.run(main)
