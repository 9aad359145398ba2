"""Connections: how a database is named, what every connection is set to, and what its errors mean.

Durability. A commit in WAL mode is a write to the -wal file; a process killed at any moment afterwards loses nothing,
even with synchronous=NORMAL, because the operating system holds the written pages. NORMAL leaves out the fsync of each
commit, so a power cut or a kernel crash could still undo the newest commits. FULL adds that fsync: milliseconds a
trial, where measuring a trial costs more. "Every finished measurement is durable" is meant literally, so FULL it is;
bulk loads share one commit (`Database.record_many`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from perfdb.access import connect
from perfdb.errors import CorruptDatabase, DatabaseError, RecordError
from perfdb.fast import CACHE_KIB

# How long a writer waits for the other writers; a commit takes milliseconds, so this is many hundred writers deep.
BUSY_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 20

WRITE = "perfdb_write"


def parse_url(where: str | Path) -> sa.URL:
    """`sqlite:///file`, a plain path or a server URL -> a URL. Errors: DatabaseError (bad URL, or in memory)."""
    text = str(where)
    if "://" not in text:
        url = sa.URL.create("sqlite", database=text)
    else:
        try:
            url = sa.make_url(text.replace("postgres://", "postgresql://", 1))
        except (sa.exc.ArgumentError, ValueError) as error:
            raise DatabaseError(
                "a database is a path or a URL", text, f"for example sqlite:///perf.db ({error})"
            ) from error
    if url.get_backend_name() == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise DatabaseError("a performance database is a file or a server", text, "give a path: sqlite:///perf.db")
        return url.set(database=str(Path(str(url.database)).expanduser().absolute()))
    if url.get_backend_name() != "postgresql":
        raise DatabaseError("a database is SQLite or PostgreSQL", text, "use sqlite:///path or postgresql://host/name")
    return url.set(drivername="postgresql+psycopg")


def sqlite_path(url: sa.URL) -> Path | None:
    """The file of a SQLite URL, None for a server."""
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None


def make_engine(url: sa.URL, *, foreign_keys: bool = True, create: bool = False) -> sa.Engine:
    """An engine whose transactions are explicit: `BEGIN` to read, `BEGIN IMMEDIATE` under the option `WRITE`.

    `create`: a missing file is made, empty.
    """
    if url.get_backend_name() != "sqlite":
        try:
            return sa.create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_TIMEOUT_S})
        except ImportError as error:
            raise DatabaseError(
                "a PostgreSQL URL needs its driver", f"{error.name} is not installed", "pip install 'psycopg[binary]'"
            ) from error
    file = Path(str(url.database))
    engine = sa.create_engine(url, creator=lambda: connect(file, BUSY_TIMEOUT_S, create=create, check_same_thread=False))

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        # The driver's own BEGIN is deferred and late; a reader that turns into a writer fails at once, without waiting.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        cursor.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get(WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def way_out(path: Path) -> str:
    """What to do about a file that cannot be used: the newest backup beside it, if there is one."""
    backups = sorted(path.parent.glob(f"{path.name}.schema-*.bak"))
    keep = f"save what can be read (`perfdb check --db {path} --salvage NEW.db`), or move {path} aside and "
    return keep + (f"restore the backup {backups[-1]}" if backups else "start a new one, or restore a copy")


@contextmanager
def translated(where: str, path: Path | None) -> Iterator[None]:
    """Turn what the driver says about a damaged or unusable file into an error with the path and the way out.

    Errors: DatabaseError; RecordError for a row that breaks a rule of the schema.
    """
    try:
        yield
    except sa.exc.DBAPIError as error:
        raised = translation(error.orig, where, path)
        if raised is None:
            raise
        raise raised from error
    except Exception as error:
        # Plain cursors raise the driver's own classes; anything that is not of a driver passes unchanged.
        raised = translation(error, where, path)
        if raised is None:
            raise
        raise raised from error


def translation(error: BaseException | None, where: str, path: Path | None) -> DatabaseError | None:
    """What a driver's error means, None where it is of no driver or means a fault of this package."""
    if isinstance(error, UnicodeEncodeError) or (isinstance(error, OverflowError) and "SQLite" in str(error)):
        return RecordError("a value must fit its column", error, "no text with NUL or half characters, no larger number")
    if path is None:
        return _server_error(error, where)
    if not isinstance(error, sqlite3.Error):
        return None
    name = str(getattr(error, "sqlite_errorname", ""))
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return CorruptDatabase("the database file must be intact", f"{path}: {error}", way_out(path))
    remedies = {
        "SQLITE_READONLY": "it can only be read here: make the file and its folder writable, or use a copy of it",
        "SQLITE_CANTOPEN": "make the file and its folder readable and writable, or give another path",
        "SQLITE_FULL": "free some space on the disk; what was recorded before is kept",
        "SQLITE_IOERR": "check the disk; what was recorded before is kept",
        "SQLITE_BUSY": f"another process held the database for over {BUSY_TIMEOUT_S:.0f} s: end it, then try again",
    }
    for prefix, remedy in remedies.items():
        if name.startswith(prefix):
            return DatabaseError("the database file must be usable", f"{path}: {error}", remedy)
    return None


def _server_error(error: BaseException | None, where: str) -> DatabaseError | None:
    with contextlib.suppress(ImportError):
        import psycopg

        if isinstance(error, psycopg.DataError):
            said = " ".join(str(error).split())
            return RecordError("a value must fit its column", said, "no text with NUL or half characters, no larger number")
        if isinstance(error, psycopg.OperationalError):
            said = " ".join(str(error).split())
            return DatabaseError("the database server must answer", f"{where}: {said}", "check the URL and the server")
    return None


def broken_rule(error: BaseException | None) -> bool:
    """Whether a driver refused a row because of a rule of the schema."""
    if isinstance(error, sqlite3.IntegrityError | sa.exc.IntegrityError):
        return True
    with contextlib.suppress(ImportError):
        import psycopg

        return isinstance(error, psycopg.IntegrityError)
    return False


def may_succeed_later(error: BaseException) -> bool:
    """Whether a server undid a transaction only because of another one (a deadlock): the same again may succeed."""
    with contextlib.suppress(ImportError):
        import psycopg

        orig = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        return isinstance(orig, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure)
    return False
