"""tilescale.tuner.interrupt: Ctrl-C, SIGTERM and SIGKILL lose no finished measurement."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from process_support import started
from tuner_support import SMALL, SPEC, fake, guess

import perfdb
from tilescale.tuner.interrupt import Guard
from tilescale.tuner.tune import tune

# A runner that says how many it has finished before it gives the measurement away, and stops for good at the seventh.
SEARCH = """
import sys, time
from tuner_support import SMALL, SPEC, fake, guess
from tilescale.tuner.tune import tune

class Telling:
    source = "predicted"
    def __init__(self): self.inner, self.done = fake(), 0
    def measure(self, spec, schedules):
        print(self.done, flush=True)  # what came before is on the disk
        if self.done == {stop}:
            time.sleep(60)
        self.done += 1
        return self.inner.measure(spec, schedules)
    def close(self): self.inner.close()

result = tune(SPEC, trials=20, db={db!r}, runner=Telling(), space=SMALL, predictor=guess)
print("status", result.status, len(result.trials), flush=True)
"""


def search(db: Path, number: signal.Signals, stop: int = 7) -> tuple[int, str]:
    """Run SEARCH until it stands still, send it a signal, and return its exit code and what it printed after that."""
    with started(SEARCH.format(db=str(db), stop=stop)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for expected in range(stop + 1):
            line = process.stdout.readline()
            assert line == f"{expected}\n", process.stderr.read()
        process.send_signal(number)
        rest, _ = process.communicate(timeout=20)
        return process.returncode, rest


def stored(db: Path) -> int:
    with perfdb.open_database(db) as database:
        return len(perfdb.trials(database, statuses="ok"))


@pytest.mark.parametrize("stop", [1, 7])
def test_kill_9_loses_no_finished_measurement(tmp_path: Path, stop: int) -> None:
    db = tmp_path / "perf.db"
    code, _ = search(db, signal.SIGKILL, stop)
    assert code == -signal.SIGKILL
    assert stored(db) == stop
    runner = fake()
    result = tune(SPEC, trials=20, db=db, runner=runner, space=SMALL, predictor=guess)
    assert (runner.measured, result.status) == (20 - stop, "complete")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_search_with_a_result(tmp_path: Path, number: signal.Signals) -> None:
    db = tmp_path / "perf.db"
    assert search(db, number) == (0, "status interrupted 7\n")
    assert stored(db) == 7
    with perfdb.open_database(db) as database, database.read() as connection:
        assert connection.exec_driver_sql("select status from session").scalars().all() == ["interrupted"]


def test_a_signal_waits_for_what_is_being_written() -> None:
    guard, finished = Guard(), []
    before = signal.getsignal(signal.SIGTERM)

    def write() -> None:
        with guard.held():
            os.kill(os.getpid(), signal.SIGTERM)
            finished.append("written")

    def measure() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        finished.append("reached")

    with guard.installed():
        for work in (write, measure):
            with pytest.raises(KeyboardInterrupt):
                work()
    assert finished == ["written"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_outside_the_main_thread_no_handler_is_touched() -> None:
    seen = []

    def look() -> None:
        with Guard().installed():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
