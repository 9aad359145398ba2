"""All-reduces whose caller overwrites an input at once, while a rank is far behind: does a NaN or a stale value come out?

    python benchmarks/spoiled_inputs.py [-o benchmarks/results/spoiled_inputs.json]

RANKS ranks share a GPU. In each of ITERATIONS iterations every rank writes new integers to its input and calls the
operation; behind the call, on its stream, rank 0 fills its input with NaN, and the last rank begins LATE_MS later than
it could. Sums are exact, so every element of every output is compared. The inputs of consecutive iterations differ in
every element: one that is left of an earlier call is seen. At the end of each schedule comes a control: rank 0 spoils its
input *before* the call, and every rank must see the NaN.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common

RANKS, ITERATIONS, LATE_MS, SHAPE = 8, 1000, 5.0, (64, 8192)
KINDS, STEP, WATCHED = 8, 16, 100  # values of an element, of an iteration; iterations between looks at the device
LIMIT_S = 100
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0"}


def chosen() -> dict[str, tuple[Any, Any]]:
    """Spec and schedule by name: one of each algorithm and direction; those that read operands in place too."""
    import tilescale as ts
    from tilescale.schedules.space import space

    found: dict[str, tuple[Any, Any]] = {}
    for placement in ("ordinary", "symmetric"):
        spec = ts.redistribute(ts.Tensor(SHAPE, "bfloat16", ts.Partial), ts.Replicate, ts.Topology.shared_gpu(RANKS),
                               inputs=placement)
        for s in space(spec, {"transport": ["peer_copy"]}):
            name = f"{s.algorithm} {s.direction}"
            if placement == "ordinary":
                found.setdefault(name, (spec, s))
            elif s.direction == "pull":
                found.setdefault(f"{name} in place", (spec, s))
    return found


class Iterations:
    """One rank's side: `call(a, out)` enqueues the operation, `delay(ms)` holds the stream. Counts lie on the device."""

    def __init__(self, torch: Any, rank: int, a: Any, call: Callable[[Any, Any], None], delay: Callable[[float], None],
                 world: int = RANKS) -> None:
        self.torch, self.rank, self.world, self.a = torch, rank, world, a
        self.call, self.delay = call, delay
        self.out = torch.full_like(a, float("nan"))
        patterns = [self._pattern(each) for each in range(world)]
        self.mine, self.whole = patterns[rank], sum(patterns)
        self.nans, self.stale = (torch.zeros((), dtype=torch.int64, device=a.device) for _ in range(2))

    def _pattern(self, rank: int) -> Any:
        index = self.torch.arange(self.a.numel(), device=self.a.device).reshape(self.a.shape)
        return ((index + 3 * rank) % KINDS).to(self.a.dtype)

    def once(self, number: int, spoil_first: bool = False) -> None:
        torch, step = self.torch, number % STEP
        self.a.copy_(self.mine + step)
        if spoil_first and self.rank == 0:
            self.a.fill_(float("nan"))
        if self.rank == self.world - 1:
            self.delay(LATE_MS)
        self.call(self.a, self.out)
        if self.rank == 0:
            self.a.fill_(float("nan"))
        wrong, nan = self.out != self.whole + self.world * step, torch.isnan(self.out)
        self.nans += nan.sum()
        self.stale += (wrong & ~nan).sum()
        self.out.fill_(float("nan"))  # what a call leaves out is seen

    def counts(self) -> dict[str, int]:
        return {"nan": int(self.nans), "stale": int(self.stale)}


class Rank:
    """One rank process in its share of the GPU."""

    def __init__(self, meeting: str, rank: int) -> None:
        import torch
        import torch.distributed as dist

        from tilescale.runtime.gpu_driver import RankDriver
        from tilescale.spec.topology import Topology

        torch.cuda.set_device(0)
        torch.zeros(1, device="cuda")
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
        self.torch, self.rank = torch, rank
        self.driver = RankDriver(0, rank, RANKS, Topology.shared_gpu(RANKS).sm_share, 0)
        self.stream = self.driver.create_stream()
        self.external = torch.cuda.ExternalStream(self.stream)
        self.cycles_per_ms = self._cycles()

    def _cycles(self) -> float:
        """What torch.cuda._sleep takes for a millisecond."""
        torch, cycles = self.torch, 20_000_000
        with torch.cuda.stream(self.external):
            torch.cuda._sleep(cycles)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(self.external)
            torch.cuda._sleep(cycles)
            end.record(self.external)
        self.external.synchronize()
        return cycles / float(start.elapsed_time(end))

    def exchange(self, mine: bytes) -> list[bytes]:
        answers: list[Any] = [None] * RANKS
        self.torch.distributed.all_gather_object(answers, mine)
        return answers

    def run(self, spec: Any, program: Any, binaries: dict[str, bytes], iterations: int) -> dict[str, Any]:
        from tilescale.deploy.driver import Matrix
        from tilescale.deploy.launch import PreparedOperation
        from tilescale.deploy.library import tensor_at
        from tilescale.deploy.modules import Modules

        torch = self.torch
        wanted = {kernel.digest: binaries[kernel.digest] for kernel in program.kernels}
        operation = PreparedOperation(spec, program, self.rank, self.driver, self.exchange,
                                      Modules(self.driver, wanted), time_limit_s=10.0)
        at = operation.operand("a")
        a = torch.empty(SHAPE, dtype=torch.bfloat16, device="cuda") if at is None else \
            tensor_at(torch, Matrix(at, *SHAPE, (SHAPE[1], 1), "bfloat16"))

        def call(a: Any, out: Any) -> None:
            operation({"a": a.data_ptr(), "out": out.data_ptr()}, self.stream)

        def delay(ms: float) -> None:
            torch.cuda._sleep(int(ms * self.cycles_per_ms))

        mine = Iterations(torch, self.rank, a, call, delay)
        self.external.synchronize()
        torch.distributed.barrier()
        start = time.perf_counter()
        for number in range(iterations):
            mine.once(number)
            if number % WATCHED == WATCHED - 1:
                operation.check(self.stream)
        operation.check(self.stream)
        found: dict[str, Any] = {**mine.counts(), "seconds": time.perf_counter() - start}
        mine.once(iterations, spoil_first=True)
        operation.check(self.stream)
        found["control_nan"] = mine.counts()["nan"] - found["nan"]
        operation.close()
        return found


