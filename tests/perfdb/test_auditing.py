"""perfdb.auditing: no shipped query reads a table through, on either engine (case D4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import perfdb
from perfdb import auditing
from perfdb.comparing import compare
from perfdb.exploring import nearest_workloads, predictions, recommendations
from perfdb.regressions import regressions

Make = Callable[..., perfdb.TrialRecord]
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def busy(db: perfdb.Database, make: Make) -> perfdb.Database:
    session = db.start_session(revision="abc")
    trials = [
        make(f"s{n % 40}", 100.0 + n, shape=f"{n % 5}x8", gpu=f"G{n % 3}", session_id=session) for n in range(400)
    ]
    db.record_many(replace(trial, recorded_at=NOW - timedelta(hours=n)) for n, trial in enumerate(trials))
    db.record_many([make(f"f{n}", None) for n in range(20)])
    with db.write() as connection:
        connection.exec_driver_sql("ANALYZE")
    return db


def test_no_shipped_query_reads_a_table_through(busy: perfdb.Database, make: Make) -> None:
    trial = make()
    key = (trial.workload, trial.topology, trial.environment)
    with auditing.statements(busy) as sent:
        perfdb.exact(busy, *key, trial.schedule)
        perfdb.exact(busy, *key[:2], make(driver="1").environment, "s1", include_stale=True)
        perfdb.known(busy, *key)
        perfdb.best(busy, op="ag_gemm", shape="1x8", gpu="G1")
        perfdb.explain_miss(busy, *key[:2], make(driver="1").environment, trial.schedule)
        perfdb.failures(busy, op="ag_gemm")
        perfdb.trials(busy, workload=trial.workload)
        perfdb.trials(busy, session_id=99)
        perfdb.samples(busy, 3)
        perfdb.history(busy, op="ag_gemm", shape="1x8", gpu="G1")
        perfdb.history(busy, since=NOW)
        perfdb.history(busy, workload=trial.workload, schedule="s1")
        nearest_workloads(busy, op="ag_gemm", shape="1x8")
        predictions(busy, op="ag_gemm")
        recommendations(busy, op="ag_gemm")
        compare(busy, {"driver": "580"}, {"driver": "590"}, op="ag_gemm", shape="1x8")
        compare(busy, {"commit": "abc"}, {"commit": "def"}, op="ag_gemm", shape="1x8")
        regressions(busy, until=NOW)
        regressions(busy, until=NOW, days=1, policy="schedule:s1")
    assert len({one.sql for one in sent}) > 25
    assert auditing.full_scans(busy, sent) == []


def test_a_full_scan_is_noticed(busy: perfdb.Database) -> None:
    with auditing.statements(busy) as sent:
        busy.rows("SELECT count(*) FROM trial WHERE message = ?", ("x",))
        with busy.read() as connection:
            connection.exec_driver_sql("SELECT value_us FROM trial WHERE id = 3")
    assert [sql for _, sql in auditing.full_scans(busy, sent)] == ["SELECT count(*) FROM trial WHERE message = ?"]
