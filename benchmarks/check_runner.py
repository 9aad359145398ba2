"""The GPU runner on one GPU, part by part: shares, residency, checks, timing, baselines, a planted hang, leftovers.

    python benchmarks/check_runner.py [-o FILE] [--ranks 4] [--only NAME,NAME]

Every part has a time limit of its own; results are printed and written as they come, the table last.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import common
from leftovers import leftovers

from tilescale.codegen.emit import emit
from tilescale.codegen.program import Program
from tilescale.codegen.table import KIND_SIGNAL, STEP
from tilescale.runtime.gpu_runner import GpuRunner
from tilescale.runtime.sampling import slowest
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec, matmul, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow, Replicate

LOOP = "import sys; sys.path[:0] = ['benchmarks']; import check_runner; check_runner.loop({ranks})"


def product(topology: Topology) -> Spec:
    a, b = Tensor((4096, 8192), "bfloat16", FullRow), Tensor((8192, 10240), "bfloat16", FullCol, order="col")
    return matmul(a, b, FullCol, topology)


def gather(topology: Topology) -> Spec:
    return redistribute(Tensor((4096, 8192), "bfloat16", FullRow), Replicate, topology)


def sample(spec: Spec) -> list[Schedule]:
    """One schedule of every kind (transport, direction, overlap, compute) without multicast, the middle one of each."""
    kinds: dict[tuple[str, ...], list[Schedule]] = {}
    for each in Space(spec).without_multicast:
        kinds.setdefault((each.overlap, each.compute, each.transport, each.direction), []).append(each)
    return [found[len(found) // 2] for _, found in sorted(kinds.items())]


def without_signal(program: Program) -> Program:
    """The first signal of rank 0 that goes to another rank adds nothing: that rank waits in vain."""
    for at, launch in enumerate(program.ranks[0]):
        rows = bytearray.fromhex(launch.steps)
        for start in range(0, len(rows), STEP.size):
            row = list(STEP.unpack_from(rows, start))
            if row[0] == KIND_SIGNAL and row[2] != 0:
                row[5] = 0
                STEP.pack_into(rows, start, *row)
                launches = list(program.ranks[0])
                launches[at] = dataclasses.replace(launch, steps=rows.hex())
                return dataclasses.replace(program, ranks=(tuple(launches), *program.ranks[1:]))
    raise ValueError("the program signals no other rank")


def apart(pairs: list[list[float]]) -> float:
    """Median of how far the values of a pair are apart, in percent."""
    return statistics.median(100 * abs(a - b) / a for a, b in pairs)


def loop(ranks: int) -> None:
    """Measure until this process is ended; run by `orphans` in a process of its own."""
    topology = Topology.shared_gpu(ranks)
    with GpuRunner(topology) as runner:
        while True:
            runner.measure(gather(topology), sample(gather(topology))[:1])
            print("measuring", flush=True)


class Checks:
    def __init__(self, output: Path | None, ranks: int, only: set[str]) -> None:
        self.output, self.ranks, self.only, self.rows = output, ranks, only, {}
        self.model = Topology.scale_model("8xH200-NVSwitch", ranks=ranks)
        self.before = leftovers()
        self.best: Schedule | None = None

    @contextlib.contextmanager
    def part(self, name: str, limit_s: int) -> Iterator[dict[str, Any]]:
        def late(*_: object) -> None:
            raise TimeoutError(f"{name} took longer than {limit_s} s")

        row: dict[str, Any] = {"ok": False}
        signal.signal(signal.SIGALRM, late)
        signal.alarm(limit_s)
        start = time.perf_counter()
        try:
            yield row
            row["ok"] = row.get("ok_if", True)
        except Exception as error:  # noqa: BLE001 - the other parts are wanted all the same
            row["error"] = f"{type(error).__name__}: {error}"[:1500]
            traceback.print_exc()
        signal.alarm(0)
        row["wall_s"] = round(time.perf_counter() - start, 2)
        self.rows[name] = row
        print(name, json.dumps(row), flush=True)
        if self.output:
            self.output.write_text(json.dumps({**common.header("check_runner"), "rows": self.rows}, indent=1))

    def scale_model(self) -> None:
        spec = product(self.model)
        with GpuRunner(self.model) as runner:
            with self.part("residency", 120) as row:  # MPS, green contexts, IPC, meeting
                row["ranks"] = [dataclasses.asdict(facts) for facts in runner.start()]
            with self.part("families", 300) as row:
                self.families(runner, spec, row)
            if (best := self.best) is None:
                return
            with self.part("stability", 120) as row:
                runner.measure(spec, [best])
                pairs = [[m.value_us for m in runner.measure(spec, [best, best])] for _ in range(20)]
                row["values_us"] = [[round(v, 2) for v in pair] for pair in pairs]
                row["median_percent"] = apart(pairs)
            with self.part("stability in turn", 120) as row:
                rounds = runner.race(spec, [best], rounds=20)  # each beside the next one
                values = [statistics.median(slowest(found[best.digest])) for found in rounds]
                pairs = [list(pair) for pair in pairwise(values)]
                row["values_us"] = [[round(v, 2) for v in pair] for pair in pairs]
                row["median_percent"] = apart(pairs)
            with self.part("baselines", 120) as row:
                row.update({n: round(t.value_us, 1) if t.ok else t.message for n, t in runner.baselines(spec).items()})
            with self.part("race", 120) as row:
                rounds = runner.race(spec, [best], ["unfused", "compute_only"], rounds=4)
                row["us"] = [
                    {n: round(statistics.median(map(max, zip(*s, strict=True))), 1) for n, s in r.items()}
                    for r in rounds
                ]
            with self.part("hang", 90) as row:
                fused = next(s for s in sample(spec) if (s.overlap, s.transport) == ("fused", "peer_copy"))
                start = time.perf_counter()
                found = runner.measure_program(spec, fused, without_signal(emit(spec, fused)))
                row.update(status=found.status, message=found.message[:300], classified_s=time.perf_counter() - start)
                again = runner.measure(spec, [fused])[0]
                row.update(again=again.status, recovered_s=time.perf_counter() - start, restarts=runner.restarts)
                row["ok_if"] = found.status == "timeout" and again.ok and row["recovered_s"] < 10 + row["classified_s"]
            with self.part("all_gather", 120) as row:
                self.families(runner, gather(self.model), row)
        self.left("after close", [facts.uuid for facts in runner.facts])

    def families(self, runner: GpuRunner, spec: Spec, row: dict[str, Any]) -> None:
        row["us"], good = {}, []
        for schedule in sample(spec):
            start = time.perf_counter()
            (m,) = runner.measure(spec, [schedule])
            text = f"{m.value_us:.1f} us, {len(m.calls_us)} samples" if m.ok else f"{m.status}: {m.message[:300]}"
            row["us"][schedule.label] = f"{text}, {time.perf_counter() - start:.2f} s"
            print(f"  {schedule.label:60s} {row['us'][schedule.label]}", flush=True)
            good += [m] if m.ok else []
        if spec.op == "ag_gemm" and good:
            self.best = min(good, key=lambda m: m.value_us).schedule
        row["ok_if"] = len(good) == len(row["us"])

    def left(self, when: str, uuids: list[str], limit_s: float = 12.0) -> None:
        with self.part(f"leftovers {when}", 60) as row:
            deadline = time.monotonic() + limit_s
            while True:
                now = leftovers(uuids)
                new = {kind: sorted(set(values) - set(self.before[kind])) for kind, values in now.items()}
                if not any(new.values()) or time.monotonic() > deadline:
                    break
                time.sleep(0.2)
            row.update(new, ok_if=not any(new.values()))

    def symm_mem(self) -> None:
        topology = Topology.shared_gpu(self.ranks)
        with GpuRunner(topology) as runner, self.part("torch.symm_mem", 180) as row:
            for spec in (product(topology), gather(topology)):
                found = runner.baselines(spec)
                row[spec.op] = {n: round(t.value_us, 1) if t.ok else t.message for n, t in found.items()}

    def orphans(self) -> None:
        for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
            with self.part(f"end by {number.name}", 90) as row:
                command = [sys.executable, "-c", LOOP.format(ranks=self.ranks)]
                process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE)
                row["said"] = process.stdout.readline().strip() if process.stdout else ""
                time.sleep(1.0)
                process.send_signal(number)
                row["code"] = process.wait(30)
                row["ok_if"] = row["said"] == "measuring"
            self.left(f"after {number.name}", [])

    def run(self) -> None:
        for act in (self.scale_model, self.symm_mem, self.orphans):
            if not self.only or act.__name__ in self.only:
                with contextlib.suppress(Exception):  # its parts have said what failed
                    act()
        print(
            "\n"
            + "\n".join(
                f"{name:28s} {'ok' if row['ok'] else 'FAILED':7s} {row['wall_s']:7.2f} s  {row.get('error', '')[:120]}"
                for name, row in self.rows.items()
            ),
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    checks = Checks(given.output, given.ranks, set(filter(None, given.only.split(","))))
    checks.run()
    sys.exit(0 if checks.rows and all(row["ok"] for row in checks.rows.values()) else 1)