def rank_main(folder: Path, rank: int, iterations: int) -> None:
    one = Rank(f"{folder}/meeting", rank)
    work, binaries = pickle.loads((folder / "work").read_bytes())
    with one.torch.no_grad(), one.torch.cuda.stream(one.external):
        for name, (spec, program) in work.items():
            found = one.run(spec, program, binaries, iterations)
            print(json.dumps({"name": name, "rank": rank, **found}), flush=True)
            if rank == 0:
                print(f"{name}: {found}", file=sys.stderr, flush=True)
    one.torch.distributed.barrier()


def prepare(folder: Path) -> dict[str, str]:
    """Every schedule proved, emitted and compiled for the ranks; their labels."""
    from tilescale.codegen.cache import Binary
    from tilescale.codegen.compile import Compiler, Source
    from tilescale.codegen.emit import emit
    from tilescale.schedules.lower import lower
    from tilescale.schedules.verify import verify

    work: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for name, (spec, schedule) in chosen().items():
        plan = lower(spec, schedule)
        proof = verify(plan)
        if not proof.ok:
            raise SystemExit(f"{name}: {proof}")
        work[name], labels[name] = (spec, emit(spec, schedule, plan)), schedule.label
    kernels = {kernel.digest: kernel for _, program in work.values() for kernel in program.kernels}
    with Compiler(2) as compiler:
        made = compiler.compile([Source(k.text, k.entry, k.arch) for k in kernels.values()])
    binaries = {digest: b.cubin for digest, b in zip(kernels, made, strict=True) if isinstance(b, Binary)}
    (folder / "work").write_bytes(pickle.dumps((work, binaries)))
    return labels


def started(folder: Path, iterations: int, environment: dict[str, str]) -> list[dict[str, Any]]:
    """What every rank says, each in a process of its own; what was said before one ended early too."""
    command = [sys.executable, __file__, "--folder", str(folder), "--iterations", str(iterations)]
    ranks = [
        subprocess.Popen([*command, "--rank", str(rank)], env={**os.environ, **ENVIRONMENT, **environment},
                         stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    end, lines = time.monotonic() + LIMIT_S, []
    try:
        for process in ranks:
            try:
                said = process.communicate(timeout=max(1.0, end - time.monotonic()))[0]
            except subprocess.TimeoutExpired:
                process.kill()
                said = process.communicate()[0]
            lines += [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return lines


def result_of(labels: dict[str, str], lines: list[dict[str, Any]], iterations: int) -> dict[str, Any]:
    """The result; `complete` where every rank has said how every schedule ended, and saw the control."""
    rows = {}
    for name, label in labels.items():
        mine = [line for line in lines if line["name"] == name]
        elements = SHAPE[0] * SHAPE[1]
        rows[name] = {
            "schedule": label, "ranks": len(mine),
            "nan": sum(m["nan"] for m in mine), "stale": sum(m["stale"] for m in mine),
            "control_seen": len(mine) == RANKS and all(m["control_nan"] == elements for m in mine),
            "seconds": round(max((m["seconds"] for m in mine), default=0.0), 2),
        }
    return {
        "spec": f"all_reduce {SHAPE[0]}x{SHAPE[1]} bfloat16",
        "ranks": RANKS, "iterations": iterations, "late_ms": LATE_MS,
        "nan": sum(row["nan"] for row in rows.values()), "stale": sum(row["stale"] for row in rows.values()),
        "complete": bool(rows) and all(row["control_seen"] for row in rows.values()), "schedules": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        rank_main(given.folder, given.rank, given.iterations)
        return 0
    from tilescale.runtime.mps import MpsDaemon

    with tempfile.TemporaryDirectory() as name:
        labels = prepare(Path(name))
        with MpsDaemon() as daemon:
            lines = started(Path(name), given.iterations, daemon.environment)
    result = {**common.header("spoiled_inputs"), **result_of(labels, lines, given.iterations)}
    if given.output:
        given.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "schedules"}))
    return 0 if result["complete"] and not result["nan"] and not result["stale"] else 1


if __name__ == "__main__":
    common.run(main)
