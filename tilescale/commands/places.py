"""Files and folders that options name, looked at before any work begins."""

from __future__ import annotations

import os
from pathlib import Path

from tilescale.commands.output import UsageError

ELSEWHERE = "choose another place, or change its permissions"


def database(db: str | None, create: bool = False) -> str:
    """The database that an option names, or the user's own, seen to be one or (with `create`) to be possible there.

    Raises UsageError for what is no performance database, perfdb's errors for one that is damaged or of another version
    and, without `create`, perfdb.MissingDatabase.
    """
    import perfdb
    from perfdb.engine import parse_url, sqlite_path

    where = db if db is not None else perfdb.default_url()
    try:
        path = sqlite_path(parse_url(where))
        if create and path is not None and not path.exists():
            _check_creatable(path, "--db")
            return where
        if path is not None and path.is_dir():
            raise UsageError("--db names a file or a server", f"{path} is a folder", f"such as {path / 'perf.db'}")
        with perfdb.open_database(where, create=create):
            return where
    except (perfdb.CorruptDatabase, perfdb.SchemaTooNew, perfdb.SchemaTooOld, perfdb.MissingDatabase):
        raise
    except perfdb.DatabaseError as error:
        raise UsageError(f"--db: {error.rule}", error.actual, error.remedy) from error


def folder_for(path: Path, option: str) -> Path:
    """A folder that is there or can be made, and written to. Raises UsageError."""
    if path.exists():
        if not path.is_dir():
            raise UsageError(f"{option} names a folder", f"{path} is a file", "choose another path")
        _check_writable(path, option)
    else:
        _check_creatable(path, option)
    return path


def file_for(path: Path, option: str) -> Path:
    """A file that can be made or replaced. Raises UsageError."""
    if path.is_dir():
        raise UsageError(f"{option} names a file", f"{path} is a folder", f"such as {path / 'NAME'}")
    _check_creatable(path, option)
    return path


def bundle_for(path: Path, option: str) -> Path:
    """A folder that a bundle can be written to: missing, empty, or a bundle. Raises UsageError."""
    from tilescale.deploy.bundle import check_replaceable
    from tilescale.errors import BundleError

    try:
        check_replaceable(path.absolute())
    except BundleError as error:
        raise UsageError(f"{option}: {error.rule}", error.actual, error.remedy) from error
    _check_creatable(path, option)  # it is made beside, and renamed
    return path


def _check_creatable(path: Path, option: str) -> None:
    """Whether the nearest folder above that is there lets something be made in it."""
    above = path.absolute().parent
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise UsageError(f"{option} names a place in folders", f"{above} is a file", "choose another path")
    _check_writable(above, option)


def _check_writable(folder: Path, option: str) -> None:
    # Asked by writing: permissions say too much to root, and nothing about /proc or a file system that is read-only.
    import tempfile

    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".tilescale-")
    except OSError as error:
        raise UsageError(f"{option} names a place that can be written", f"{folder}: {error.strerror}", ELSEWHERE) from None
    os.close(handle)
    Path(name).unlink(missing_ok=True)
