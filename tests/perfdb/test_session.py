"""perfdb.session: what `record` returned for is there for good, and many writers get along."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import perfdb
from perfdb.checking import check_database
from perfdb.summaries import differences

Make = Callable[..., perfdb.TrialRecord]

# A writer process: argv = path, name, trials (0: for ever). Prints the id of each trial once `record` returned.
WRITER = """
import os, sys, perfdb
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
w = perfdb.WorkloadKey("w", "ag_gemm", "8x8x8", "bfloat16", 2)
t = perfdb.TopologyKey("t", "2xH200", "real", 2)
e = perfdb.EnvironmentKey(gpu="H200", arch="sm_90a", power_cap_w=700)
with perfdb.open_database(path) as db:
    session = db.start_session(seed=1, command=name)
    number = 0
    while count == 0 or number < count:
        number += 1
        s = perfdb.ScheduleKey(f"shared{number}")
        record = perfdb.TrialRecord(
            w, t, e, s, "measured", "ok", 10.0 + number, samples_us=((1.0, 0.1), (2.0, 3.0)), session_id=session,
            binary_digest=f"b{number % 7}", message=name,
        )
        os.write(1, f"{db.record(record)}\\n".encode())
"""


def writer(path: str, name: str, count: int) -> subprocess.Popen[bytes]:
    code = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_kill_9_loses_no_recorded_trial(url: str) -> None:
    chance = random.Random(20250101)
    promised: set[int] = set()
    for number in range(10):
        process = writer(url, f"killed {number}", 0)
        assert process.stdout is not None
        # Strike at a random moment after a random number of trials; the first two strike while the database is opened.
        wanted = 0 if number < 2 else chance.randrange(1, 60)
        output = b""
        while output.count(b"\n") < wanted:
            assert select.select([process.stdout], [], [], 60)[0], "the writer stands still"
            more = os.read(process.stdout.fileno(), 4096)
            assert more, "the writer ended by itself"
            output += more
        threading.Event().wait(chance.uniform(0.2, 0.6) if wanted == 0 else chance.uniform(0, 0.01))
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        ids = [int(line) for line in (output + rest).split(b"\n")[:-1]]
        assert len(ids) >= wanted
        assert promised.isdisjoint(ids)
        promised.update(ids)
    assert len(promised) > 50
    with perfdb.open_database(url) as db:
        assert promised <= set(perfdb.trials(db)["trial_id"])
        assert len(perfdb.samples(db, max(promised))) == 4
        with db.read() as connection:
            assert differences(connection) == {"trial_group": 0, "standing": 0, "point": 0}
    assert check_database(url).ok


def test_eight_writers_at_a_time_start_a_database_and_fill_it(url: str) -> None:
    processes = [writer(url, f"writer {number}", 40) for number in range(8)]
    results = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, [error.decode() for _, error in results]
    ids = [int(line) for output, _ in results for line in output.split()]
    assert len(set(ids)) == 320
    with perfdb.open_database(url) as db:
        found = perfdb.trials(db)
        assert set(found["trial_id"]) == set(ids)
        assert found.groupby("message").size().to_dict() == {f"writer {number}": 40 for number in range(8)}
        with db.read() as connection:
            count = {
                table: connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()
                for table in ("workload", "topology", "environment", "schedule", "artifact", "session", "samples")
            }
    assert count == {
        "workload": 1,
        "topology": 1,
        "environment": 1,
        "schedule": 40,
        "artifact": 7,
        "session": 8,
        "samples": 640,
    }


def test_threads_share_a_database(db: perfdb.Database, make: Make) -> None:
    errors: list[perfdb.DatabaseError] = []

    def work(number: int) -> None:
        try:
            for step in range(10):
                db.record(make(f"s{step}", 1.0 + number))
        except perfdb.DatabaseError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(perfdb.trials(db)) == 40


def test_a_forked_child_writes_through_its_own_connections(db: perfdb.Database, make: Make) -> None:
    db.record(make("parent"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            db.record(make("child"))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    db.record(make("parent again"))
    assert list(perfdb.trials(db)["schedule"]) == ["parent", "child", "parent again"]


def test_every_connection_is_durable_and_checks_references(local: perfdb.Database) -> None:
    with local.read() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 60000}


def test_a_session_has_a_beginning_and_an_end(db: perfdb.Database) -> None:
    session = db.start_session(seed=7, command="tilescale tune x", host="here")
    with db.read() as connection:
        statement = "SELECT seed, command, host, status, started_at, ended_at FROM session"
        begun = connection.exec_driver_sql(statement).one()
    assert begun[:4] == (7, "tilescale tune x", "here", "running")
    assert begun[5] is None
    db.end_session(session, "exhausted")
    with db.read() as connection:
        ended = connection.exec_driver_sql(statement).one()
    assert ended[3] == "exhausted"
    assert ended[5] >= ended[4]
    with pytest.raises(perfdb.RecordError, match="status is one of running"):
        db.end_session(session, "good")
    with pytest.raises(perfdb.RecordError, match="session must exist"):
        db.end_session(99)


def test_a_batch_is_stored_whole_or_not_at_all(db: perfdb.Database, make: Make) -> None:
    assert db.record_many([make("s1"), make("s2")]) == [1, 2]
    with pytest.raises(perfdb.RecordError, match="refers to stored rows"):
        db.record_many([make("new"), make("s4", session_id=99)])
    assert len(perfdb.trials(db)) == 2
    # The key that was rolled back with the batch is stored again, not taken from memory.
    db.record(make("new"))
    assert list(perfdb.trials(db)["schedule"]) == ["s1", "s2", "new"]


def test_predictions_and_decisions_are_stored(db: perfdb.Database, make: Make) -> None:
    trial = make()
    first, second = db.record_many([trial, make("s2", 101.0)])
    db.record_prediction(
        perfdb.PredictionRecord(
            trial.workload, trial.topology, trial.schedule, "analytic", 99.0, low_us=90.0, high_us=110.0
        )
    )
    db.record_decision(
        perfdb.DecisionRecord(
            trial.workload, trial.topology, trial.environment, "measured", first, (second,), reason="simpler"
        )
    )
    with db.read() as connection:
        prediction = connection.exec_driver_sql("SELECT model, value_us, low_us, high_us FROM prediction").one()
        decision = connection.exec_driver_sql(
            "SELECT source, winner_trial_id, tie_trial_ids, reason FROM decision"
        ).one()
    assert tuple(prediction) == ("analytic", 99.0, 90.0, 110.0)
    assert tuple(decision) == ("measured", 1, "[2]", "simpler")


def test_a_closed_database_says_so(db: perfdb.Database, make: Make) -> None:
    db.close()
    with pytest.raises(perfdb.DatabaseError, match="closed"):
        db.record(make())


def test_the_default_is_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert perfdb.default_url().endswith("tilescale/perf.db")
