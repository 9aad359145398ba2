"""`perfdb check`: read a database through and say what is wrong, without changing it."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from perfdb import summaries
from perfdb.engine import way_out
from perfdb.models import Base
from perfdb.session import Database, open_database


@dataclass(frozen=True)
class CheckReport:
    """What was found: `lines` for people, `problems` empty if all is well."""

    lines: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if there is no problem."""
        return not self.problems


def check_database(url: str) -> CheckReport:
    """Check pages and indexes (SQLite; a server does this by itself), references, summaries, and count rows.

    Errors: those of `open_database` for what cannot be opened at all.
    """
    problems: list[str] = []
    with open_database(url, create=False) as db:
        with db.read() as connection:
            problems += _damage(connection) if db.path is not None else []
            problems += _orphans(connection)
            if not problems:
                # Of a damaged table they say nothing.
                wrong = {name: count for name, count in summaries.differences(connection).items() if count}
                problems += [
                    f"summary: {count} rows of {name} are not what the trials say" for name, count in wrong.items()
                ]
            counts = _counts(connection)
        where = str(db.path or db.url)
        found = len(problems)
        if problems:
            problems.append(f"way out: {_way_out(db, problems)}")
    verdict = f"{where}: " + ("intact" if not problems else f"{found} problems")
    return CheckReport((verdict, *problems, f"rows: {counts}"), tuple(problems))


def _damage(connection: sa.Connection) -> list[str]:
    found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(20)")]
    return [f"page or index: {text}" for text in found if text != "ok"]


def _orphans(connection: sa.Connection) -> list[str]:
    if connection.dialect.name == "sqlite":
        rows = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        return [f"orphan: {row[0]} row {row[1]} refers to a missing {row[2]}" for row in rows]
    found = []
    for table in Base.metadata.sorted_tables:
        for key in table.foreign_keys:
            column, other = key.parent.name, key.column.table.name
            count = connection.exec_driver_sql(
                f"SELECT count(*) FROM {table.name} AS one LEFT JOIN {other} AS other ON other.id = one.{column}"
                f" WHERE one.{column} IS NOT NULL AND other.id IS NULL"
            ).scalar_one()
            found += [f"orphan: {count} rows of {table.name} refer to a missing {other}"] if count else []
    return found


def _counts(connection: sa.Connection) -> str:
    counts = []
    for table in Base.metadata.sorted_tables:
        counts.append(f"{table.name} {connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()}")
    return ", ".join(counts)


def _way_out(db: Database, problems: list[str]) -> str:
    if all(text.startswith("summary:") for text in problems):
        return "perfdb check --repair makes the summaries anew from the trials"
    if db.path is None:
        return "restore a backup of the server"
    return f"perfdb check --salvage NEW.db saves what can be read; or {way_out(db.path)}"


def repair(url: str) -> None:
    """Make the summaries anew from the trials; nothing that was measured changes."""
    with open_database(url, create=False) as db, db.write() as connection:
        summaries.rebuild(connection)
