"""How quiet and how sensitive each detector is: `make bench-regress`. The last line is one JSON object.

False alarms: the share of series without a step in which the detector raises an alarm at any run, the larger one of
0.3 % and 1 % noise. Found: the share of series with a step in which it raises an alarm, in the right direction, after
the step and before the given number of runs have passed (a missing run counts as one that passed). `--tune` uses seeds
that the report never sees, and is how the constants of `perfdb/detectors/quiet.py` were chosen.

Recorded series are judged as well (`recorded.py`), under keys that begin with `recorded_`. `-o FILE` keeps all
figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import common
import numpy as np
import recorded

from perfdb.detecting import Detector, Floats
from perfdb.detectors import detectors
from perfdb.synthetic import Recipe, generate

REPORT_SEED, TUNE_SEED = 20_260_001, 7
LOW, HIGH = 0.003, 0.01
# Name, noise, step, and within how many runs.
CASES = (
    ("found_2pct_low_noise", LOW, 0.02, 5),
    ("found_3pct_high_noise", HIGH, 0.03, 10),
    ("found_5pct_high_noise", HIGH, 0.05, 5),
)


def false_alarms(detector: Detector, times: Floats) -> float:
    """Share of series with any alarm."""
    return sum(bool(changes) for changes in detector.find(times)) / len(times)


def found(detector: Detector, times: Floats, steps: np.ndarray, within: int, up: bool = True) -> float:  # type: ignore[type-arg]
    """Share of series with an alarm in the right direction within `within` runs of the step."""
    hits = 0
    for changes, step in zip(detector.find(times), steps, strict=True):
        hits += any(step < change.found <= step + within and (change.ratio > 1) == up for change in changes)
    return hits / len(times)


def scores(detector: Detector, count: int, seed: int, phi: float = 0.4) -> dict[str, float]:
    """All figures of a detector on `count` series a case."""
    base = Recipe(phi=phi)
    quiet = [generate(replace(base, noise=noise), count, seed + at)[0] for at, noise in enumerate((LOW, HIGH))]
    result = {"false_alarm_rate": max(false_alarms(detector, times) for times in quiet)}
    for at, (name, noise, step, within) in enumerate(CASES):
        times, steps = generate(replace(base, noise=noise, step=step), count, seed + 10 + at)
        result[name] = found(detector, times, steps, within)
    return {name: round(value, 4) for name, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=1000, help="series a case (five cases)")
    parser.add_argument("--seed", type=int, default=REPORT_SEED)
    parser.add_argument("--tune", action="store_true", help="use the seeds for tuning, ours alone")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    seed = TUNE_SEED if arguments.tune else arguments.seed
    names = ["quiet"] if arguments.tune else list(detectors())
    line: dict[str, float] = {}
    seen: dict[str, dict[str, float]] = {}
    for name in names:
        started = time.perf_counter()
        result = scores(detectors()[name], arguments.series, seed)
        noted = recorded.scores(detectors()[name])
        seen[name] = {**result, **noted}
        print(f"{name:12s} {json.dumps(seen[name])} {time.perf_counter() - started:.1f} s", file=sys.stderr)
        if name in ("quiet", "asv", "conbench", "edivisive"):
            line |= {key if name == "quiet" else f"{name}_{key}": value for key, value in (result | noted).items()}
    for phi in (0.0, 0.2, 0.6):
        result = seen[f"quiet, correlation {phi}"] = scores(detectors()["quiet"], arguments.series, seed + 100, phi)
        print(f"quiet, correlation {phi}: {json.dumps(result)}", file=sys.stderr)
    line["series"] = arguments.series * (len(CASES) + 2)
    line["recorded_series"] = len(recorded.load())
    if arguments.output is not None:
        kept = {**common.header("regress"), "figures": line, "seen": seen}
        arguments.output.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(line))


if __name__ == "__main__":
    main()
