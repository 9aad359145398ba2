"""What the report shows, asked of the database once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    import perfdb

# The newest findings that a report lists, in days before the newest trial.
DAYS = 365.0
BEST = 3


@dataclass(frozen=True)
class Contents:
    """Frames of the queries of the same names; `notes` are what they kept apart or left out."""

    where: str
    made: datetime
    best: pd.DataFrame
    history: pd.DataFrame
    findings: pd.DataFrame
    predictions: pd.DataFrame
    space: pd.DataFrame
    failures: pd.DataFrame
    notes: tuple[str, ...]


def gather(db: perfdb.Database, *, op: str | None = None, gpu: str | None = None) -> Contents:
    """Everything of `op` and `gpu` (None: of all), every source, each labelled."""
    import pandas as pd

    import perfdb
    from perfdb.exploring import predictions, training
    from perfdb.regressions import regressions

    best = perfdb.best(db, op=op, gpu=gpu, sources=perfdb.SOURCES, limit=BEST)
    history = perfdb.history(db, op=op, gpu=gpu, sources=perfdb.SOURCES)
    findings = []
    if not history.empty:
        until = history["recorded_at"].max().to_pydatetime()
        for source in sorted(history["source"].unique()):
            found = regressions(db, until=until, days=DAYS, source=source)
            findings.append(found[(op is None) | (found["op"] == op)])
    return Contents(
        where=str(db.path or db.url),
        made=datetime.now(UTC),
        best=best,
        history=history,
        findings=pd.concat(findings, ignore_index=True) if findings else pd.DataFrame(columns=["kind"]),
        predictions=predictions(db, op=op),
        space=training(db, op=op, gpu=gpu, sources=perfdb.SOURCES),
        failures=perfdb.failures(db, op=op, gpu=gpu),
        notes=tuple(best.attrs["notes"]),
    )
