"""Plain cursors for the hot paths: the same SQL for both engines, no objects between a question and its rows.

SQL is written with `?` for a value and is a constant, so that SQLite's statement cache and PostgreSQL's prepared
statements recognise it. Trials are never changed or removed, so several statements need no common snapshot.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from perfdb.access import connect

# Pages kept in memory. The file is not mapped: one that another program cuts short must be an error, not a signal.
CACHE_KIB = 64 << 10


@cache
def adapted(sql: str, dialect: str) -> str:
    """The statement with the engine's own sign for a value."""
    return sql if dialect == "sqlite" else sql.replace("?", "%s")


def stored_time(time: datetime, dialect: str) -> object:
    """A time as the engine keeps it: SQLite a sortable text in UTC."""
    moment = time.astimezone(UTC)
    return moment.replace(tzinfo=None).isoformat(" ", "microseconds") if dialect == "sqlite" else moment


def read_time(value: Any) -> datetime:
    """What `stored_time` stored."""
    moment: datetime = datetime.fromisoformat(f"{value}+00:00") if isinstance(value, str) else value.astimezone(UTC)
    return moment


class Reader:
    """One connection of its own, shared by the threads of a process; made again after a fork."""

    def __init__(self, connect: Callable[[], Any], dialect: str) -> None:
        self.dialect = dialect
        self._connect = connect
        self._lock = threading.Lock()
        self._connection: Any = None
        self._process = 0
        self.seen: list[tuple[str, Sequence[object]]] | None = None

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a SELECT."""
        if self.seen is not None:
            self.seen.append((sql, values))
        with self._lock:
            if self._process != os.getpid():
                # A connection does not survive a fork: the parent's is forgotten, not closed.
                self._connection, self._process = self._connect(), os.getpid()
            cursor = self._connection.execute(adapted(sql, self.dialect), values)
            found: list[tuple[Any, ...]] = cursor.fetchall()
            return found

    def close(self) -> None:
        """Close the connection if this process made it."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection, self._process = None, 0


def connector(url: sa.URL, busy_timeout_s: float) -> Callable[[], Any]:
    """A function that opens a connection to read through: autocommit, so that it never holds an old snapshot."""
    if url.get_backend_name() == "sqlite":

        def to_file() -> sqlite3.Connection:
            options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False, "cached_statements": 256}
            connection = connect(Path(str(url.database)), busy_timeout_s, **options)
            connection.execute("PRAGMA query_only = ON")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            return connection

        return to_file

    def to_server() -> Any:
        import psycopg

        # Prepared at their first use: the hot statements are few and constant.
        text = url.set(drivername="postgresql").render_as_string(hide_password=False)
        # Planning a join of five tables anew costs more than running it: one plan a statement, whatever the values.
        connection = psycopg.connect(text, autocommit=True, options="-c plan_cache_mode=force_generic_plan")
        connection.prepare_threshold = 0
        return connection

    return to_server
