"""Record series for `bench_regress.py`: the same kernels again and again, alternating.

    python benchmarks/database/record_series.py OUT.json [RUNS]

With torch and a GPU, bfloat16 kernels timed by CUDA events; without, numpy kernels timed by the CPU time of this
process. A run is the median of `TIMINGS` timings, as a nightly run would be; runs of different kernels alternate, so
that clocks, temperature and neighbours move between them.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

RUNS, TIMINGS = 60, 15
Timer = Callable[[Callable[[], object]], float]


def on_cpu() -> tuple[str, dict[str, Callable[[], object]], Timer]:
    """(what it is, kernels by name, how one is timed in microseconds)."""
    import numpy as np

    work: dict[str, Callable[[], object]] = {}
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

    return "numpy on a CPU that other jobs share, CPU time", work, timed


def on_gpu() -> tuple[str, dict[str, Callable[[], object]], Timer]:
    """The same on the GPU. Errors: ImportError or RuntimeError where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("no GPU")
    work: dict[str, Callable[[], object]] = {}
    for size in (512, 1024, 2048, 4096, 8192):
        a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        work[f"matmul {size}"] = lambda a=a: a @ a  # type: ignore[misc]
        work[f"add {size}"] = lambda a=a: a + a  # type: ignore[misc]
        work[f"softmax {size}"] = lambda a=a: torch.softmax(a, 1)  # type: ignore[misc]
        work[f"transpose {size}"] = lambda a=a: a.t().contiguous()  # type: ignore[misc]

    def timed(call: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return 1e3 * float(begin.elapsed_time(end))

    return f"torch {torch.__version__} on {torch.cuda.get_device_name()}, CUDA events", work, timed


def main() -> None:
    try:
        what, work, timed = on_gpu()
    except (ImportError, RuntimeError):
        what, work, timed = on_cpu()
    series: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else RUNS):
        for name, call in work.items():
            series[name].append(round(statistics.median(timed(call) for _ in range(TIMINGS)), 3))
    rows = [{"name": name, "times_us": values} for name, values in series.items()]
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{"what": {json.dumps(what)}, "timings": {TIMINGS}, "series": [\n{lines}\n]}}\n'
    Path(sys.argv[1]).write_text(text, encoding="utf-8")
    print(f"{sys.argv[1]}: {len(rows)} series, {what}")


if __name__ == "__main__":
    main()
