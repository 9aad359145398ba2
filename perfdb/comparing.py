"""`perfdb.compare`: what changed between two environments or two commits, and how much of it the machine explains."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfdb.errors import RecordError
from perfdb.ranking_sql import MACHINE_FIELDS
from perfdb.records import ENVIRONMENT_FIELDS, EnvironmentKey, normal_gpu
from perfdb.selects import checked_sources, environment_of, groups
from perfdb.session import Database
from perfdb.watching import environment_change

if TYPE_CHECKING:
    import pandas as pd

# A time and its anchor within this of each other are the same change.
SAME = 0.005
COLUMNS = [
    "op",
    "shape",
    "dtype",
    "world",
    "gpu",
    "power_cap_w",
    "source",
    "before_us",
    "after_us",
    "change_percent",
    "common_schedules",
    "common_percent",
    "anchors",
    "anchor_percent",
    "residual_percent",
    "verdict",
    "environment_change",
    "before_trial_id",
    "after_trial_id",
    "workload",
    "topology",
]
_TRIALS = (
    "SELECT trial.schedule_id, trial.artifact_id, trial.value_us, trial.id FROM trial WHERE trial.workload_id = ?"
    " AND trial.topology_id = ? AND trial.environment_id = ? AND trial.source = ? AND trial.status = 'ok'"
)
_OF_REVISION = " AND trial.session_id IN (SELECT id FROM session WHERE revision = ?)"


@dataclass(frozen=True)
class _Half:
    """One side: the good times of each schedule, and of each binary with its schedule."""

    environments: tuple[EnvironmentKey, ...]
    by_schedule: Mapping[int, float]
    by_binary: Mapping[tuple[int, int], float]
    best_us: float
    best_trial: int


def compare(
    db: Database,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    op: str | None = None,
    shape: str | None = None,
    source: str = "measured",
) -> pd.DataFrame:
    """One row a workload, topology and machine measured on both sides.

    A side is environment columns and perhaps `commit`: {"driver": "580"}, {"commit": "abc"}. Versions may be given by
    their beginning ("580" is 580.65 and 580.95, not 5801). Settings of the machine (GPU, architecture, power cap, clock
    policy, number of GPUs) that are not part of the question must be equal on both sides.

    `change_percent`: of the best time. `common_percent`: the median over schedules measured on both sides.
    `anchor_percent`: the median over binaries that ran on both sides byte for byte (our cubin, cuBLAS, NCCL): what the
    environment did. `residual_percent`: what is left of the best's change. `verdict`: "unchanged", "environment",
    "software", "both", or "unattributed" where there is no anchor.
    """
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    for side in (before, after):
        _check(side)
    checked_sources(source, ())
    given = {name: value for name, value in (("op", op), ("shape", shape)) if value is not None}
    where = " WHERE " + " AND ".join(f"{name} = ?" for name in given) if given else ""
    rows = []
    for workload in db.rows(
        f"SELECT id, op, shape, dtype, world, digest FROM workload{where} ORDER BY id", tuple(given.values())
    ):
        for (topology, *_), sides in sorted(_sides(db, int(workload[0]), source, (before, after)).items(), key=str):
            halves = [
                _half(db, (int(workload[0]), topology), ids, source, side)
                for ids, side in zip(sides, (before, after), strict=True)
            ]
            if halves[0] is not None and halves[1] is not None:
                rows.append(_row(db, workload, topology, source, halves[0], halves[1]))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _check(side: Mapping[str, Any]) -> None:
    unknown = sorted(set(side) - {*ENVIRONMENT_FIELDS, "commit"})
    if unknown or not side:
        raise RecordError(
            f"a side is of {', '.join(ENVIRONMENT_FIELDS)}, commit", ", ".join(unknown) or "nothing", "driver=580"
        )
    for name in ("power_cap_w", "gpu_count"):
        if name in side and not str(side[name]).isdecimal():
            raise RecordError(f"{name} is a whole number", repr(side[name]), f"for example {name}=700")


def stored_values(db: Database, sides: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each part of a side that no stored trial has, with what is stored."""
    found = []
    names = ", ".join(ENVIRONMENT_FIELDS)
    machines = [EnvironmentKey(*row) for row in db.rows(f"SELECT {names} FROM environment ORDER BY id")]
    for name, wanted in sorted({pair for side in sides for pair in side.items()}):
        if name == "commit":
            stored = [str(row[0]) for row in db.rows("SELECT DISTINCT revision FROM session ORDER BY revision")]
            there = str(wanted) in stored
        else:
            stored = sorted({str(getattr(machine, name)) for machine in machines})
            there = any(fits(machine, {name: wanted}) for machine in machines)
        if not there:
            found.append(f"no stored {name} is {wanted}; stored: {', '.join(filter(None, stored[:20])) or 'none'}")
    return found


