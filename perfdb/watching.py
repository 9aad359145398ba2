"""Series over time and what changed in them: regressions, improvements, and series that fell silent.

A series is a workload, topology, GPU model, source and schedule policy. Its points are the fastest trial of each run
("best") or of each run of one schedule ("schedule:DIGEST"). Driver and toolchain are covariates: an upgrade is seen,
and named. Power cap, clock policy and number of GPUs are set by people: points under different ones are never compared,
so a series is watched once for each such setting.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from perfdb.detecting import Change, false_discovery
from perfdb.detectors import DEFAULT, detector
from perfdb.errors import RecordError
from perfdb.fast import read_time, stored_time
from perfdb.records import ENVIRONMENT_FIELDS, EnvironmentKey
from perfdb.selects import checked_sources, environment_of
from perfdb.session import Database

DAYS = 30
# Runs before the period that a detector may look back on.
LOOK_BACK = 2.0
ALPHA = 0.05
# A series is silent when its last run is this many of its usual intervals behind the newest run of all.
SILENT = 3.0
SETTING = ("arch", "power_cap_w", "clock_policy", "gpu_count")
COVARIATES = tuple(name for name in ENVIRONMENT_FIELDS if name not in SETTING and name != "gpu")

_RECENT = (
    "SELECT workload_id, topology_id, environment_id, source, recorded_at, value_us, trial_id FROM point"
    " WHERE recorded_at >= ? AND source = ? ORDER BY recorded_at, trial_id"
)
_ONE_SCHEDULE = (
    "SELECT workload_id, topology_id, environment_id, source, recorded_at, value_us, id FROM trial"
    " WHERE recorded_at >= ? AND source = ? AND status = 'ok' AND schedule_id = (SELECT id FROM schedule WHERE"
    " digest = ?) ORDER BY recorded_at, id"
)


@dataclass(frozen=True)
class Line:
    """A series under one setting: its identity by row ids, and its points oldest first."""

    workload_id: int
    topology_id: int
    gpu: str
    source: str
    policy: str
    setting: tuple[Any, ...]
    times: tuple[datetime, ...]
    values_us: tuple[float, ...]
    trials: tuple[int, ...]
    environments: tuple[int, ...]


@dataclass(frozen=True)
class Finding:
    """Something about a series: kind is "regression", "improvement" or "missing".

    `first`: index into the line's points of the new level; -1 for "missing". `covariates`: what of the environment
    changed with it. `missing_runs`: runs that its usual interval lets one expect and that did not happen.
    """

    line: Line
    kind: str
    first: int
    change: Change | None
    q_value: float
    covariates: str
    missing_runs: int
    state: str = "suspected"
    remark: str = ""


@dataclass(frozen=True)
class Watch:
    """What was looked at and found. `too_short`: lines with fewer points than the detector needs."""

    findings: tuple[Finding, ...]
    lines: int
    too_short: int
    notes: tuple[str, ...]


def lines(db: Database, since: datetime, *, source: str = "measured", policy: str = "best") -> list[Line]:
    """All series with points since then, in the order of their row ids."""
    checked_sources(source, ())
    moment = stored_time(since, db.reader.dialect)
    if policy == "best":
        rows = db.rows(_RECENT, (moment, source))
    elif policy.startswith("schedule:"):
        rows = db.rows(_ONE_SCHEDULE, (moment, source, policy.removeprefix("schedule:")))
    else:
        raise RecordError("a schedule policy is best or schedule:DIGEST", policy)
    settings: dict[int, tuple[Any, ...]] = {}
    for environment_id in {row[2] for row in rows}:
        stored = environment_of(db, environment_id)
        settings[environment_id] = (stored.gpu, tuple(getattr(stored, name) for name in SETTING))
    # The rows come oldest first, and so do the points of each series.
    grouped: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row in rows:
        grouped.setdefault((row[0], row[1], *settings[row[2]]), []).append(row)
    found = []
    for workload, topology, gpu, setting in sorted(grouped):
        columns = list(zip(*grouped[workload, topology, gpu, setting], strict=True))
        times = tuple(map(read_time, columns[4]))
        found.append(Line(workload, topology, gpu, source, policy, setting, times, columns[5], columns[6], columns[2]))
    return found


def watch(
    db: Database,
    *,
    since: datetime,
    until: datetime,
    source: str = "measured",
    policy: str = "best",
    detector_name: str = DEFAULT,
    alpha: float = ALPHA,
) -> Watch:
    """What changed in [since, until]: changes whose q-value over all series is at most `alpha`, and silent series.

    The detector sees points of up to `LOOK_BACK` periods before.
    """
    chosen = detector(detector_name)
    if not 0 <= alpha <= 1:
        raise RecordError("alpha is a share, from 0 to 1", alpha)
    period = until - since
    # Whole seconds, so that one question asked again is one question; not before there were times.
    earliest = datetime.min.replace(tzinfo=since.tzinfo)
    begin = (since - LOOK_BACK * period).replace(microsecond=0) if since - earliest > LOOK_BACK * period else earliest
    known = [
        line if line.times[-1] <= until else _until(line, until)
        for line in lines(db, begin, source=source, policy=policy)
        if line.times[0] <= until
    ]
    long_enough = [line for line in known if len(line.times) >= chosen.shortest]
    widest = max((len(line.times) for line in long_enough), default=0)
    matrix = np.full((len(long_enough), widest), np.nan)
    for row, line in enumerate(long_enough):
        matrix[row, : len(line.values_us)] = line.values_us
    changes = chosen.find(matrix) if widest else []
    recent = [[c for c in row if line.times[c.index] >= since] for row, line in zip(changes, long_enough, strict=True)]
    return Watch(
        (*_changed(db, long_enough, recent, alpha), *_silent(known, since, until)),
        len(known),
        len(known) - len(long_enough),
        _notes(known),
    )


def _until(line: Line, until: datetime) -> Line:
    count = bisect_right(line.times, until)
    parts = {name: getattr(line, name)[:count] for name in ("times", "values_us", "trials", "environments")}
    return replace(line, **parts)


def _changed(db: Database, watched: Sequence[Line], recent: Sequence[Sequence[Change]], alpha: float) -> list[Finding]:
    """One hypothesis a series and change; a series in which nothing was found counts with p = 1."""
    p_values: list[float] = []
    places: list[tuple[int, Change | None]] = []
    for row, changes in enumerate(recent):
        for change in changes:
            p_values.append(0.0 if math.isnan(change.p_value) else change.p_value)
            places.append((row, change))
        if not changes:
            p_values.append(1.0)
            places.append((row, None))
    q_values = false_discovery(np.array(p_values))
    found = []
    for (row, found_there), q_value in zip(places, q_values, strict=True):
        if found_there is None or q_value > alpha:
            continue
        change = found_there
        line = watched[row]
        kind = "regression" if change.ratio > 1 else "improvement"
        covariates = _covariates(db, line, change.index)
        found.append(Finding(line, kind, change.index, change, float(q_value), covariates, _gap(line)))
    # What costs most comes first.
    return sorted(
        found, key=lambda one: (one.kind != "regression", -abs(math.log(one.change.ratio)) if one.change else 0)
    )


def _covariates(db: Database, line: Line, first: int) -> str:
    """`driver 580 -> 590` for what differs between the points beside the step."""
    old, new = (environment_of(db, line.environments[at]) for at in (first - 1, first))
    return environment_change(old, new)


def environment_change(old: EnvironmentKey, new: EnvironmentKey) -> str:
    """`driver 580 -> 590, nccl 2.28 -> 2.29`, empty if nothing differs."""
    pairs = ((name, getattr(old, name), getattr(new, name)) for name in ENVIRONMENT_FIELDS)
    return ", ".join(
        f"{name} {before or 'none'} -> {after or 'none'}" for name, before, after in pairs if before != after
    )


def interval(line: Line) -> timedelta | None:
    """The usual time between two runs, None where there are too few to say."""
    if len(line.times) < 4:
        return None
    apart = sorted(b - a for a, b in zip(line.times, line.times[1:], strict=False))
    return apart[len(apart) // 2]


def _gap(line: Line) -> int:
    usual = interval(line)
    if not usual:
        return 0
    return sum(max(0, round((b - a) / usual) - 1) for a, b in zip(line.times, line.times[1:], strict=False))


def _silent(known: Sequence[Line], since: datetime, until: datetime) -> list[Finding]:
    newest = min(max((line.times[-1] for line in known), default=until), until)
    found = []
    for line in known:
        usual = interval(line)
        if usual and since <= line.times[-1] + usual and (newest - line.times[-1]) > SILENT * usual:
            runs = round((newest - line.times[-1]) / usual)
            found.append(Finding(line, "missing", -1, None, math.nan, "", runs))
    return found


def _notes(known: Sequence[Line]) -> tuple[str, ...]:
    settings: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
    for line in known:
        settings.setdefault((line.workload_id, line.topology_id, line.gpu), set()).add(line.setting)
    several = sum(len(found) > 1 for found in settings.values())
    if not several:
        return ()
    return (f"{several} series have points under several {', '.join(SETTING)}: each setting is watched by itself",)
