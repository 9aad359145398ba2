"""What tests of worker processes and runners share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

HERE = Path(__file__).parent
# A shell script that starts a run with `&` leaves SIGINT ignored, and a child inherits that: not what is tested here.
HEED_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
SEARCH_PATH = os.pathsep.join([str(HERE.parent), str(HERE)])  # for child processes: the package and this module


def make_schedules(count: int) -> list[Schedule]:
    return [Schedule(chunk_rows=128 * (number + 1)) for number in range(count)]


def by_chunk(spec: Spec, schedule: Schedule) -> float:
    """A timer: microseconds that grow with chunk_rows."""
    return 100.0 + schedule.chunk_rows / 128


def running(pids: Iterable[int]) -> list[int]:
    """Those of `pids` that still run. A zombie does not, once the last of its threads has ended."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            threads = len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue
        if state not in "ZX" or threads > 1:
            found.append(pid)
    return found


def wait_until_gone(pids: Iterable[int], limit_s: float = 10.0) -> list[int]:
    """Those of `pids` that still run after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    watched = list(pids)
    while (left := running(watched)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def cpu_ticks(pid: int) -> int:
    """Clock ticks that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def start_script(text: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A Python process that runs `text`, can import this module, and heeds SIGINT whatever this process does."""
    environment = {**os.environ, "PYTHONPATH": SEARCH_PATH, **(variables or {})}
    return subprocess.Popen(
        [sys.executable, "-c", HEED_SIGINT + text],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def started(text: str, variables: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process of `start_script`, ended and reaped at the end of the block whatever happened in it."""
    process = start_script(text, variables)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


def run_script(text: str, variables: Mapping[str, str] | None = None) -> str:
    """What such a process prints; it must exit with 0."""
    with started(text, variables) as process:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return out


def end_and_list_orphans(script: str, number: signal.Signals) -> tuple[list[int], int]:
    """Start `script`, which prints the pids of its workers in a line once they are busy, and send it a signal.

    Returns the workers that outlive it, and its exit code.
    """
    pids: list[int] = []
    try:
        with started(script) as process:
            assert process.stdout is not None
            pids = [int(word) for word in process.stdout.readline().split()]
            assert pids, process.communicate(timeout=10)[1]
            assert running(pids) == pids
            process.send_signal(number)
            code = process.wait(timeout=20)
        return wait_until_gone(pids), code
    finally:
        for pid in running(pids):
            os.kill(pid, signal.SIGKILL)