def fits(environment: EnvironmentKey, side: Mapping[str, Any]) -> bool:
    """Whether an environment is on a side; a version fits by its leading parts."""
    for name, wanted in side.items():
        if name == "commit":
            continue
        value = str(getattr(environment, name))
        text = normal_gpu(str(wanted)) if name == "gpu" else str(wanted)
        if value != text and not (name not in MACHINE_FIELDS and value.startswith(f"{text}.")):
            return False
    return True


def _sides(
    db: Database, workload_id: int, source: str, sides: Sequence[Mapping[str, Any]]
) -> dict[tuple[Any, ...], tuple[list[int], list[int]]]:
    """Environments of both sides by topology and the settings that have to be equal."""
    asked = set(sides[0]) | set(sides[1])
    equal = [name for name in MACHINE_FIELDS if name not in asked]
    found: dict[tuple[Any, ...], tuple[list[int], list[int]]] = {}
    for group in groups(db, workload_id):
        if group.source != source:
            continue
        stored = environment_of(db, group.environment_id)
        key = (group.topology_id, *(getattr(stored, name) for name in equal))
        for at, side in enumerate(sides):
            if fits(stored, side):
                found.setdefault(key, ([], []))[at].append(group.environment_id)
    return found


def _half(
    db: Database, place: tuple[int, int], environments: Sequence[int], source: str, side: Mapping[str, Any]
) -> _Half | None:
    times: dict[int, list[float]] = {}
    binaries: dict[tuple[int, int], list[float]] = {}
    best: tuple[float, int] | None = None
    used = []
    for environment in environments:
        sql, values = _TRIALS, [*place, environment, source]
        if "commit" in side:
            sql, values = sql + _OF_REVISION, [*values, side["commit"]]
        rows = db.rows(sql, values)
        if rows:
            used.append(environment_of(db, environment))
        for schedule, artifact, value, trial in rows:
            times.setdefault(schedule, []).append(value)
            if artifact is not None:
                binaries.setdefault((artifact, schedule), []).append(value)
            best = (value, trial) if best is None else min(best, (value, trial))
    if best is None:
        return None
    medians = {schedule: statistics.median(values) for schedule, values in times.items()}
    # The fastest schedule by its median, not the luckiest single trial.
    best_us = min(medians.values())
    return _Half(
        tuple(used), medians, {key: statistics.median(values) for key, values in binaries.items()}, best_us, best[1]
    )


def _row(
    db: Database, workload: tuple[Any, ...], topology_id: int, source: str, before: _Half, after: _Half
) -> tuple[Any, ...]:
    change = math.log(after.best_us / before.best_us)
    common = _ratios(before.by_schedule, after.by_schedule)
    anchors = _ratios(before.by_binary, after.by_binary)
    anchor = statistics.median(anchors) if anchors else math.nan
    residual = change - anchor
    (topology,) = db.key_row("topology_digest", "SELECT digest FROM topology WHERE id = ?", topology_id)
    old, new = before.environments[-1], after.environments[-1]
    return (
        *workload[1:5],
        new.gpu,
        new.power_cap_w,
        source,
        before.best_us,
        after.best_us,
        _percent(change),
        len(common),
        _percent(statistics.median(common)) if common else math.nan,
        len(anchors),
        _percent(anchor),
        _percent(residual),
        _verdict(change, anchor, residual),
        environment_change(old, new),
        before.best_trial,
        after.best_trial,
        workload[5],
        topology,
    )


def _ratios(before: Mapping[Any, float], after: Mapping[Any, float]) -> list[float]:
    return sorted(math.log(after[key] / before[key]) for key in before.keys() & after.keys())


def _percent(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)


def _verdict(change: float, anchor: float, residual: float) -> str:
    if math.isnan(anchor):
        return "unchanged" if abs(change) < SAME else "unattributed"
    machine, software = abs(anchor) >= SAME, abs(residual) >= SAME
    if machine and software:
        return "both"
    return "environment" if machine else "software" if software else "unchanged"
