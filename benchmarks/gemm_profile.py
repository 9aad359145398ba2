"""What binds the best product: Nsight Compute's counters of our kernel and of the library's, on the row of
results/gemm.json that reaches the highest rate.

    python benchmarks/gemm_profile.py

Clocks are left as they are. The counters are read in several passes over one launch each, so that times in them are no
benchmark: results/gemm.json has those.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import common
import products

import tilescale as ts
from tilescale.errors import MissingDependency
from tilescale.runtime.gpu_runner import GpuRunner, Limits
from tilescale.runtime.sampling import Bounds
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.declaration import Spec

RESULTS = Path(__file__).parent / "results"
SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "WarpStateStats", "SchedulerStats",
            "LaunchStats")
METRICS = (
    "sm__inst_executed_pipe_tensor.sum", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor_op_gmma.sum", "sm__cycles_active.avg", "sm__cycles_elapsed.max",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "lts__t_bytes.sum", "dram__bytes.sum",
    "smsp__cycles_active.avg",
)
LAUNCHES = 8  # of a kernel, that are looked at
OURS, LIBRARY = "tilescale_gemm", "nvjet"  # references in float64 are made by other kernels


def best() -> dict[str, Any]:
    """The row with the highest rate."""
    rows = json.loads((RESULTS / "gemm.json").read_text())["rows"]
    found: dict[str, Any] = max(rows, key=lambda row: row["tflops"])
    return found


def spec_of(row: dict[str, Any]) -> tuple[Spec, Schedule]:
    spec = products.declare(row["m"], products.Layer(row["layer"], row["n"], row["k"]), ts.Topology.detect().with_ranks(1))
    return spec, next(s for s in Space(spec, products.SPACE).schedules if s.label == row["schedule"])


def run_once() -> None:
    """What the profiler looks at: some launches of ours, and of the library."""
    spec, schedule = spec_of(best())
    with GpuRunner(spec.topology, bounds=Bounds(1, 1, 1, warmup=0), limits=Limits(candidate_s=300, first_s=300)) as runner:
        (measured,) = runner.measure(spec, [schedule])
        print(measured.status, measured.message, runner.baselines(spec, [products.PEER])[products.PEER].status)


def profile(kernel: str) -> dict[str, dict[str, str]]:
    """Counters of the longest of the first launches by section, each a value with its unit: a library also multiplies
    what outputs are checked with. ncu empties the caches before every pass."""
    command = ["ncu", "--csv", "--page", "details", "--print-units", "base", "--clock-control", "none",
               "--target-processes", "all", "--kernel-name", f"regex:{kernel}", "--launch-count", str(LAUNCHES),
               *(word for section in SECTIONS for word in ("--section", section)), "--metrics", ",".join(METRICS),
               sys.executable, __file__, "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    launches: dict[str, dict[str, dict[str, str]]] = {}
    duration: dict[str, float] = {}
    for row in csv.DictReader(lines):
        if row.get("Metric Name"):
            sections = launches.setdefault(row["ID"], {})
            sections.setdefault(row["Section Name"], {"kernel": row["Kernel Name"]})[row["Metric Name"]] = (
                f"{row['Metric Value']} {row['Metric Unit']}".strip())
            if row["Metric Name"] == "Duration":
                duration[row["ID"]] = float(row["Metric Value"].replace(",", ""))
    if not duration:
        raise SystemExit(f"ncu reported nothing: {done.stdout[-1500:]} {done.stderr[-1500:]}")
    return launches[max(duration, key=duration.__getitem__)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", action="store_true", help="what the profiler runs")
    if parser.parse_args().once:
        run_once()
        return
    if shutil.which("ncu") is None:
        raise MissingDependency("a profile is made by Nsight Compute", "no ncu on the PATH",
                                "install it beside the CUDA toolkit")
    row = {key: value for key, value in best().items() if not key.startswith("samples")}
    result = {**common.header("gemm_profile"), "product": row, "ours": profile(OURS)}
    path = RESULTS / "gemm_profile.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    try:
        result["library"] = profile(LIBRARY)
        path.write_text(json.dumps(result, indent=1) + "\n")
    except (SystemExit, subprocess.TimeoutExpired) as error:
        print(f"the library's kernel was not profiled: {error}")
    print(json.dumps(result["ours"], indent=1)[:6000])


if __name__ == "__main__":
    common.run(main)
