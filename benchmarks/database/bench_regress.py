"""How quiet and how sensitive each detector is: `make bench-regress`. The last line is one JSON object.

False alarms: the share of series without a step in which the detector raises an alarm at any run, the larger one of
0.3 % and 1 % noise. Found: the share of series with a step in which it raises an alarm, in the right direction, after
the step and before the given number of runs have passed (a missing run counts as one that passed). `--tune` uses seeds
that the report never sees, and is how the constants of `perfdb/detectors/quiet.py` were chosen.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

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
RECORDED = Path(__file__).parent / "recorded.json"


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


def recorded_scores(detector: Detector) -> dict[str, float]:
    """The same on series that were recorded on machines: as they are, and with a step of 5 % put in at run 40."""
    data = json.loads(RECORDED.read_text(encoding="utf-8"))
    times = np.array([series["times_us"] for series in data["series"]], dtype=np.float64)
    stepped = times.copy()
    stepped[:, 40:] *= 1.05
    at = np.full(len(times), 40)
    return {
        "series": len(times),
        "false_alarm_rate": round(false_alarms(detector, times), 4),
        "found_5pct_within_10": round(found(detector, stepped, at, 10), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=1000, help="series a case (five cases)")
    parser.add_argument("--seed", type=int, default=REPORT_SEED)
    parser.add_argument("--tune", action="store_true", help="use the seeds for tuning, ours alone")
    arguments = parser.parse_args()
    seed = TUNE_SEED if arguments.tune else arguments.seed
    names = ["quiet"] if arguments.tune else list(detectors())
    line: dict[str, float] = {}
    for name in names:
        started = time.perf_counter()
        result = scores(detectors()[name], arguments.series, seed)
        note = {"recorded": recorded_scores(detectors()[name])} if RECORDED.exists() else {}
        print(f"{name:12s} {json.dumps({**result, **note})} {time.perf_counter() - started:.1f} s", file=sys.stderr)
        if name in ("quiet", "asv", "conbench", "edivisive"):
            line |= {key if name == "quiet" else f"{name}_{key}": value for key, value in result.items()}
    for phi in (0.0, 0.2, 0.6):
        result = scores(detectors()["quiet"], arguments.series, seed + 100, phi)
        print(f"quiet, correlation {phi}: {json.dumps(result)}", file=sys.stderr)
    line["series"] = arguments.series * (len(CASES) + 2)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
