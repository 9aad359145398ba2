"""tilescale.runtime.mps: a private daemon that outlives nobody. The control program is a stand-in."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from process_support import run_script, running, started, wait_until_gone

from tilescale.errors import MissingDependency, RunnerError
from tilescale.runtime import mps

PATH = os.pathsep.join([str(Path(__file__).parent / "fake_mps"), os.environ["PATH"]])
HOLD = """
import time
from tilescale.runtime.mps import MpsDaemon
with MpsDaemon() as daemon:
    print(*daemon.pids, daemon.environment["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", PATH)


def test_runs_between_start_and_stop_in_folders_of_its_own() -> None:
    with mps.MpsDaemon() as daemon:
        pids, pipes = daemon.pids, Path(daemon.environment[mps.PIPES])
        assert len(pids) == 2
        assert running(pids) == list(pids)
        assert pipes.is_dir()
        assert Path(daemon.environment[mps.LOGS]).parent == pipes.parent
        assert len(str(pipes)) < 60  # it holds Unix sockets, whose paths are short
    assert not daemon.running
    assert wait_until_gone(pids) == []
    assert not pipes.parent.exists()


def test_a_restart_has_another_folder() -> None:
    with mps.MpsDaemon() as daemon:
        first, pids = daemon.environment, daemon.pids
        daemon.restart()
        assert daemon.environment != first
        assert wait_until_gone(pids) == []
    daemon.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_ends_with_its_parent_however_that_ends(number: signal.Signals) -> None:
    pids: list[int] = []
    try:
        with started(HOLD) as process:
            assert process.stdout is not None
            *words, pipes = process.stdout.readline().split()
            pids = [int(word) for word in words]
            assert running(pids) == pids
            process.send_signal(number)
            process.communicate(timeout=20)
        assert wait_until_gone(pids) == []
        assert not Path(pipes).parent.exists()
    finally:
        for pid in running(pids):
            os.kill(pid, signal.SIGKILL)


def test_a_daemon_that_does_not_quit_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MPS_STAYS", "1")
    with mps.MpsDaemon() as daemon:
        pids = daemon.pids
    assert wait_until_gone(pids) == []


def test_a_daemon_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MPS_FAILS", "1")
    daemon = mps.MpsDaemon()
    with pytest.raises(RunnerError, match="already running"):
        daemon.start()
    assert daemon.pids == ()
    assert not Path(daemon._folder).exists()


def test_without_the_control_program_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingDependency, match="compute utilities"):
        mps.MpsDaemon().start()


def test_what_ended_clients_left_in_shared_memory_goes(tmp_path: Path) -> None:
    ended = int(run_script("import os; print(os.getpid())"))
    mine, other = tmp_path / f"cuda.shm.0.{ended:x}.1", tmp_path / f"cuda.shm.0.{os.getpid():x}.1"
    for path in (mine, other, tmp_path / "sem.something"):
        path.touch()
    mps._sweep([ended, os.getpid()], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([other.name, "sem.something"])
