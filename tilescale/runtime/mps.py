"""A private MPS daemon, so that ranks in processes of their own run on one GPU at the same time.

The daemon belongs to a keeper process (`python -m tilescale.runtime.mps`), which ends it when it is told to or when
this process is gone, however that ended. Pipes and logs lie in a folder of their own: another daemon of the machine is
not touched, and neither is the compute mode.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tilescale.errors import MissingDependency, RunnerError

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_NAME = b"nvidia-cuda-mps"  # of the daemon and of its servers
_START_S = 15.0
_STOP_S = 10.0
_SHARED = Path("/dev/shm")
_ROOT = Path(__file__).resolve().parents[2]  # the folder that holds the package


class MpsDaemon:
    """Running from `start` to `stop`; a context manager. `environment` is what processes need to become its clients.

    Clients end before `stop`: the daemon waits for them a moment, then is ended all the same.
    """

    def __init__(self) -> None:
        self._keeper: subprocess.Popen[bytes] | None = None
        self._folder = ""

    @property
    def running(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the keeper and the daemon with its servers."""
        return (self._keeper.pid, *daemon_pids(Path(self._folder))) if self._keeper else ()

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a client."""
        if not self._folder:
            raise RunnerError("clients of MPS start after its daemon", remedy="call start() first")
        return variables(Path(self._folder))

    def start(self) -> None:
        """Raises MissingDependency without the control program, RunnerError where the daemon does not answer."""
        if self.running:
            return
        if shutil.which(CONTROL) is None:
            raise MissingDependency("ranks that share a GPU need MPS", f"no {CONTROL} on the PATH",
                                    "install the NVIDIA driver's compute utilities")
        self._folder = tempfile.mkdtemp(prefix="tilescale-mps-", dir="/tmp")  # short: it holds Unix sockets
        paths = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-P", "-m", "tilescale.runtime.mps", "--folder", self._folder]
        self._keeper = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            start_new_session=True)  # Ctrl-C and the end of this process do not reach it
        answer = self._answer()
        if answer != "ready":
            self.stop()
            raise RunnerError("the MPS daemon starts", answer or "no answer", f"try {CONTROL} -d by hand")

    def _answer(self) -> str:
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        ready, _, _ = select.select([self._keeper.stdout], [], [], _START_S + 5)
        return self._keeper.stdout.readline().decode().strip() if ready else ""

    def watch(self, pids: Iterable[int]) -> None:
        """Tell the keeper of clients: what they leave in shared memory goes when the daemon does."""
        if self._keeper is not None and self._keeper.stdin is not None:
            with contextlib.suppress(OSError):
                self._keeper.stdin.write("".join(f"{pid}\n" for pid in pids).encode())

    def stop(self) -> None:
        """End the daemon and remove its folder; may be called twice."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        assert keeper.stdin is not None
        with contextlib.suppress(OSError):
            keeper.stdin.close()
        try:
            keeper.wait(timeout=2 * _STOP_S + 5)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
            end_daemon(Path(self._folder), ())
        if keeper.stdout is not None:
            keeper.stdout.close()

    def restart(self) -> None:
        """A new daemon in place of one whose clients have failed; they must have ended."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def variables(folder: Path) -> dict[str, str]:
    """The environment that names a daemon by its folder."""
    return {PIPES: str(folder / "pipe"), LOGS: str(folder / "log")}


def daemon_pids(folder: Path) -> tuple[int, ...]:
    """Processes of the daemon of this folder: the control and its servers, by their name and environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name = os.path.basename((path / "cmdline").read_bytes().split(b"\0", 1)[0])
            if name.startswith(_NAME) and os.fsencode(folder) in (path / "environ").read_bytes():
                found.append(int(path.name))
    return tuple(sorted(found))


# --- the keeper ---


def control(folder: Path, command: str, limit_s: float) -> bool:
    """Give the daemon a command; whether it took it."""
    try:
        done = subprocess.run([CONTROL], input=command + "\n", env={**os.environ, **variables(folder)}, text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=limit_s)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def begin_daemon(folder: Path) -> str:
    """Start the daemon and wait for its process; "ready", or in words what failed."""
    for path in variables(folder).values():
        os.makedirs(path, exist_ok=True)
    said = folder / "start.txt"  # no pipe: the daemon may keep it open
    try:
        with said.open("wb") as out:
            done = subprocess.run([CONTROL, "-d"], env={**os.environ, **variables(folder)}, stdin=subprocess.DEVNULL,
                                  stdout=out, stderr=out, timeout=_START_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return f"exit code {done.returncode}: {' '.join(said.read_text(errors='replace').split())}"
    deadline = time.monotonic() + _START_S
    while not control(folder, "get_server_list", 5.0):
        if time.monotonic() > deadline:
            return f"{CONTROL} -d has ended, and no daemon answers"
        time.sleep(0.02)
    return "ready"


def end_daemon(folder: Path, clients: Iterable[int]) -> None:
    """Ask it to quit, end it where it does not, and remove what is left."""
    own = set(daemon_pids(folder))
    if own:
        control(folder, "quit", _STOP_S / 2)
        _wait_gone(own, _STOP_S / 2)
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = daemon_pids(folder)
        own.update(left)
        for each in left:
            with contextlib.suppress(OSError):
                os.kill(each, number)
        _wait_gone(left, 2.0)
    _sweep([*clients, *own])
    shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _wait_gone(pids: Iterable[int], limit_s: float) -> None:
    watched, deadline = list(pids), time.monotonic() + limit_s
    while any(_alive(pid) for pid in watched) and time.monotonic() < deadline:
        time.sleep(0.02)


def _sweep(pids: Iterable[int], folder: Path = _SHARED) -> None:
    """Remove shared memory of ended processes: the driver names it `cuda.shm.UID.PID.N`, in hexadecimal."""
    names = {f"{pid:x}" for pid in pids if not _alive(pid)}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            parts = path.name.split(".")
            if parts[:2] == ["cuda", "shm"] and len(parts) > 3 and parts[3] in names:
                with contextlib.suppress(OSError):
                    path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description="keeps a private MPS daemon; started by tilescale")
    parser.add_argument("--folder", type=Path, required=True)
    folder: Path = parser.parse_args().folder
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.close(0))  # as if the parent had gone
    clients: set[int] = set()
    try:
        with contextlib.suppress(OSError):
            os.write(1, (begin_daemon(folder) + "\n").encode())
        pending = b""
        with contextlib.suppress(OSError):
            while data := os.read(0, 4096):
                *lines, pending = (pending + data).split(b"\n")
                clients.update(int(line) for line in lines if line.isdigit())
    finally:
        _wait_gone(clients, 3.0)  # they die with the parent too
        end_daemon(folder, clients)


if __name__ == "__main__":
    main()
