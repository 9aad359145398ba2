"""Predicted times, written down before workloads first run on several GPUs, and scored after that.

A file holds schedules and times by number of ranks and workload, and is named by a digest of all that, which results
repeat. Files are added, for workloads that no other one holds, and never changed.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Container, Mapping, Sequence
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
FOLDER = common.ROOT / "benchmarks" / "predictions"
SCHEDULES = 24  # a workload: every kind, the one expected to be best and others


def predicted(topology: Topology, count: int, small: bool = False, without: Container[str] = ()) -> dict[str, Any]:
    """By workload, but for some: the spec, and `count` schedules with their predicted microseconds and interval."""
    specs, _ = workloads.tuned(topology, small=small)
    found = {}
    for name, spec in specs.items():
        if name in without:
            continue
        rows = []
        for schedule in sample(Space(spec), count):
            time = ts.predict(spec, schedule)
            rows.append({"schedule": canon.encode(schedule), "label": schedule.label, "us": round(time.us, 3),
                         "low_us": round(time.low_us, 3), "high_us": round(time.high_us, 3)})
        found[name] = {"label": spec.label, "spec": spec.digest, "rows": rows}
    return found


def write(folder: Path, worlds: Sequence[int] = (2, 4, 8), count: int = SCHEDULES) -> Path | None:
    """Write down what no file of the folder holds; returns the new file, or None where nothing was left to predict."""
    known = read(folder)
    topologies = {str(world): predicted(Topology.named(MACHINE, world), count, without=known.get(str(world), {}))
                  for world in worlds}
    topologies = {world: entries for world, entries in topologies.items() if entries}
    if not topologies:
        return None
    link = Topology.named(MACHINE).link
    body = {"machine": MACHINE, "link_gbps": link.gbps, "latency_us": link.latency_us, "worlds": topologies}
    document = {
        "name": "predictions",
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": common.version(),
        "digest": digest(body),
        **body,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{document['digest']}.json"
    path.write_text(json.dumps(document) + "\n")
    return path


def digest(body: Mapping[str, Any]) -> str:
    """Of what is predicted, whatever the file's form."""
    kept = {key: body[key] for key in ("machine", "link_gbps", "latency_us", "worlds")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """What all files hold: entries by number of ranks and workload, each with the `digest` of its file and when that was
    `written`. SystemExit where a file was changed after it was written."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        document: dict[str, Any] = json.loads(path.read_text())
        if not digest(document) == document["digest"] == path.stem:
            raise SystemExit(f"{path} holds what was predicted; got: digest {digest(document)} for {document['digest']}")
        kept = {key: document[key] for key in ("digest", "written")}
        for world, entries in document["worlds"].items():
            found.setdefault(world, {}).update({name: {**entry, **kept} for name, entry in entries.items()})
    return found


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
