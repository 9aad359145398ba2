"""What measuring has left on this machine: processes, MPS daemons, shared memory, folders, locks.

    python benchmarks/leftovers.py [UUID ...]

Prints JSON; the exit code is 1 where a process of tilescale or a daemon runs. Shared memory is listed whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tilescale.errors import RunnerError
from tilescale.runtime.device_lock import DeviceLock

_OURS = ("-m tilescale.", "nvidia-cuda-mps", "check_runner.loop")


def leftovers(uuids: Sequence[str] = ()) -> dict[str, list[str]]:
    """Processes of tilescale and MPS daemons, shared memory, folders of daemons and held locks, as of now."""
    return {
        "processes": sorted(_processes()),
        "shared_memory": _names("/dev/shm", "*"),
        "folders": _names("/tmp", "tilescale-mps-*"),
        "locks": [uuid for uuid in uuids if _held(uuid)],
    }


def _processes() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
            if int(path.parent.name) != os.getpid() and state != "Z" and any(word in words for word in _OURS):
                found.append(f"{path.parent.name}: {words[:90]}")
    return found


def _names(folder: str, pattern: str) -> list[str]:
    return sorted(path.name for path in Path(folder).glob(pattern))


def _held(uuid: str) -> bool:
    lock = DeviceLock()
    try:
        lock.acquire([uuid], 0)
    except RunnerError:
        return True
    lock.release()
    return False


if __name__ == "__main__":
    found = leftovers(sys.argv[1:])
    print(json.dumps(found, indent=1))
    sys.exit(1 if found["processes"] or found["locks"] else 0)
