"""Every kind of generated schedule of every shipped operation on one GPU, in rank processes: right, and as emulated?

    python benchmarks/hardware_check.py [-o FILE] [--ranks 4,8] [--only TEXT] [--most N] [--no-emulation]

A kind is what chooses the code that runs: algorithm, transport, direction, overlap, clusters, split contraction, few rows,
and where operands lie. Of each, one schedule is run three times on the smallest workload of the recipes (small integers
exactly, random numbers within the bound), and so is the size that the emulator takes it at: there both sides run the
same binaries, on integers whose sums are exact, so both must give the bits of the reference. Ranks share the GPU: 4 in
the scale model of 8xH200-NVSwitch, which charges every remote byte to its links, others without charges. Times are of
a few samples, for orientation. Results are written as they come; exit 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import common

from tilescale.codegen.emit import emit
from tilescale.commands.worlds import shipped, targets_for
from tilescale.errors import TilescaleError
from tilescale.runtime.emulate import emulate
from tilescale.runtime.gpu_runner import GpuRunner
from tilescale.runtime.measure import Measurement
from tilescale.runtime.sampling import Bounds
from tilescale.runtime.scaled import scaled
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

Kind = tuple[tuple[str, ...], Schedule]
FEW = Bounds(minimum=4, maximum=4, batch=4, warmup=1)
CHARGED = 4  # ranks in the scale model


def kind(schedule: Schedule) -> tuple[str, ...]:
    """The words that name the code a schedule runs."""
    some = {
        "clusters": schedule.cluster_m > 1,
        "split contraction": schedule.split_k > 1,
        "shared tiles": schedule.stream_k > 0,
        "few rows": 0 < schedule.block_m < 64,
        "in packets": schedule.protocol == "ll",
        f"by {schedule.copy_scope}": schedule.copy_scope != "block",
    }
    words = (schedule.algorithm, schedule.transport, schedule.direction, schedule.overlap)
    return (*words, *(name for name, holds in some.items() if holds))


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
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.rows = options, list[dict[str, Any]]()

    def on(self, topology: Topology, pool: ProcessPoolExecutor | None) -> None:
        """Measure first, all on `topology`; emulating would disturb the ranks' processes."""
        pending: list[tuple[dict[str, Any], Spec, Schedule]] = []
        with GpuRunner(topology, bounds=FEW) as runner:
            runner.start()  # without a GPU: one error, not one a family
            for spec in workloads(self.options.recipes, topology):
                for words, schedule in spread(list(sample(spec).items()), self.options.most):
                    name = " ".join((spec.op, *spec.then, *words, spec.placement))
                    if not any(word in name for word in self.options.only.split(",")):
                        continue
                    row = {"family": name, "ranks": topology.ranks, "topology": topology.kind, "workload": spec.label,
                           "schedule": schedule.label, **self.measured(runner, spec, schedule)}
                    pending.append((row, spec, schedule))
                    self.rows.append(row)
                    print(json.dumps(row), flush=True)
                self.write()
        if pool:
            self.emulate(pool, pending)

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

    def emulate(self, pool: ProcessPoolExecutor, pending: list[tuple[dict[str, Any], Spec, Schedule]]) -> None:
        jobs: list[Future[str]] = [pool.submit(emulated, spec, schedule) for _, spec, schedule in pending]
        for (row, _, _), job in zip(pending, jobs, strict=True):
            row["emulated"] = job.result()
            if row["emulated"] != "ok":
                print(json.dumps(row), flush=True)
        self.write()

    def write(self) -> None:
        if self.options.output:
            summary = {"families": len(self.rows), "right": sum(map(right, self.rows))}
            text = json.dumps({**common.header("hardware_check"), **summary, "rows": self.rows}, indent=1)
            self.options.output.write_text(text + "\n")


def right(row: dict[str, Any]) -> bool:
    return row["small"] == row["whole"] == row.get("emulated", "ok") == "ok"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    parser.add_argument("--ranks", default="4,8", help="numbers of ranks, joined by commas")
    parser.add_argument("--only", default="", metavar="WORDS",
                        help="families whose name holds one of these, joined by commas")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="kinds of a workload, where time is short")
    parser.add_argument("--no-emulation", action="store_true", help="where there is no C++ compiler")
    parser.add_argument("--jobs", type=int, default=12, help="emulations side by side")
    parser.add_argument("--recipes", type=Path, default=common.ROOT / "recipes")
    check = Check(parser.parse_args())
    pool = None if check.options.no_emulation else ProcessPoolExecutor(check.options.jobs)
    try:
        for ranks in map(int, check.options.ranks.split(",")):
            model = ranks == CHARGED
            check.on(Topology.scale_model("8xH200-NVSwitch", ranks) if model else Topology.shared_gpu(ranks), pool)
    finally:
        check.write()
        if pool:
            pool.shutdown(cancel_futures=True)
    wrong = [row for row in check.rows if not right(row)]
    print("\n".join(f"WRONG {json.dumps(row)}" for row in wrong))
    print(f"{len(check.rows) - len(wrong)} of {len(check.rows)} right")
    return 1 if wrong or not check.rows else 0


if __name__ == "__main__":
    common.run(main)
