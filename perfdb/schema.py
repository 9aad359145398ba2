"""From a file or a server to a database of the current schema: recognise, refuse, initialise, back up, migrate."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

from perfdb.access import connect, is_read_only
from perfdb.engine import BUSY_TIMEOUT_S, WRITE, make_engine, sqlite_path, translated, way_out
from perfdb.errors import (
    CorruptDatabase,
    DatabaseError,
    MissingDatabase,
    NotADatabase,
    SchemaTooNew,
    SchemaTooOld,
)
from perfdb.mounts import refuse_network

# Every schema version that was ever released, oldest first; the last is the one that this code reads and writes.
VERSIONS = ("0001", "0002")
MIGRATIONS = Path(__file__).parent / "migrations"

# The number of our advisory lock on a server.
SCHEMA_LOCK = 0x7065726664
# Alembic keeps the migration that runs in a global: one at a time in a process.
_UPGRADING = threading.Lock()
MAGIC = b"SQLite format 3\0"
HEADER_BYTES = 100
# Reading a whole file through costs about a second a gigabyte: smaller ones are checked at every opening, all by
# `perfdb check`.
QUICK_CHECK_BYTES = 16 << 20


@dataclass(frozen=True)
class Prepared:
    """What `prepare` did: the version found ("" for a new database) and the backup made before a migration."""

    found: str
    backup: Path | None = None


def prepare(url: sa.URL, *, create: bool = True, migrate: bool = True) -> Prepared:
    """Make sure that `url` is a database of the current schema.

    Creates a missing or empty one (if `create`), migrates an older one after a backup beside it (if `migrate`).
    Errors: MissingDatabase, NotADatabase, CorruptDatabase, SchemaTooNew, SchemaTooOld. A refused file is left as it
    was.
    """
    path = sqlite_path(url)
    if path is not None:
        try:
            refuse_network(path)
            inspect_file(path, create)
        except (OSError, ValueError, RuntimeError) as error:  # no access, no such name, a loop of links
            said = getattr(error, "strerror", None) or error
            remedy = "make the file and its folder readable, or give another path"
            raise DatabaseError("the database file must be usable", f"{path}: {said}", remedy) from error
        if path.exists() and path.stat().st_size <= QUICK_CHECK_BYTES:
            quick_check(path)
    engine = make_engine(url, foreign_keys=False, create=create)
    try:
        with translated(url.render_as_string(), path):
            done = _prepare(engine, path, create, migrate)
            if path is not None and not is_read_only(path):
                _switch_to_wal(engine)
            return done
    finally:
        engine.dispose()


def inspect_file(path: Path, create: bool) -> None:
    """Look at the first bytes before SQLite does: some damaged files it would take for empty ones.

    Sizes are left to SQLite, which compares them under its lock: from outside, a file that another process is writing
    looks truncated. Errors: those of `prepare`, OSError.
    """
    if not path.exists():
        if not create:
            raise MissingDatabase(
                "the database file must exist", path, "give --db PATH; a tuning run makes it (perfdb.open_database)"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        return
    if not path.is_file():
        raise NotADatabase("a database is a file", path, "give the path of a file")
    header = _header(path)
    if not header:
        log = _log_bytes(path)
        if log:
            actual = f"{path} is empty beside {log} bytes in its -wal file"
            raise CorruptDatabase("the database file must be intact", actual, way_out(path))
    elif not header.startswith(MAGIC[: len(header)]):
        raise NotADatabase(
            "the file must be a SQLite database",
            f"{path} begins with {header[:16]!r}",
            f"nothing was changed; give another path, or if this was a performance database, {way_out(path)}",
        )
    elif len(header) < HEADER_BYTES:
        raise CorruptDatabase("the database file must be whole", f"{path} has {len(header)} bytes", way_out(path))


def _header(path: Path) -> bytes:
    """The first bytes; a second look at a short file, which another process may have begun this moment."""
    for last in (False, True):
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        if last or len(header) in (0, HEADER_BYTES):
            break
        time.sleep(0.1)
    return header


def _log_bytes(path: Path) -> int:
    """Bytes in the write-ahead log beside the file.

    A rollback journal does not count: it is there while another process writes the first page of a new database.
    """
    log = Path(f"{path}-wal")
    return log.stat().st_size if log.exists() else 0


def quick_check(path: Path) -> None:
    """Read every page through. Errors: CorruptDatabase with what SQLite found."""
    try:
        with closing(connect(path, BUSY_TIMEOUT_S)) as connection:
            found = [" ".join(str(row[0]).split()) for row in connection.execute("PRAGMA quick_check(5)")]
    except sqlite3.DatabaseError as error:
        if not str(getattr(error, "sqlite_errorname", "")).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise DatabaseError(
                "the database file must be usable", f"{path}: {error}", "check its permissions"
            ) from error
        found = [str(error)]
    if found != ["ok"]:
        raise CorruptDatabase("the database file must be intact", f"{path}: {'; '.join(found)}", way_out(path))


def read_version(connection: sa.Connection) -> str | None:
    """The schema version of a performance database, None of an empty one. Errors: NotADatabase, CorruptDatabase."""
    where = connection.engine.url.render_as_string()
    tables = set(sa.inspect(connection).get_table_names())
    # A server's database may be shared with others: only our own tables count there.
    ours = {"workload", "trial", "samples"}
    if not tables or (connection.dialect.name != "sqlite" and not tables & {*ours, "alembic_version"}):
        return None
    if not {*ours, "alembic_version"} <= tables:
        raise NotADatabase(
            "the file must be a performance database",
            f"{where} holds the tables {', '.join(sorted(tables)[:5])}",
            "nothing was changed; give another path",
        )
    version = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    if version is None:
        path = sqlite_path(connection.engine.url)
        raise CorruptDatabase("the database must state its schema version", where, way_out(path) if path else "")
    return str(version)


def stated_version(path: Path) -> str | None:
    """The schema version that a file states, without changing it or checking anything; None if it states none."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error:
        return None
    return None if row is None else str(row[0])


