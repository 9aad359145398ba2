"""Two searches of one key in one database take turns: the second finds what the first one measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tilescale import canon
from tilescale.tuner.records import Key

if TYPE_CHECKING:
    import perfdb

POLL_S = 0.2


@contextmanager
def turn(db: perfdb.Database, key: Key, wait: bool = True, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the key's turn in the block. Without `wait`, go on without it where another process has it.

    The turn is a lock on a file in the user's cache: the system gives it back when its process ends, however it ends.
    It is advisory, of one user on one machine and of a SQLite file: anything else goes on at once, and costs nothing
    but measurements made twice. `waiting` is called again and again while another process has the turn.
    """
    path = lock_path(db, key)
    with ExitStack() as stack:
        if path is not None:
            _take(path, stack, wait, waiting)
        yield


def _take(path: Path, stack: ExitStack, wait: bool, waiting: Callable[[], None] | None) -> None:
    """Take the lock, to be given back by `stack`; without it where it is taken and not waited for, or impossible."""
    from filelock import FileLock, Timeout

    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(path, timeout=0))
            return
        except Timeout:
            if not wait:
                return
        except OSError:  # a cache that cannot be written
            return
        if waiting:
            waiting()
        time.sleep(POLL_S)


def lock_path(db: perfdb.Database, key: Key) -> Path | None:
    """The file of a key's turn; None where there are no turns."""
    if db.path is None:
        return None
    import platformdirs

    what = [os.path.realpath(db.path), key.workload.digest, key.topology.digest, key.environment.digest, key.source]
    return Path(platformdirs.user_cache_dir("tilescale")) / "turns" / f"{canon.digest(what)}.lock"
