"""Predicted times, written down before the first run on several GPUs, and scored after it.

The file holds schedules and times by number of ranks and workload, and a digest of all that, which a result repeats.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import common

import tilescale as ts
from several import workloads
from several.statistic import finite, spearman
from tilescale import canon
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.topology import Topology
from tilescale.tuner.record_space import sample

MACHINE = "8xH200-NVSwitch"
FILE = common.ROOT / "benchmarks" / "predictions.json"
SCHEDULES = 24  # a workload: every kind, the one expected to be best and others


def predicted(topology: Topology, count: int, small: bool = False) -> dict[str, Any]:
    """By workload: the spec, and `count` schedules with their predicted microseconds and interval."""
    specs, _ = workloads.tuned(topology, small=small)
    found = {}
    for name, spec in specs.items():
        rows = []
        for schedule in sample(Space(spec), count):
            time = ts.predict(spec, schedule)
            rows.append({"schedule": canon.encode(schedule), "label": schedule.label, "us": round(time.us, 3),
                         "low_us": round(time.low_us, 3), "high_us": round(time.high_us, 3)})
        found[name] = {"label": spec.label, "spec": spec.digest, "rows": rows}
    return found


def write(path: Path, worlds: tuple[int, ...] = (2, 4, 8), count: int = SCHEDULES) -> str:
    """Write the file down; returns its digest."""
    topologies = {str(world): predicted(Topology.named(MACHINE, world), count) for world in worlds}
    link = Topology.named(MACHINE).link
    body = {"machine": MACHINE, "link_gbps": link.gbps, "latency_us": link.latency_us, "worlds": topologies}
    document = {
        "name": "predictions",
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": common.version(),
        "digest": digest(body),
        **body,
    }
    path.write_text(json.dumps(document, indent=None) + "\n")
    return str(document["digest"])


def digest(body: Mapping[str, Any]) -> str:
    """Of what is predicted, whatever the file's form."""
    kept = {key: body[key] for key in ("machine", "link_gbps", "latency_us", "worlds")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def read(path: Path) -> dict[str, Any]:
    """The file; SystemExit where it was changed after it was written."""
    document: dict[str, Any] = json.loads(path.read_text())
    if digest(document) != document["digest"]:
        raise SystemExit(f"{path} holds what was predicted; got: digest {digest(document)} for {document['digest']}")
    return document


def schedules(entry: Mapping[str, Any]) -> list[tuple[Schedule, Mapping[str, Any]]]:
    """Those of a workload, with their rows."""
    return [(canon.decode(Schedule, row["schedule"]), row) for row in entry["rows"]]


def score(pairs: list[tuple[Mapping[str, Any], float]]) -> dict[str, Any]:
    """How good predictions were: `pairs` of a row and the measured microseconds."""
    if not pairs:
        return {"schedules": 0}
    ratios = [row["us"] / us for row, us in pairs]
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    return {
        "schedules": len(pairs),
        "predicted_over_measured": round(statistics.median(ratios), 4),
        "median_error": round(statistics.median(errors), 4),
        "p90_error": round(errors[int(0.9 * (len(errors) - 1))], 4),
        "in_interval": round(sum(row["low_us"] <= us <= row["high_us"] for row, us in pairs) / len(pairs), 4),
        "spearman": finite(spearman([row["us"] for row, _ in pairs], [us for _, us in pairs])),
    }
