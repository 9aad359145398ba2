"""Record series for `bench_regress.py`: the same kernels again and again, in several sessions, alternating.

    python benchmarks/database/record_series.py OUT.json.gz [--runs 60] [--sessions 3] [--limit-s 90]

With torch and a GPU: bfloat16 kernels timed by CUDA events, and schedules of one workload on ranks
that share the GPU, measured by tilescale's own runner. Without: numpy kernels timed by the CPU time of this process.
A run is the median of `TIMINGS` timings, as a nightly run would be; runs of different kernels alternate, so that
clocks, temperature and neighbours move between them, and every session is made of fresh processes. Each workload is
recorded in several variants (another layout, chunking or schedule): a series that goes from one to another at some run
holds a real change, whose size is known from the whole of both. What is not measured within the limit is missing
(null).
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

TIMINGS = 15
Kernels = dict[str, Callable[[], object]]
Timer = Callable[[Callable[[], object]], float]
Runs = dict[str, list[float | None]]


def on_cpu() -> tuple[Kernels, Timer]:
    """numpy kernels by "workload | variant", and how one is timed in microseconds."""
    import numpy as np

    work: Kernels = {}
    for size in (64, 96, 128, 192, 256):
        a = np.random.default_rng(size).standard_normal((size, size)).astype(np.float32)
        work[f"matmul {size}"] = lambda a=a: a @ a  # type: ignore[misc]
        work[f"sort {size}"] = lambda a=a: np.sort(a, axis=None)  # type: ignore[misc]
        work[f"exp {size}"] = lambda a=a: np.exp(a)  # type: ignore[misc]
        work[f"transpose {size}"] = lambda a=a: np.ascontiguousarray(a.T)  # type: ignore[misc]

    def timed(call: Callable[[], object]) -> float:
        started = time.process_time_ns()
        for _ in range(40):
            call()
        return (time.process_time_ns() - started) / 40_000

    return work, timed


def on_gpu() -> tuple[Kernels, Timer]:
    """The same on the GPU, each variant of a workload under a name of its own."""
    import torch

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, chunks: int) -> Callable[[], object]:
        parts = list(zip(a.chunk(chunks), out.chunk(chunks), strict=True))
        return lambda: [torch.mm(part, b, out=to) for part, to in parts]

    work: Kernels = {}
    for m, n, k in ((4096, 4096, 4096), (8192, 7168, 8192), (512, 7168, 8192), (4096, 1280, 8192), (16, 8192, 3584)):
        name, a, b, out = f"mm {m}x{n}x{k}", tensor(m, k), tensor(k, n), tensor(m, n)
        work[f"{name} | one"] = product(a, b, out, 1)
        work[f"{name} | transposed operand"] = product(a, tensor(n, k).t(), out, 1)
        if m >= 512:
            work[f"{name} | two chunks"] = product(a, b, out, 2)
    for mib in (4, 64, 512):
        source, target = tensor(mib << 19), tensor(mib << 19)
        for chunks in (1, 2, 4):
            pairs = list(zip(target.chunk(chunks), source.chunk(chunks), strict=True))
            work[f"copy {mib} MiB | {chunks} chunks"] = lambda pairs=pairs: [to.copy_(at) for to, at in pairs]  # type: ignore[misc]
    for size in (2048, 8192):
        x = tensor(size, size)
        work[f"softmax {size} | rows"] = lambda x=x: torch.softmax(x, 1)  # type: ignore[misc]
        work[f"softmax {size} | columns"] = lambda x=x: torch.softmax(x, 0)  # type: ignore[misc]
        work[f"transpose {size} | one"] = lambda x=x: x.t().contiguous()  # type: ignore[misc]
        work[f"sum {size} | rows"] = lambda x=x: x.sum(1)  # type: ignore[misc]

    def timed(call: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return 1e3 * float(begin.elapsed_time(end))

    return work, timed


def kernels(runs: int, gpu: bool) -> Runs:
    """`runs` runs of every kernel, in turn, after one that warms up and is not kept."""
    work, timed = on_gpu() if gpu else on_cpu()
    found: Runs = {name: [] for name in work}
    for number in range(runs + 1):
        for name, call in work.items():
            value = round(statistics.median(timed(call) for _ in range(TIMINGS)), 3)
            found[name] += [value] if number else []
    return found


def schedules(runs: int, until: float) -> Runs:
    """`runs` runs of a few schedules of two workloads on four ranks that share the GPU, until a monotonic time."""
    from check_runner import gather, product, sample

    from tilescale.runtime.gpu_runner import GpuRunner
    from tilescale.spec.topology import Topology

    topology = Topology.scale_model("8xH200-NVSwitch", ranks=4)
    chosen = []
    for spec, most in ((product(topology), 7), (gather(topology), 3)):
        fit = [each for each in sample(spec) if each.compute == "generated" and each.transport != "copy_engine"]
        fit = [each for each in fit if each.overlap == ("fused" if spec.op == "ag_gemm" else "none")]
        chosen.append((spec, fit[:most]))
    found: Runs = {f"{spec.label} | {each.label}": [] for spec, some in chosen for each in some}
    with GpuRunner(topology) as runner:
        for number in range(runs + 1):
            for spec, some in chosen:
                if time.monotonic() > until:
                    return found
                for one in runner.measure(spec, some):
                    if number:
                        value = round(one.value_us, 3) if one.ok else None
                        found[f"{spec.label} | {one.schedule.label}"].append(value)
    return found


def sessions(count: int, runs: int, limit_s: float) -> Iterator[Runs]:
    """Each session's runs, from fresh processes; a session gets an even part of the time."""
    try:
        import torch

        gpu = torch.cuda.is_available()
    except ImportError:
        gpu = False
    start, each = time.monotonic(), -(-runs // count)
    for number in range(count):
        child = [sys.executable, __file__, "-", "--runs", str(each), *(["--gpu"] if gpu else [])]
        done = subprocess.run(child, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True)
        session: Runs = json.loads(done.stdout.splitlines()[-1])
        if gpu:
            session |= schedules(each, start + limit_s * (number + 1) / count)
        yield {name: values + [None] * (each - len(values)) for name, values in session.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="OUT.json.gz")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=90.0)
    parser.add_argument("--gpu", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.output == "-":  # one session of kernels, in this process
        print(json.dumps(kernels(given.runs, given.gpu)))
        return
    import common

    found: Runs = {}
    header = {**common.header("recorded series"), "timings": TIMINGS, "sessions": given.sessions}
    for number, session in enumerate(sessions(given.sessions, given.runs, given.limit_s), 1):
        for name, values in session.items():
            found.setdefault(name, []).extend(values)
        rows = [
            {"workload": workload, "variant": variant, "times_us": values}
            for name, values in found.items()
            for workload, _, variant in [name.partition(" | ")]
        ]
        # Written after every session: what was recorded is kept whatever happens next.
        text = json.dumps({**header, "series": rows}, separators=(",", ":"))
        Path(given.output).write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        print(f"session {number}: {given.output}: {len(rows)} series", flush=True)


if __name__ == "__main__":
    main()
