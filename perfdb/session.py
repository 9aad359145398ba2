"""Opening a database and writing to it. Queries are in `perfdb.queries`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import sqlalchemy as sa

from perfdb.engine import (
    BUSY_TIMEOUT_S,
    WRITE,
    broken_rule,
    make_engine,
    may_succeed_later,
    parse_url,
    sqlite_path,
    translated,
)
from perfdb.errors import DatabaseError, RecordError
from perfdb.fast import Reader, connector
from perfdb.models import TuningSession
from perfdb.records import SESSION_STATUSES, DecisionRecord, EnvironmentKey, PredictionRecord, TrialRecord
from perfdb.schema import prepare
from perfdb.writing import Transaction, Writer, now

T = TypeVar("T")

# How often a transaction that a server undid because of another one is tried again.
TRIES = 8


def default_url() -> str:
    """The user's own database: `tilescale/perf.db` in the data folder of the platform."""
    from platformdirs import user_data_path

    return f"sqlite:///{user_data_path('tilescale', appauthor=False) / 'perf.db'}"


def open_database(url: str | Path, *, create: bool = True) -> Database:
    """Open a database: `sqlite:///path`, a plain path, or a PostgreSQL URL.

    A missing or empty file is initialised (MissingDatabase if not `create`); an older schema is backed up beside the
    file and migrated (a server's is not: SchemaTooOld); a newer schema, a foreign file and a damaged file are refused
    unchanged (SchemaTooNew, NotADatabase, CorruptDatabase, all DatabaseError).
    """
    parsed = parse_url(url)
    prepare(parsed, create=create, migrate=sqlite_path(parsed) is not None)
    return Database(parsed)


class Database:
    """An open database; a context manager. Safe to use from several threads, and by many processes at a time.

    Each writing method commits before it returns. A process that forks opens its own connections in the child.
    """

    def __init__(self, url: sa.URL) -> None:
        self.url = url.render_as_string()
        self.path = sqlite_path(url)
        self._engine = make_engine(url)
        self.reader = Reader(connector(url, BUSY_TIMEOUT_S), self._engine.dialect.name)
        # Environments by row id: keys never change, so what was read once holds.
        self.environments: dict[int, EnvironmentKey] = {}
        self._keys: dict[tuple[str, int], tuple[Any, ...]] = {}
        self._writer = Writer()
        self._process = os.getpid()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; closing twice is fine."""
        self._closed = True
        self.reader.close()
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection with one consistent view of the database."""
        with translated(self.url, self.path), self._live_engine().begin() as connection:
            yield connection

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a SELECT in plain SQL (`?` for a value): the short way for look-ups."""
        self._live_engine()
        with translated(self.url, self.path):
            return self.reader.rows(sql, values)

    def key_row(self, table: str, sql: str, row_id: int) -> tuple[Any, ...]:
        """The row of a key table, asked once: keys never change."""
        found = self._keys.get((table, row_id))
        if found is None:
            (found,) = self.rows(sql, (row_id,))
            self._keys[table, row_id] = found
        return found

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A connection that holds the write lock; commits at the end, rolls back on an exception."""
        engine = self._live_engine().execution_options(**{WRITE: True})
        with translated(self.url, self.path), engine.begin() as connection:
            yield connection

    def start_session(
        self,
        *,
        seed: int | None = None,
        command: str = "",
        host: str | None = None,
        document: str = "{}",
        revision: str = "",
    ) -> int:
        """Note the start of a run, return its id for `TrialRecord.session_id`.

        `revision`: the commit of the code under test, for `perfdb.compare`.
        """
        values = {
            "seed": seed,
            "command": command,
            "host": socket.gethostname() if host is None else host,
            "status": "running",
            "started_at": now(),
            "document": document,
            "revision": revision,
        }
        with self.write() as connection:
            key = connection.execute(sa.insert(TuningSession), values).inserted_primary_key
        assert key is not None
        return int(key[0])

    def end_session(self, session_id: int, status: str = "complete") -> None:
        """Note how a session ended: complete, exhausted, interrupted or failed."""
        if status not in SESSION_STATUSES:
            raise RecordError(f"a session's status is one of {', '.join(SESSION_STATUSES)}", status)
        change = sa.update(TuningSession).where(TuningSession.id == session_id).values(status=status, ended_at=now())
        with self.write() as connection:
            if connection.execute(change).rowcount != 1:
                raise RecordError("the session must exist", session_id, "use the id that start_session returned")

    def record(self, trial: TrialRecord) -> int:
        """Store a finished trial and return its id; it is on the disk when this returns."""
        return self.record_many((trial,))[0]

    def record_many(self, trials: Iterable[TrialRecord]) -> list[int]:
        """Store many trials in one commit, all or none; return their ids in order."""
        records = list(trials)
        return self.transact(lambda transaction: transaction.trials(records))

    def record_prediction(self, prediction: PredictionRecord) -> int:
        """Store a prediction and return its id."""
        return self.transact(lambda transaction: transaction.prediction(prediction))

    def record_decision(self, decision: DecisionRecord) -> int:
        """Store the winner of a session and return the decision's id."""
        return self.transact(lambda transaction: transaction.decision(decision))

    def transact(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in one transaction, durable when this returns; again if a server undid it because of another one.

        Errors: RecordError if a row breaks a rule of the schema; then nothing was stored.
        """
        for attempt in range(1, TRIES + 1):
            try:
                with self.write() as connection:
                    transaction = self._writer.transaction(connection)
                    result = work(transaction)
            except Exception as error:
                if broken_rule(error):
                    raise RecordError(
                        "a record refers to stored rows and obeys the schema", error, "check session and trial ids"
                    ) from error
                cause = error.__cause__ if isinstance(error, DatabaseError) else error
                if attempt == TRIES or cause is None or not may_succeed_later(cause):
                    raise
                time.sleep(0.01 * attempt)
            else:
                transaction.committed()
                return result
        raise AssertionError("unreachable")

    def _live_engine(self) -> sa.Engine:
        if self._closed:
            raise DatabaseError("the database must be open", f"{self.url} was closed", "open it again")
        if os.getpid() != self._process:
            # SQLite's locks and sockets do not survive a fork: forget the parent's connections without closing them.
            self._engine.dispose(close=False)
            self._process = os.getpid()
        return self._engine
