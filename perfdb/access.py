"""How a database file is opened: for writing, or only for reading where this user or its file system allows no more."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from perfdb.errors import DatabaseError

BESIDE = ("-wal", "-shm")


def is_read_only(path: Path) -> bool:
    """Whether SQLite could not write: to the file, or, in WAL mode, to the two files that it keeps beside it."""
    if not path.exists():
        return False
    if not os.access(path, os.W_OK):
        return True
    beside = [Path(f"{path}{ending}") for ending in BESIDE]
    return not os.access(path.parent, os.W_OK) and not all(os.access(file, os.W_OK) for file in beside)


def read_only_uri(path: Path) -> str:
    """How SQLite opens a file that it must not write to.

    A log beside the file holds the newest commits: it is read with the file, which needs the index that its writer
    keeps in `-shm`. Without a log nobody writes to the file, and `immutable` lets SQLite read it without any lock.
    Errors: DatabaseError for a log without its index.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    log, index = (Path(f"{path}{ending}") for ending in BESIDE)
    if not log.exists() or log.stat().st_size == 0:
        return f"{uri}&immutable=1"
    if not index.exists():
        raise DatabaseError(
            "a log beside a database can be read only where its index can be written",
            f"{log} without {index.name} in a folder that may not be written to",
            f"copy {path.name} and {log.name} into a folder of your own and open the copy",
        )
    return uri


def connect(path: Path, timeout_s: float, *, create: bool = False, **options: Any) -> sqlite3.Connection:
    """A connection to the file, which is only read where it cannot be written to.

    Without `create` a file that is gone is an error: SQLite by itself would put an empty one in its place.
    """
    mode = "rwc" if create else "rw"
    where = read_only_uri(path) if is_read_only(path) else f"{path.absolute().as_uri()}?mode={mode}"
    connection: sqlite3.Connection = sqlite3.connect(where, uri=True, timeout=timeout_s, **options)
    return connection
