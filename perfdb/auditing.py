"""How a question is answered: every SELECT that it sends, and which of them read a table through."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from perfdb.fast import adapted
from perfdb.session import Database

# Reading an index through is reading a table through; the index of failures holds nothing but the rows asked for.
_SCAN = re.compile(r"\bSCAN (\w+)(?!.* USING (?:COVERING )?INDEX ix_trial_failure)")
_SEQUENTIAL = re.compile(r"\bSeq Scan on (\w+)")
# Topologies and environments: one row a machine.
LARGE = 50
TABLES = [
    "workload",
    "topology",
    "environment",
    "schedule",
    "artifact",
    "session",
    "trial",
    "samples",
    "standing",
    "point",
    "prediction",
    "decision",
    "series",
    "change_point",
    "annotation",
    "recommendation",
]


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
    """(line of the plan, statement) for each table of the database that a statement reads through.

    Tables below `LARGE` rows do not count: to read one through is the cheapest way. A server reads most of a table
    through as well where most of it is asked for: such scans are priced out, so that what is left has no index to use.
    """
    found = []
    with db.read() as connection:
        sqlite = connection.dialect.name == "sqlite"
        if not sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        large = _large(connection, sqlite)
        for sql, values in {one.sql: one.values for one in sent}.items():
            explain = "EXPLAIN QUERY PLAN" if sqlite else "EXPLAIN"
            given = values if isinstance(values, dict) else tuple(values)
            plan = connection.exec_driver_sql(f"{explain} {adapted(sql, connection.dialect.name)}", given).fetchall()
            for row in plan:
                line = str(row[3] if sqlite else row[0])
                scan = (_SCAN if sqlite else _SEQUENTIAL).search(line)
                if scan is not None and scan.group(1) in large:
                    found.append((line, sql))
    return found


def _large(connection: sa.Connection, sqlite: bool) -> list[str]:
    if not sqlite:
        rows = connection.exec_driver_sql("SELECT relname FROM pg_class WHERE reltuples >= %s", (LARGE,)).fetchall()
        return [str(row[0]) for row in rows]
    counts = {
        name: connection.exec_driver_sql(f"SELECT count(*) FROM (SELECT 1 FROM {name} LIMIT {LARGE})").scalar_one()
        for name in TABLES
    }
    return [name for name, count in counts.items() if count >= LARGE]
