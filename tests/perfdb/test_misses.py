"""perfdb.misses: a miss says which field differs, from what."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

import perfdb
from perfdb.shapes import shape_distance

Make = Callable[..., perfdb.TrialRecord]


def explain(db: perfdb.Database, trial: perfdb.TrialRecord) -> perfdb.Miss:
    return perfdb.explain_miss(
        db, trial.workload, trial.topology, trial.environment, trial.schedule, source=trial.source
    )


def test_an_empty_database_says_so(db: perfdb.Database, make: Make) -> None:
    assert str(explain(db, make())) == "no exact match: nothing is stored for ag_gemm"


def test_the_differing_fields_are_named_nearest_first(db: perfdb.Database, make: Make) -> None:
    # Case C6: driver, architecture and timer change in turn.
    db.record(make(driver="590", arch="sm_100a", timer_version="2"))
    db.record(make(driver="590"))
    db.record(make(arch="sm_100a", driver="590"))
    miss = explain(db, make())
    assert miss.reason == "no exact match: driver: asked 580.65, stored 590"
    assert [near.trial_id for near in miss.nearest] == [2, 3, 1]
    assert [tuple(name for name, _, _ in near.differences) for near in miss.nearest] == [
        ("driver",),
        ("arch", "driver"),
        ("arch", "driver", "timer_version"),
    ]
    assert "trial 2 (measured, ok 100.00 us) differs in driver: asked 580.65, stored 590" in str(miss)


def test_a_schedule_that_was_never_tried_is_named(db: perfdb.Database, make: Make) -> None:
    db.record_many([make("s2", 120.0), make("s3", 110.0)])
    miss = explain(db, make("s1"))
    assert miss.reason == "no exact match: schedule: asked label s1, stored others only"
    assert miss.nearest[0].trial_id == 2


def test_the_nearest_shape_is_named(db: perfdb.Database, make: Make) -> None:
    db.record_many([make(shape="64x64x64"), make(shape="4096x10240x4096")])
    miss = explain(db, make())
    assert miss.reason == "no exact match: shape: asked 4096x10240x8192, stored 4096x10240x4096"


def test_what_no_column_says_is_named_by_its_digest(db: perfdb.Database, make: Make) -> None:
    db.record(make())
    other = make()
    other = replace(other, topology=replace(other.topology, digest="t2"))
    assert explain(db, other).reason == "no exact match: topology: asked t2, stored t1"
    renamed = replace(other, topology=replace(other.topology, kind="shared_gpu"))
    assert explain(db, renamed).reason == "no exact match: topology.kind: asked shared_gpu, stored real"
    assert explain(db, replace(renamed, source="predicted")).fields == ("topology.kind", "source")


def test_an_interrupted_trial_is_named(db: perfdb.Database, make: Make) -> None:
    db.record(make(value_us=None, status="interrupted"))
    assert "was interrupted" in explain(db, make()).reason


def test_a_hit_has_nothing_to_explain(db: perfdb.Database, make: Make) -> None:
    db.record(make())
    assert explain(db, make()) == perfdb.Miss("no field differs: trial 1 is an exact match")


def test_groups_whose_trials_were_deleted_by_hand_are_passed_over(db: perfdb.Database, make: Make) -> None:
    db.record_many([make(driver="590"), make(driver="600")])
    with db.write() as connection:
        connection.exec_driver_sql("DELETE FROM trial WHERE id = 1")
    assert [near.trial_id for near in explain(db, make()).nearest] == [2]
    with db.write() as connection:
        connection.exec_driver_sql("DELETE FROM trial")
    assert explain(db, make()).reason == "no exact match: nothing is stored for ag_gemm"


def test_an_unknown_digest_has_nothing_to_compare(db: perfdb.Database, make: Make) -> None:
    db.record(make())
    trial = make()
    miss = perfdb.explain_miss(db, "w9", trial.topology, trial.environment, trial.schedule)
    assert miss.reason == "no exact match: nothing is stored for workload w9"


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [("8x8", "8x8", 0), ("8x8", "16x4", 2), ("8x8", "8", math.inf), ("Mx8", "8x8", math.inf), ("0x8", "8x8", math.inf)],
)
def test_shapes_have_a_distance(one: str, other: str, distance: float) -> None:
    assert shape_distance(one, other) == distance
