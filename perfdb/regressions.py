"""`perfdb.regressions`: findings as a table, kept in `series` and `change_point`, confirmed, annotated, summed up."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from perfdb.detectors import DEFAULT
from perfdb.errors import RecordError
from perfdb.fast import read_time
from perfdb.selects import TIME_ZONE
from perfdb.session import Database
from perfdb.watching import ALPHA, DAYS, SETTING, Finding, Line, Watch, watch
from perfdb.writing import Transaction, now

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "kind",
    "state",
    "op",
    "shape",
    "dtype",
    "world",
    "gpu",
    "power_cap_w",
    "source",
    "policy",
    "before_us",
    "after_us",
    "change_percent",
    "happened_at",
    "runs",
    "missing_runs",
    "p_value",
    "q_value",
    "detector",
    "covariates",
    "remark",
    "trial_id",
    "before_trial_id",
    "workload",
    "topology",
    "series_id",
)
_SERIES = "workload_id = ? AND topology_id = ? AND gpu = ? AND source = ? AND policy = ?"


@dataclass(frozen=True)
class Period:
    """The days that are looked at, up to a moment."""

    since: datetime
    until: datetime

    @classmethod
    def of(cls, since: datetime | None, until: datetime | None, days: float) -> Period:
        """Errors: RecordError for an empty period or a time without a zone."""
        end = until or datetime.now(UTC)
        try:
            begin = since or end - timedelta(days=days)
        except (OverflowError, ValueError) as error:
            raise RecordError("a period lies after the year 1", f"{days} days before {end}") from error
        if begin.tzinfo is None or end.tzinfo is None:
            raise RecordError("a time carries a zone", (begin, end), "use datetime.now(UTC)")
        if begin >= end:
            raise RecordError("a period begins before it ends", f"{begin} to {end}")
        return cls(begin, end)


def regressions(
    db: Database,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    days: float = DAYS,
    source: str = "measured",
    policy: str = "best",
    detector: str = DEFAULT,
    alpha: float = ALPHA,
) -> pd.DataFrame:
    """What changed in the last `days` (or since, until): regressions first, then improvements, then silent series.

    `state`: "suspected"; "confirmed" or "dismissed" where a re-measurement said so (`perfdb.confirming`); "intended"
    where an annotation covers it. `q_value` is over all series. `attrs["notes"]` says what was kept apart or could not
    be judged. Nothing is written.
    """
    period = Period.of(since, until, days)
    found = watch(
        db,
        since=period.since,
        until=period.until,
        source=source,
        policy=policy,
        detector_name=detector,
        alpha=alpha,
    )
    return table(db, labelled(db, found), detector)


def labelled(db: Database, found: Watch) -> Watch:
    """The same findings with what is known of them: verdicts of earlier confirmations, annotations."""
    known = []
    for finding in found.findings:
        series = series_id(db, finding.line)
        state, remark = finding.state, finding.remark
        if finding.change is not None:
            state = _verdict(db, finding, series) or state
            intended = _annotation(db, finding, series)
            if intended is not None:
                state, remark = "intended", intended
        known.append(replace(finding, state=state, remark=remark))
    return replace(found, findings=tuple(known))


def series_id(db: Database, line: Line) -> int | None:
    """The stored series of a line, None if it was never stored."""
    found = db.rows(f"SELECT id FROM series WHERE {_SERIES}", _identity(line))
    return int(found[0][0]) if found else None


def _identity(line: Line) -> tuple[object, ...]:
    return (line.workload_id, line.topology_id, line.gpu, line.source, line.policy)


def _verdict(db: Database, finding: Finding, series: int | None) -> str | None:
    if series is None:
        return None
    rows = db.rows(
        "SELECT state FROM change_point WHERE series_id = ? AND trial_id = ? AND state <> 'suspected' ORDER BY id DESC",
        (series, finding.line.trials[finding.first]),
    )
    return str(rows[0][0]) if rows else None


def _annotation(db: Database, finding: Finding, series: int | None) -> str | None:
    """The remark of an intended change that covers the finding: of its series, its trial, or of everything then."""
    moment = finding.line.times[finding.first]
    rows = db.rows(
        "SELECT series_id, trial_id, starts_at, ends_at, remark, author FROM annotation WHERE kind = 'intended'"
        " AND (series_id = ? OR trial_id = ? OR (series_id IS NULL AND trial_id IS NULL AND session_id IS NULL))",
        (series, finding.line.trials[finding.first]),
    )
    for _, trial, starts, ends, remark, author in rows:
        if trial is not None or _covers(starts, ends, moment):
            return f"{remark} ({author})" if author else str(remark)
    return None


def _covers(starts: Any, ends: Any, moment: datetime) -> bool:
    return (starts is None or read_time(starts) <= moment) and (ends is None or moment <= read_time(ends))


def table(db: Database, found: Watch, detector: str) -> pd.DataFrame:
    """Findings as a DataFrame with `COLUMNS`."""
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    result = pd.DataFrame([_row(db, finding, detector) for finding in found.findings], columns=list(COLUMNS))
    numbers = ("before_us", "after_us", "change_percent", "p_value", "q_value")
    kinds = dict.fromkeys(("trial_id", "before_trial_id", "series_id"), "Int64")
    result = result.astype({**dict.fromkeys(numbers, "float64"), **kinds, "happened_at": TIME_ZONE})
    notes = list(found.notes)
    if found.too_short:
        notes.append(f"{found.too_short} of {found.lines} series are too short to judge")
    result.attrs["notes"] = tuple(notes)
    result.attrs["series"] = found.lines
    return result


def _row(db: Database, finding: Finding, detector: str) -> tuple[object, ...]:
    line, change = finding.line, finding.change
    op, shape, dtype, world, _, workload = db.key_row(
        "workload", "SELECT op, shape, dtype, world, label, digest FROM workload WHERE id = ?", line.workload_id
    )
    _, _, topology = db.key_row("topology", "SELECT name, kind, digest FROM topology WHERE id = ?", line.topology_id)
    cap = line.setting[SETTING.index("power_cap_w")]
    levels = (change.before, change.after, 100 * (change.ratio - 1)) if change else (math.nan,) * 3
    trial = line.trials[finding.first]
    return (
        finding.kind,
        finding.state,
        op,
        shape,
        dtype,
        world,
        line.gpu,
        cap,
        line.source,
        line.policy,
        *levels,
        line.times[finding.first],
        len(line.times) - finding.first if change else 0,
        finding.missing_runs,
        change.p_value if change else math.nan,
        finding.q_value,
        detector if change else "",
        finding.covariates,
        finding.remark,
        trial,
        line.trials[finding.first - 1] if change else None,
        workload,
        topology,
        series_id(db, line),
    )


def save(db: Database, findings: Sequence[Finding], detector: str) -> list[int]:
    """Keep findings as change points of their series, once each; return the ids of the series."""

    def work(transaction: Transaction) -> list[int]:
        return [_save(transaction, finding, detector) for finding in findings if finding.change is not None]

    return db.transact(work)


def _save(transaction: Transaction, finding: Finding, detector: str) -> int:
    series = stored_series(transaction, finding.line)
    change = finding.change
    assert change is not None
    state = finding.state if finding.state in ("confirmed", "dismissed") else "suspected"
    there = "SELECT id FROM change_point WHERE series_id = ? AND trial_id = ? AND detector = ? AND state = ?"
    trial = finding.line.trials[finding.first]
    if not transaction.select(there, (series, trial, detector, state)):
        transaction.insert(
            "change_point",
            series_id=series,
            trial_id=trial,
            detector=detector,
            state=state,
            before_us=change.before,
            after_us=change.after,
            p_value=None if math.isnan(change.p_value) else change.p_value,
            q_value=finding.q_value,
            document=json.dumps({"covariates": finding.covariates, "remark": finding.remark}, sort_keys=True),
            happened_at=transaction.time(finding.line.times[finding.first]),
            recorded_at=transaction.time(None),
        )
    return series


def stored_series(transaction: Transaction, line: Line) -> int:
    """The id of the line's series, stored if it is new."""
    names = ("workload_id", "topology_id", "gpu", "source", "policy")
    values = dict(zip(names, _identity(line), strict=True))
    transaction.insert_unless_there("series", **values, document="{}")
    return int(transaction.select(f"SELECT id FROM series WHERE {_SERIES}", tuple(values.values()))[0][0])


def annotate(
    db: Database,
    remark: str,
    *,
    kind: str = "intended",
    author: str = "",
    series: int | None = None,
    trial: int | None = None,
    session: int | None = None,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
) -> int:
    """Note an intended change ("intended": its findings count no more), or anything else ("note"); return its id.

    It is about a series, a trial, a session, or (with none of them) about everything in a span of time.
    """
    if kind not in ("intended", "note"):
        raise RecordError("an annotation is intended or note", kind)
    if not remark.strip():
        raise RecordError("an annotation says why", repr(remark))
    if starts_at is not None and ends_at is not None and starts_at > ends_at:
        raise RecordError("a span of time begins before it ends", f"{starts_at} to {ends_at}")
    if series is trial is session is None and starts_at is None and ends_at is None:
        raise RecordError("an annotation is about something", "nothing", "give a series, a trial, a session or a time")
    return db.transact(
        lambda transaction: transaction.insert(
            "annotation",
            series_id=series,
            trial_id=trial,
            session_id=session,
            kind=kind,
            author=author,
            remark=remark,
            starts_at=None if starts_at is None else transaction.time(starts_at),
            ends_at=None if ends_at is None else transaction.time(ends_at),
            recorded_at=transaction.time(now()),
        )
    )
