"""`perfdb check`: read a database through and say what is wrong, without changing it."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from perfdb.engine import way_out
from perfdb.models import Base
from perfdb.session import open_database


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
    """Check pages, indexes and references (SQLite; a server does this by itself) and count rows.

    Errors: those of `open_database` for what cannot be opened at all.
    """
    problems: list[str] = []
    with open_database(url, create=False) as db:
        with db.read() as connection:
            if db.path is not None:
                found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(20)")]
                problems += [f"page or index: {text}" for text in found if text != "ok"]
                for row in connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall():
                    problems.append(f"orphan: {row[0]} row {row[1]} refers to a missing {row[2]}")
            counts = [
                f"{table.name} {connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()}"
                for table in Base.metadata.sorted_tables
            ]
        where = str(db.path or db.url)
        if problems and db.path is not None:
            problems.append(f"way out: {way_out(db.path)}")
    verdict = f"{where}: " + ("intact" if not problems else f"{len(problems) - (db.path is not None)} problems")
    return CheckReport((verdict, *problems, f"rows: {', '.join(counts)}"), tuple(problems))
