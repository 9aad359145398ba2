"""How a question is answered: every SELECT that it sends, and which of them read a table through."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from perfdb.session import Database

# Reading an index through is reading a table through; the index of failures holds nothing but the rows asked for.
_SCAN = re.compile(r"\bSCAN (\w+)(?!.* USING (?:COVERING )?INDEX ix_trial_failure)")
TABLES = ["workload", "topology", "environment", "schedule", "artifact", "session", "trial", "samples", "standing", "point", "prediction", "decision", "series", "change_point", "annotation", "recommendation"]


@dataclass(frozen=True)
class Sent:
    """A statement as it was sent to SQLite."""

    sql: str
    values: Any


@contextmanager
def statements(db: Database) -> Iterator[list[Sent]]:
    """Collect the SELECTs that are sent while the block runs."""
    sent: list[Sent] = []

    def note(_c: object, _k: object, statement: str, parameters: Any, *_rest: object) -> None:
        if statement.lstrip().startswith(("SELECT", "WITH")):
            sent.append(Sent(statement, parameters))

    plain: list[tuple[str, Sequence[object]]] = []
    db.reader.seen = plain
    with db.read() as connection:
        engine = connection.engine
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)
        db.reader.seen = None
        sent += [Sent(sql, values) for sql, values in plain]


def full_scans(db: Database, sent: Sequence[Sent]) -> list[tuple[str, str]]:
    """(line of the plan, statement) for each table of the database that a statement reads through. SQLite only."""
    found = []
    for sql, values in {one.sql: one.values for one in sent}.items():
        with db.read() as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", tuple(values)).fetchall()
        for row in plan:
            scan = _SCAN.search(str(row[3]))
            if scan is not None and scan.group(1) in TABLES:
                found.append((str(row[3]), sql))
    return found
