"""`perfdb check --salvage`: what can still be read of a damaged SQLite file, in a new database.

The damaged file is never opened for writing: it and its log are copied, and the copy is read. A leaf page of a table
holds neighbouring rows, so a damaged page loses a span of ids; reading goes on behind it.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from perfdb import summaries
from perfdb.errors import CorruptDatabase, DatabaseError
from perfdb.models import Base
from perfdb.schema import HEADER_BYTES, MAGIC, prepare

SUMMARIES = ("trial_group", "standing", "point")
# Ids are dense: a gap wider than this is the end of what can be found.
FURTHEST = 1 << 40


@dataclass(frozen=True)
class Saved:
    """One table: rows kept, rows whose ids are missing between those read, rows left out for a reference they lost."""

    table: str
    kept: int
    lost: int
    orphans: int

    def __str__(self) -> str:
        return f"{self.table}: {self.kept} kept, {self.lost} lost, {self.orphans} left out (what they refer to is lost)"


def salvage(damaged: Path, target: Path) -> tuple[Saved, ...]:
    """Write every row that can be read into a new database `target`; `damaged` keeps its bytes.

    `lost` counts ids missing before the last row that could be read; rows behind it leave no trace. Errors:
    DatabaseError if `target` exists, CorruptDatabase if the schema itself cannot be read.
    """
    if target.exists():
        raise DatabaseError("salvage writes a new file", f"{target} exists", "give another path")
    with tempfile.TemporaryDirectory(prefix="perfdb-salvage-") as folder:
        copy = Path(folder) / "damaged.db"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(damaged, copy)
        except OSError as error:
            said = f"{error.filename or damaged}: {error.strerror}"
            raise DatabaseError("salvage reads a file and writes a new one", said, "give paths that allow it") from error
        # Rows are kept in the schema that the file has and then migrated as any older database is.
        partial = target.with_name(f"{target.name}.part")
        partial.unlink(missing_ok=True)
        try:
            saved = _transfer(copy, partial, damaged)
            prepare(sa.URL.create("sqlite", database=str(partial.absolute())), create=False)
            _finish(partial)
            partial.replace(target)
        finally:
            for path in partial.parent.glob(f"{partial.name}*"):
                path.unlink()
    return saved


def _copy(damaged: Path, copy: Path) -> None:
    for ending in ("", "-wal"):
        if Path(f"{damaged}{ending}").exists():
            shutil.copyfile(f"{damaged}{ending}", f"{copy}{ending}")
    with copy.open("r+b") as file:
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
            raise CorruptDatabase(
                "the first page holds the schema and must be readable",
                damaged,
                "restore a backup; nothing can be saved",
            )
        # SQLite refuses a file that is shorter than it says: pages that were cut off become empty ones.
        page = int.from_bytes(header[16:18], "big")
        page = 65536 if page == 1 else page
        file.truncate(max(copy.stat().st_size, page * int.from_bytes(header[28:32], "big")))


def _transfer(copy: Path, partial: Path, damaged: Path) -> tuple[Saved, ...]:
    try:
        with closing(sqlite3.connect(copy)) as source:
            schema = source.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
            version = source.execute("SELECT version_num FROM alembic_version").fetchone()
            tables = {name: sql for kind, name, sql in schema if kind == "table" and not name.startswith("sqlite_")}
            if version is None or not {"trial", "workload", "samples"} <= set(tables):
                raise sqlite3.DatabaseError("no schema of a performance database")
            with closing(sqlite3.connect(partial)) as target:
                for _, _, sql in sorted(schema, key=lambda row: row[0] != "table"):
                    target.execute(sql)
                target.execute("INSERT INTO alembic_version VALUES (?)", version)
                names = [table.name for table in Base.metadata.sorted_tables if table.name in tables]
                saved = [_table(source, target, name) for name in names if name not in SUMMARIES]
                target.commit()
    except sqlite3.DatabaseError as error:
        raise CorruptDatabase(
            "the schema of the damaged file must be readable", f"{damaged}: {error}", "restore a backup"
        ) from error
    return tuple(saved)


def _table(source: sqlite3.Connection, target: sqlite3.Connection, name: str) -> Saved:
    columns = [row[1] for row in target.execute(f"PRAGMA table_info({name})")]
    refers = [(row[3], row[2], row[4]) for row in target.execute(f"PRAGMA foreign_key_list({name})")]
    insert = f"INSERT OR IGNORE INTO {name} (rowid, {', '.join(columns)}) VALUES (?{', ?' * len(columns)})"
    kept = orphans = last = 0
    present = {other: {row[0] for row in target.execute(f"SELECT id FROM {other}")} for _, other, _ in refers}
    seen = 0
    for row in _rows(source, name, columns):
        seen, last = seen + 1, row[0]
        values = dict(zip(columns, row[1:], strict=True))
        if any(values[column] is not None and values[column] not in present[other] for column, other, _ in refers):
            orphans += 1
            continue
        try:
            target.execute(insert, row)
        except sqlite3.IntegrityError:
            # A page that was overwritten with other rows: what breaks a rule of the schema is no row.
            orphans += 1
            continue
        kept += 1
    return Saved(name, kept, max(0, last - seen), orphans)


def _rows(source: sqlite3.Connection, name: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    """All rows that can be read, by row id, going on behind damaged pages."""
    select = f"SELECT rowid, {', '.join(columns)} FROM {name} NOT INDEXED WHERE rowid >= ? ORDER BY rowid"
    begin = 0
    while True:
        try:
            for row in source.execute(select, (begin,)):
                if row[0] < begin:
                    raise sqlite3.DatabaseError("row ids out of order")
                yield row
                begin = row[0] + 1
            return
        except (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError):
            following = _behind(source, name, begin)
            if following is None:
                return
            begin = following


def _behind(source: sqlite3.Connection, name: str, begin: int) -> int | None:
    """The first readable row id behind `begin`, None if there is none: by doubling steps, then by halving."""
    step = 1
    while step < FURTHEST:
        found = _first(source, name, begin + step)
        if found == "end":
            return None
        if isinstance(found, int):
            break
        step *= 2
    else:
        return None
    low, high = begin + step // 2, begin + step
    while low < high:
        middle = (low + high) // 2
        if isinstance(_first(source, name, middle), int):
            high = middle
        else:
            low = middle + 1
    return high


def _first(source: sqlite3.Connection, name: str, at: int) -> int | str:
    """The first row id from `at` on, "end" if there is none, "damaged" if reading fails."""
    try:
        sql = f"SELECT rowid, * FROM {name} NOT INDEXED WHERE rowid >= ? ORDER BY rowid LIMIT 1"
        row = source.execute(sql, (at,)).fetchone()
    except (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError):
        return "damaged"
    return "end" if row is None else int(row[0])


def _finish(path: Path) -> None:
    """Make the summaries anew, and leave one file without a log."""
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        summaries.rebuild(connection)
    engine.dispose()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
