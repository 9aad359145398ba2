"""Questions around the trials: near workloads, training data, predictions against measurements, recommendations."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfdb.errors import RecordError
from perfdb.fast import read_time
from perfdb.records import ENVIRONMENT_FIELDS, normal_gpu
from perfdb.selects import TIME_ZONE, checked_sources, groups
from perfdb.session import Database
from perfdb.shapes import shape_distance

if TYPE_CHECKING:
    import pandas as pd

_FASTEST = (
    "SELECT value_us, trial_id FROM standing WHERE status = 'ok' AND workload_id = ? AND topology_id = ?"
    " AND environment_id = ? AND source = ? ORDER BY value_us, trial_id LIMIT 1"
)
_ENVIRONMENT = ", ".join(f"environment.{name}" for name in ENVIRONMENT_FIELDS)


def nearest_workloads(
    db: Database,
    *,
    op: str,
    shape: str,
    dtype: str | None = None,
    world: int | None = None,
    sources: Sequence[str] | str | None = None,
    limit: int = 10,
) -> pd.DataFrame:
    """The stored workloads of an operation nearest in shape, with their fastest trial, to look at or to start from.

    `distance`: the sum of |log2| of the ratios of sizes, plus 1 for another dtype and |log2| of the ratio of worlds;
    0 is the workload itself. Shapes of another number of sizes are left out. `best_us` is the fastest of `gpu`,
    `power_cap_w` and `best_source`: it is no time of the shape asked for.
    """
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    if limit < 1:
        raise RecordError("limit must be at least 1", limit)
    allowed = checked_sources(sources, ("measured",))
    stored = db.rows("SELECT id, op, shape, dtype, world, digest, label FROM workload WHERE op = ?", (op,))
    near = []
    for row in stored:
        distance = shape_distance(shape, row[2]) + (dtype is not None and dtype != row[3])
        distance += abs(math.log2(row[4] / world)) if world else 0
        if math.isfinite(distance):
            near.append((distance, *row))
    rows = []
    for distance, workload_id, *columns in sorted(near):
        rows += [(distance, *columns, *best) for best in _bests(db, int(workload_id)) if best[2] in allowed]
        if len({row[5] for row in rows}) >= limit:
            break
    names = ["distance", "op", "shape", "dtype", "world", "workload", "workload_label"]
    names += ["gpu", "power_cap_w", "best_source", "best_us", "trial_id"]
    return pd.DataFrame(rows, columns=names).astype({"distance": "float64", "best_us": "float64"})


def _bests(db: Database, workload_id: int) -> list[tuple[Any, ...]]:
    """(gpu, power cap, source, time, trial): the fastest of each machine and source."""
    best: dict[tuple[Any, ...], tuple[float, int]] = {}
    for group in groups(db, workload_id):
        found = db.rows(_FASTEST, (workload_id, group.topology_id, group.environment_id, group.source))
        if found:
            gpu, cap = db.key_row(
                "machine", "SELECT gpu, power_cap_w FROM environment WHERE id = ?", group.environment_id
            )
            key = (gpu, cap, group.source)
            best[key] = min(best.get(key, found[0]), found[0])
    return [(*key, *value) for key, value in sorted(best.items())]


def training(
    db: Database,
    *,
    op: str | None = None,
    gpu: str | None = None,
    sources: Sequence[str] | str | None = None,
) -> pd.DataFrame:
    """A row a standing trial, good or failed, for fitting a model: key columns, `knob.NAME`, `value_us`, `spread`.

    `size.0`, `size.1`, ... are the numbers of the shape. Knobs are the values of the schedule's document (nested ones
    joined by dots). `samples`: their number; `spread`: (p75 - p25) / median over samples of the maximum over ranks.
    """
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    allowed = checked_sources(sources, ("measured",))
    where, values = "", []
    if op is not None:
        where, values = " WHERE op = ?", [op]
    rows: list[dict[str, Any]] = []
    for (workload_id,) in db.rows(f"SELECT id FROM workload{where} ORDER BY id", values):
        for group in groups(db, int(workload_id)):
            (found,) = db.key_row("machine_gpu", "SELECT gpu FROM environment WHERE id = ?", group.environment_id)
            if group.source in allowed and (gpu is None or normal_gpu(gpu) == found):
                key = (group.workload_id, group.topology_id, group.environment_id, group.source)
                rows += _training_rows(db, key)
    frame = pd.DataFrame(rows)
    if frame.empty:
        return pd.DataFrame(columns=[*_LABELS, "samples", "spread"])
    knobs = sorted(name for name in frame.columns if name.startswith(("knob.", "size.")))
    return frame[[*_LABELS, "samples", "spread", *knobs]]


_LABELS = (
    "trial_id source status value_us op shape dtype world flops link_bytes topology_kind topology_name "
    + " ".join(ENVIRONMENT_FIELDS)
    + " schedule workload recorded_at"
).split()
_TRAINING = (
    "SELECT trial.id, trial.source, trial.status, trial.value_us, workload.op, workload.shape, workload.dtype,"
    " workload.world, workload.flops, workload.link_bytes, topology.kind, topology.name,"
    f" {_ENVIRONMENT}, schedule.digest, workload.digest, trial.recorded_at, schedule.document"
    " FROM standing JOIN trial ON trial.id = standing.trial_id JOIN workload ON workload.id = standing.workload_id"
    " JOIN topology ON topology.id = standing.topology_id JOIN environment ON environment.id = standing.environment_id"
    " JOIN schedule ON schedule.id = standing.schedule_id WHERE standing.workload_id = ? AND standing.topology_id = ?"
    " AND standing.environment_id = ? AND standing.source = ? ORDER BY standing.schedule_id"
)
_SAMPLES = "SELECT encoding, data FROM samples WHERE trial_id = ? ORDER BY rank"


def _training_rows(db: Database, key: tuple[Any, ...]) -> list[dict[str, Any]]:
    import numpy as np

    from perfdb.writing import unpack

    found = []
    for row in db.rows(_TRAINING, key):
        entry = dict(zip(_LABELS, row[:-1], strict=True))
        entry["recorded_at"] = read_time(entry["recorded_at"])
        for at, size in enumerate(str(entry["shape"]).split("x")):
            if size.isdigit():
                entry[f"size.{at}"] = int(size)
        entry.update({f"knob.{name}": value for name, value in _knobs(row[-1])})
        ranks = [unpack(*sample) for sample in db.rows(_SAMPLES, (entry["trial_id"],))]
        slowest = np.max([rank[: min(map(len, ranks))] for rank in ranks], axis=0) if ranks else np.zeros(0)
        entry["samples"] = len(slowest)
        entry["spread"] = math.nan
        if len(slowest) > 1:
            low, middle, high = np.percentile(slowest, [25, 50, 75])
            entry["spread"] = float((high - low) / middle)
        found.append(entry)
    return found


def _knobs(document: str) -> list[tuple[str, Any]]:
    """Of a document that is no JSON nothing is known."""
    try:
        return flattened(json.loads(document))
    except ValueError:
        return []


def flattened(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """Names and scalars of nested objects: {"a": {"b": 1}} -> [("a.b", 1)]; a list counts as its JSON text."""
    if isinstance(value, dict):
        return [pair for key in sorted(value) for pair in flattened(value[key], f"{name}.{key}" if name else key)]
    return [(name, json.dumps(value) if isinstance(value, list) else value)] if name else []


def predictions(
    db: Database, *, op: str | None = None, model: str | None = None, sources: Sequence[str] | str | None = None
) -> pd.DataFrame:
    """Each prediction beside the standing trial of the same workload, topology and schedule, if it was measured.

    Columns: model, predicted_us, low_us, high_us, measured_us, error (predicted over measured, minus 1), inside (the
    interval holds the measurement; missing where there is none), and the columns that label a trial.
    """
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    allowed = checked_sources(sources, ("measured", "measured_scale_model", "measured_shared_gpu", "replayed"))
    conditions = ["standing.status = 'ok'", f"standing.source IN ({', '.join('?' * len(allowed))})"]
    values: list[str] = list(allowed)
    for column, value in (("workload.op", op), ("prediction.model", model)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    sql = (
        "SELECT prediction.model, prediction.value_us, prediction.low_us, prediction.high_us, standing.value_us,"
        " standing.source, workload.op, workload.shape, workload.dtype, workload.world, environment.gpu,"
        " environment.power_cap_w, schedule.label, schedule.digest, standing.trial_id, prediction.id FROM prediction"
        " JOIN workload ON workload.id = prediction.workload_id JOIN schedule ON schedule.id = prediction.schedule_id"
        " JOIN trial_group ON trial_group.workload_id = prediction.workload_id"
        " AND trial_group.topology_id = prediction.topology_id"
        " JOIN standing ON standing.workload_id = trial_group.workload_id"
        " AND standing.topology_id = trial_group.topology_id AND standing.environment_id = trial_group.environment_id"
        " AND standing.source = trial_group.source AND standing.schedule_id = prediction.schedule_id"
        " JOIN environment ON environment.id = standing.environment_id"
        f" WHERE {' AND '.join(conditions)} ORDER BY prediction.id, standing.trial_id"
    )
    names = ["model", "predicted_us", "low_us", "high_us", "measured_us", "source", "op", "shape", "dtype", "world"]
    names += ["gpu", "power_cap_w", "schedule_label", "schedule", "trial_id", "prediction_id"]
    frame = pd.DataFrame(db.rows(sql, values), columns=names)
    numbers = ("predicted_us", "low_us", "high_us", "measured_us")
    frame = frame.astype(dict.fromkeys(numbers, "float64"))
    frame["error"] = frame["predicted_us"] / frame["measured_us"] - 1
    held = (frame["low_us"] <= frame["measured_us"]) & (frame["measured_us"] <= frame["high_us"])
    frame["inside"] = held.astype("boolean").mask(frame["low_us"].isna() | frame["high_us"].isna())
    return frame


def recommendations(
    db: Database, *, op: str | None = None, shape: str | None = None, gpu: str | None = None
) -> pd.DataFrame:
    """Winners that were imported without a time, in the order of op and import: never an answer of `best`."""
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    conditions, values = [], []
    for column, value in (
        ("workload.op", op),
        ("workload.shape", shape),
        ("environment.gpu", None if gpu is None else normal_gpu(gpu)),
    ):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    sql = (
        "SELECT workload.op, workload.shape, workload.dtype, workload.world, environment.gpu, environment.nvrtc,"
        " schedule.label, schedule.digest, schedule.document, recommendation.origin, recommendation.recorded_at,"
        " workload.label FROM workload JOIN recommendation ON recommendation.workload_id = workload.id"
        " JOIN environment ON environment.id = recommendation.environment_id"
        f" JOIN schedule ON schedule.id = recommendation.schedule_id{where} ORDER BY workload.op, recommendation.id"
    )
    names = ["op", "shape", "dtype", "world", "gpu", "nvrtc", "schedule_label", "schedule", "document", "origin"]
    frame = pd.DataFrame(
        [(*row[:10], read_time(row[10]), row[11]) for row in db.rows(sql, values)],
        columns=[*names, "recorded_at", "workload_label"],
    )
    return frame.astype({"recorded_at": TIME_ZONE})