def _prepare(engine: sa.Engine, path: Path | None, create: bool, migrate: bool) -> Prepared:
    with engine.connect() as connection:
        version = read_version(connection)
    if version == VERSIONS[-1]:
        return Prepared(version)
    where = engine.url.render_as_string()
    if version is not None and version not in VERSIONS:
        raise SchemaTooNew(
            "the database must not be newer than this perfdb",
            f"{where} has schema {version}, this perfdb knows up to {VERSIONS[-1]}",
            "upgrade tilescale; the database was not changed",
        )
    if version is None and not create:
        raise MissingDatabase("the database must hold something", f"{where} is empty", "give --db PATH")
    if version is not None and path is not None and is_read_only(path):
        raise SchemaTooOld(
            "the database must have this perfdb's schema",
            f"{where} has schema {version}, this perfdb {VERSIONS[-1]}, and the file or its folder may not be written to",
            "copy it into a folder of your own and open the copy, which is then migrated",
        )
    if version is not None and not migrate:
        raise SchemaTooOld(
            "the database must have this perfdb's schema",
            f"{where} has schema {version}, this perfdb {VERSIONS[-1]}",
            "make a backup, then run `perfdb migrate`",
        )
    with engine.execution_options(**{WRITE: True}).begin() as connection:
        if path is None:
            # SQLite's write lock keeps others out; a server needs one of its own, held to the end of the transaction.
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")
        # Another process may have done it while this one waited for the lock.
        version = read_version(connection)
        if version == VERSIONS[-1]:
            return Prepared(version)
        backup = _back_up(path, version) if version is not None and path is not None else None
        with _UPGRADING:
            _upgrade(connection)
        return Prepared(version or "", backup)


def _back_up(path: Path, version: str) -> Path:
    """Copy the database beside itself, on disk before it returns. The caller holds the write lock, so nothing moves."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    backup = path.with_name(f"{path.name}.schema-{version}.{stamp}.bak")
    partial = backup.with_name(f"{backup.name}.part")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(partial)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")
    descriptor = os.open(partial, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    partial.replace(backup)
    return backup


def _upgrade(connection: sa.Connection) -> None:
    """Run the migrations to the newest version inside the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, VERSIONS[-1])
    if connection.dialect.name == "sqlite":
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if broken:
            raise CorruptDatabase(
                "a migration keeps every reference",
                f"{connection.engine.url.database}: {len(broken)} rows refer to nothing, first {tuple(broken[0])}",
                "the migration was undone; run `perfdb check`",
            )


def _switch_to_wal(engine: sa.Engine) -> None:
    """Readers and a writer at a time. The mode is kept in the file; only its first opener changes it."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        while True:
            # SQLite does not wait for this lock, whatever the busy timeout says.
            try:
                cursor.execute("PRAGMA journal_mode = WAL")
                mode = cursor.fetchone()
                break
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        if mode is None or mode[0] != "wal":
            raise DatabaseError(
                "SQLite must be able to keep a write-ahead log",
                f"{engine.url.database}: {mode}",
                "use a local file system",
            )
    finally:
        raw.close()
