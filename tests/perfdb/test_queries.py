"""perfdb.queries: exact answers, and nothing that was not asked for among them (cases C6, D6, D7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

import perfdb
from perfdb.queries import history, similar_gpus

Make = Callable[..., perfdb.TrialRecord]


def key(trial: perfdb.TrialRecord) -> tuple[perfdb.WorkloadKey, perfdb.TopologyKey, perfdb.EnvironmentKey]:
    return trial.workload, trial.topology, trial.environment


def test_exact_returns_the_newest_answer(db: perfdb.Database, make: Make) -> None:
    trial = make(binary_digest="b", table_digest="t", message="m")
    assert perfdb.exact(db, *key(trial), trial.schedule) is None
    db.record(trial)
    db.record(replace(trial, value_us=90.0))
    db.record(replace(trial, value_us=None, status="interrupted"))
    row = perfdb.exact(db, *key(trial), trial.schedule)
    assert row is not None
    assert (row.trial_id, row.value_us, row.status, row.binary_digest, row.table_digest) == (2, 90.0, "ok", "b", "t")
    assert (row.stale, row.source, row.message) == (False, "measured", "m")
    assert row.recorded_at.tzinfo is not None
    db.record(replace(trial, value_us=None, status="wrong_result"))
    assert perfdb.known(db, *key(trial))["s1"].status == "wrong_result"
    assert perfdb.exact(db, *(part.digest for part in key(trial)), "s1").trial_id == 4


@pytest.mark.parametrize(
    "change",
    [
        {"shape": "8x8x8"},
        {"world": 8},
        {"source": "measured_shared_gpu"},
        {"gpu": "H100"},
        {"arch": "sm_100a"},
        {"power_cap_w": 500},
        {"driver": "590.1"},
        {"nvrtc": "13.0"},
        {"nccl": "2.29"},
        {"torch": "2.9"},
        {"clock_policy": "locked:1830"},
        {"gpu_count": 8},
        {"timer_version": "2"},
        {"validation_version": "2"},
    ],
)
def test_no_field_of_the_key_is_overlooked(db: perfdb.Database, make: Make, change: dict[str, object]) -> None:
    db.record(make())
    other = make(**change)
    assert perfdb.exact(db, *key(other), other.schedule, source=other.source) is None
    assert perfdb.known(db, *key(other), source=other.source) == {}
    miss = perfdb.explain_miss(db, *key(other), other.schedule, source=other.source)
    (name, value), *_ = change.items()
    assert name in miss.fields
    assert str(value) in str(miss)


def test_another_environment_answers_only_when_asked_and_labelled(db: perfdb.Database, make: Make) -> None:
    db.record(make(driver="570.1", nccl="2.27"))
    db.record(make(driver="575.1"))
    asked = make(driver="590.1")
    assert perfdb.exact(db, *key(asked), asked.schedule) is None
    row = perfdb.exact(db, *key(asked), asked.schedule, include_stale=True)
    assert row is not None
    assert (row.trial_id, row.stale, row.differs) == (2, True, "driver: asked 590.1, stored 575.1")
    assert perfdb.trials(db, environment=asked.environment).empty
    frame = perfdb.trials(db, environment=asked.environment, include_stale=True)
    assert list(frame["stale"]) == [True, True]
    assert list(frame["differs"]) == [
        "driver: asked 590.1, stored 570.1; nccl: asked 2.28, stored 2.27",
        "driver: asked 590.1, stored 575.1",
    ]


def test_trials_are_filtered_and_labelled(db: perfdb.Database, make: Make) -> None:
    session = db.start_session()
    db.record_many(
        [
            make("s1", session_id=session),
            make("s2", None, status="timeout"),
            make("s3", source="predicted"),
            make("s4", shape="8x8x8"),
        ]
    )
    first = make()
    assert list(perfdb.trials(db)["source"]) == ["measured", "measured", "predicted", "measured"]
    assert list(perfdb.trials(db, workload=first.workload)["schedule"]) == ["s1", "s2", "s3"]
    assert list(perfdb.trials(db, sources="predicted")["schedule"]) == ["s3"]
    assert list(perfdb.trials(db, statuses=["timeout"])["schedule"]) == ["s2"]
    assert list(perfdb.trials(db, session_id=session)["schedule"]) == ["s1"]
    assert perfdb.trials(db, topology="other").empty
    assert {"world", "power_cap_w", "driver", "stale"} <= set(perfdb.trials(db, topology="other").columns)
    with pytest.raises(perfdb.RecordError, match="source must be of"):
        perfdb.trials(db, sources="guessed")


@pytest.mark.parametrize("source", [name for name in perfdb.SOURCES if name != "measured"])
def test_best_without_a_qualifier_is_measured_alone(db: perfdb.Database, make: Make, source: str) -> None:
    db.record_many([make("s1", 100.0), make("s2", 1.0, source=source)])
    assert list(perfdb.best(db, op="ag_gemm")["source"]) == ["measured"]
    both = perfdb.best(db, op="ag_gemm", sources=["measured", source])
    assert sorted(zip(both["source"], both["rank"], strict=True)) == sorted([("measured", 1), (source, 1)])
    assert "each ranked by itself" in both.attrs["notes"][0]


def test_power_caps_are_ranked_apart(db: perfdb.Database, make: Make) -> None:
    db.record_many([make("s1", 100.0), make("s2", 120.0), make("s1", 140.0, power_cap_w=500)])
    frame = perfdb.best(db, op="ag_gemm", gpu="H200")
    assert list(zip(frame["power_cap_w"], frame["rank"], frame["value_us"], strict=True)) == [
        (700, 1, 100.0),
        (700, 2, 120.0),
        (500, 1, 140.0),
    ]
    assert "2 power caps (500 W, 700 W): each ranked by itself" in frame.attrs["notes"]
    assert list(perfdb.best(db, power_cap_w=500)["value_us"]) == [140.0]
    assert perfdb.best(db, power_cap_w=500).attrs["notes"] == ()


@pytest.mark.parametrize("change", [{"world": 8}, {"gpu": "H100"}, {"arch": "sm_100a"}, {"gpu_count": 8}])
def test_other_machines_are_ranked_apart(db: perfdb.Database, make: Make, change: dict[str, object]) -> None:
    db.record_many([make("s1", 100.0), make("s1", 50.0, **change)])
    assert list(perfdb.best(db)["rank"]) == [1, 1]


def test_a_newer_toolchain_makes_older_rows_stale(db: perfdb.Database, make: Make) -> None:
    db.record(make("s1", 90.0, driver="590.1"))
    db.record(make("s1", 100.0))
    frame = perfdb.best(db, op="ag_gemm")
    assert list(frame["driver"]) == ["580.65"]
    assert "left out as stale (driver: asked 580.65, stored 590.1)" in frame.attrs["notes"][0]
    everything = perfdb.best(db, op="ag_gemm", include_stale=True).set_index("driver")
    assert everything["stale"].to_dict() == {"580.65": False, "590.1": True}
    assert list(everything["rank"]) == [1, 1]


def test_a_schedule_counts_once_with_its_newest_trial(db: perfdb.Database, make: Make) -> None:
    db.record_many([make("lucky", 50.0), make("steady", 100.0), make("lucky", 110.0)])
    db.record_many([make("wrong", 10.0), make("wrong", None, status="wrong_result")])
    db.record_many([make("cut", 105.0), make("cut", None, status="interrupted")])
    frame = perfdb.best(db, op="ag_gemm")
    assert list(frame["schedule"]) == ["steady", "cut", "lucky"]
    assert list(frame["value_us"]) == [100.0, 105.0, 110.0]
    assert list(perfdb.best(db, op="ag_gemm", limit=1)["schedule"]) == ["steady"]


def test_a_similar_gpu_answers_only_when_asked_and_labelled(db: perfdb.Database, make: Make) -> None:
    # Case D7.
    db.record_many([make("s1", 100.0, gpu=gpu) for gpu in ("H100", "H200", "H20")])
    assert perfdb.best(db, gpu="H200_NVL").empty
    with db.read() as connection:
        assert similar_gpus(connection, "H200_NVL")[0] == "H200"
    frame = perfdb.best(db, gpu="H200_NVL", nearest=True)
    assert list(zip(frame["gpu"], frame["match"], strict=True)) == [("H200", "nearest to H200 NVL")]
    assert frame.attrs["notes"][0] == "no exact match for GPU H200 NVL: these are times of H200"
    assert list(perfdb.best(db, gpu="H200", nearest=True)["match"]) == ["exact"]


def test_history_keeps_one_point_a_session_and_environment(db: perfdb.Database, make: Make) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for day, driver in enumerate(("580", "580", "590")):
        session = db.start_session()
        for number in range(3):
            when = start + timedelta(days=day, seconds=number)
            value = 100.0 + day + (number - 1) ** 2
            db.record(make(f"s{number}", value, driver=driver, session_id=session, recorded_at=when))
    db.record(make("lone", 99.0, recorded_at=start + timedelta(days=9)))
    frame = history(db, op="ag_gemm", gpu="H200")
    assert list(frame["value_us"]) == [100.0, 101.0, 102.0, 99.0]
    assert list(frame["driver"]) == ["580", "580", "590", "580.65"]
    assert frame["recorded_at"].iloc[0] == pd.Timestamp(start + timedelta(seconds=1))
    assert len(history(db, policy="all")) == 10
    assert list(history(db, schedule="s0", policy="all")["value_us"]) == [101.0, 102.0, 103.0]
    assert len(history(db, since=start + timedelta(days=2))) == 2
    assert history(db, sources="predicted").empty
    with pytest.raises(perfdb.RecordError, match="policy"):
        history(db, policy="worst")


def test_failures_are_counted_by_cause_with_an_example(db: perfdb.Database, make: Make) -> None:
    db.record(make("s0"))
    for number in range(3):
        db.record(make(f"s{number}", None, status="timeout", message=f"rank {number} waited"))
    db.record(make("s9", None, status="timeout"))
    db.record(make("s1", None, status="wrong_result", source="measured_shared_gpu", op="all_gather"))
    frame = perfdb.failures(db)
    shown = frame[["source", "op", "status", "count", "schedules", "message"]]
    assert [tuple(row) for row in shown.itertuples(index=False)] == [
        ("measured", "ag_gemm", "timeout", 4, 4, "rank 2 waited"),
        ("measured_shared_gpu", "all_gather", "wrong_result", 1, 1, ""),
    ]
    assert perfdb.failures(db, op="all_gather")["count"].tolist() == [1]
    assert perfdb.failures(db, sources="emulated").empty


def test_samples_come_back_as_recorded(db: perfdb.Database, make: Make) -> None:
    trial = db.record(make(samples_us=((100.0, 100.1), (), (99.0,), (98.0, 97.0, 96.0))))
    frame = perfdb.samples(db, trial)
    assert [tuple(row) for row in frame[["rank", "sample", "us"]].itertuples(index=False)] == [
        (0, 0, 100.0),
        (0, 1, 100.1),
        (2, 0, 99.0),
        (3, 0, 98.0),
        (3, 1, 97.0),
        (3, 2, 96.0),
    ]
    assert set(frame["source"]) == {"measured"}
    assert perfdb.samples(db, db.record(make())).empty
    with pytest.raises(perfdb.RecordError, match="trial must exist"):
        perfdb.samples(db, 99)
