"""tilescale.tuner.turns: two searches of one key take turns, and a killed one gives its turn back."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from process_support import started
from tuner_support import SMALL, SPEC, fake, guess

import perfdb
from tilescale.tuner.progress import Progress
from tilescale.tuner.records import key_of
from tilescale.tuner.tune import tune
from tilescale.tuner.turns import lock_path, turn


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_second_search_waits_and_measures_nothing_again(tmp_path: Path) -> None:
    db, first, second = tmp_path / "perf.db", fake(), fake()
    entered, told = threading.Event(), threading.Event()
    plain = first.measure

    def slow(spec: object, schedules: object) -> object:
        entered.set()
        assert told.wait(30)
        return plain(spec, schedules)  # type: ignore[arg-type]

    first.measure = slow  # type: ignore[method-assign, assignment]
    one = threading.Thread(target=lambda: tune(SPEC, 10, db=db, runner=first, space=SMALL, predictor=guess))
    one.start()

    def report(progress: Progress) -> None:
        if progress.stage == "wait":
            told.set()  # it waits: now the first may go on

    assert entered.wait(30)
    result = tune(SPEC, 10, db=db, runner=second, space=SMALL, predictor=guess, progress=report)
    one.join(30)
    assert told.is_set()
    assert (first.measured, second.measured, len(result.trials)) == (10, 0, 10)


def test_without_waiting_the_second_goes_on(tmp_path: Path) -> None:
    with perfdb.open_database(tmp_path / "perf.db") as db:
        key = key_of(SPEC, fake())
        with turn(db, key):
            result = tune(SPEC, 3, db=tmp_path / "perf.db", runner=fake(), space=SMALL, predictor=guess, wait=False)
    assert result.measured == 3


def test_another_key_or_database_does_not_wait(tmp_path: Path) -> None:
    with perfdb.open_database(tmp_path / "a.db") as a, perfdb.open_database(tmp_path / "b.db") as b:
        keys = key_of(SPEC, fake()), key_of(SPEC, fake(source="measured"))
        assert len({lock_path(db, key) for db in (a, b) for key in keys}) == 4
        assert lock_path(a, keys[0]) == lock_path(a, key_of(SPEC, fake()))


def test_a_killed_search_gives_its_turn_back(tmp_path: Path) -> None:
    script = f"""
import time, perfdb
from tuner_support import SPEC, fake
from tilescale.tuner.records import key_of
from tilescale.tuner.turns import turn
with perfdb.open_database({str(tmp_path / "perf.db")!r}) as db, turn(db, key_of(SPEC, fake())):
    print("held", flush=True)
    time.sleep(60)
"""
    waited: list[int] = []
    with started(script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with perfdb.open_database(tmp_path / "perf.db") as db:

            def kill() -> None:
                waited.append(1)
                process.send_signal(signal.SIGKILL)

            with turn(db, key_of(SPEC, fake()), waiting=kill):
                assert waited
