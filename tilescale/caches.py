"""Folders of the user's cache stay below a size: what was used least recently goes first."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

MOST_BYTES = 2 << 30  # of a folder; binaries of some twenty thousand kernels
KEPT = 0.75  # of that, after a folder was cleared: so it is not looked through all the time


@cache
def bounded(folder: Path) -> None:
    """As `trim`, once a process: called where files are added."""
    trim(folder)


def trim(folder: Path, most_bytes: int = MOST_BYTES) -> int:
    """Remove the files below `folder` that were used least recently, where all are more than `most_bytes`; how many.

    Other processes may read, write and clear the same folder: a file that is gone is as good as removed, and one that
    cannot be removed stays.
    """
    files: list[tuple[float, int, str]] = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(OSError):
                status = os.stat(path)
                files.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total, removed = sum(size for _, size, _ in files), 0
    if total <= most_bytes:
        return 0
    for _, size, path in sorted(files):
        if total <= KEPT * most_bytes:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            removed += 1
        total -= size
    return removed
