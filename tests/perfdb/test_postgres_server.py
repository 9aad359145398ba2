"""The server that the tests start: it ends with the process it is for, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.perfdb import postgres_server

ROOT = Path(__file__).parents[2]
PARENT = """
import signal, time
from tests.perfdb import postgres_server
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background of a shell ignores it
with postgres_server.server() as url:
    print(url, flush=True)
    time.sleep(600)
"""


def belongings(port: str) -> list[str]:
    """What of a server on this port is still there: processes and their folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"port={port}".encode() in command:
            found += [f"process {entry.parent.name}", command[command.index(b"-D") + 1].decode()]
    return found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_parent(number: signal.Signals) -> None:
    try:
        postgres_server.programs()
    except postgres_server.NoServer as reason:
        pytest.skip(str(reason))
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip
    assert parent.stdout is not None
    url = parent.stdout.readline().strip()
    port = url.rpartition(":")[2]
    process, folder = belongings(port)
    assert Path(folder).exists()
    # The whole group, as a test run that is killed by its supervisor.
    os.killpg(parent.pid, number)
    parent.wait(30)
    deadline = time.monotonic() + 60
    while (belongings(port) or Path(folder).parent.exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert belongings(port) == [], process
    assert not Path(folder).parent.exists()
