"""perfdb.comparing and perfdb.exploring: before and after with anchors; near workloads; data to train on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import perfdb
from perfdb.cli import app
from perfdb.comparing import compare
from perfdb.exploring import flattened, nearest_workloads, predictions, training

Make = Callable[..., perfdb.TrialRecord]


def two_drivers(db: perfdb.Database, make: Make, anchor: float, ours: float) -> None:
    """`cublas` and `old` are the same binaries on both sides, `new` was compiled again."""
    for driver, machine, software in (("580.65", 1.0, 1.0), ("590.1", anchor, ours)):
        for turn in (0.0, 0.1, -0.1):
            db.record(make("cublas", 120 * machine + turn, driver=driver, binary_digest="lib"))
            db.record(make("old", 110 * machine + turn, driver=driver, binary_digest="b1"))
            db.record(make("new", 100 * machine * software + turn, driver=driver, binary_digest=f"n{driver}"))


@pytest.mark.parametrize(
    ("anchor", "ours", "verdict"),
    [(1.0, 1.0, "unchanged"), (1.05, 1.0, "environment"), (1.0, 1.06, "software"), (1.05, 0.9, "both")],
)
def test_anchors_tell_the_machine_from_the_software(
    db: perfdb.Database, make: Make, anchor: float, ours: float, verdict: str
) -> None:
    two_drivers(db, make, anchor, ours)
    (row,) = compare(db, {"driver": "580"}, {"driver": "590"}).to_dict("records")
    assert row["verdict"] == verdict
    assert row["anchors"] == 2
    assert row["anchor_percent"] == pytest.approx(100 * (anchor - 1), abs=0.01)
    assert row["change_percent"] == pytest.approx(100 * (anchor * ours - 1), abs=0.01)
    assert row["residual_percent"] == pytest.approx(100 * (ours - 1), abs=0.01)
    assert row["environment_change"] == "driver 580.65 -> 590.1"


def test_without_an_anchor_nothing_is_attributed(db: perfdb.Database, make: Make) -> None:
    db.record_many([make("a", 100.0), make("a", 120.0, driver="590.1")])
    (row,) = compare(db, {"driver": "580"}, {"driver": "590"}).to_dict("records")
    assert (row["verdict"], row["anchors"]) == ("unattributed", 0)


def test_other_settings_of_the_machine_must_be_equal(db: perfdb.Database, make: Make) -> None:
    # Case D6: 700 W before and 500 W after is no answer to a question about drivers.
    db.record_many([make("a", 100.0), make("a", 140.0, driver="590.1", power_cap_w=500)])
    assert compare(db, {"driver": "580"}, {"driver": "590"}).empty
    (row,) = compare(db, {"power_cap_w": "700"}, {"power_cap_w": "500"}).to_dict("records")
    assert row["change_percent"] == pytest.approx(40)
    assert "power_cap_w 700 -> 500" in row["environment_change"]
    assert compare(db, {"driver": "58"}, {"driver": "590"}).empty
    assert compare(db, {"driver": "580"}, {"driver": "590"}, source="predicted").empty
    with pytest.raises(perfdb.RecordError, match="a side is of"):
        compare(db, {"colour": "red"}, {"driver": "590"})


def test_commits_are_compared_by_their_sessions(db: perfdb.Database, make: Make) -> None:
    for commit, value in (("abc", 100.0), ("def", 90.0), ("other", 1.0)):
        session = db.start_session(revision=commit)
        db.record_many([make("a", value, session_id=session), make("b", 120.0, session_id=session, binary_digest="x")])
    (row,) = compare(db, {"commit": "abc"}, {"commit": "def"}).to_dict("records")
    assert (row["before_us"], row["after_us"], row["verdict"]) == (100.0, 90.0, "software")


def test_near_workloads_come_with_their_own_times(db: perfdb.Database, make: Make) -> None:
    db.record_many([make("s1", 10.0, shape="64x64x64"), make("s1", 20.0, shape="128x64x64"), make("s1", shape="8x8")])
    db.record(make("s2", 15.0, shape="128x64x64", power_cap_w=500))
    frame = nearest_workloads(db, op="ag_gemm", shape="128x64x64", dtype="bfloat16", world=4)
    assert list(frame[["distance", "shape", "power_cap_w", "best_us"]].itertuples(index=False, name=None)) == [
        (0.0, "128x64x64", 500, 15.0),
        (0.0, "128x64x64", 700, 20.0),
        (1.0, "64x64x64", 700, 10.0),
    ]
    assert list(nearest_workloads(db, op="ag_gemm", shape="96x64x64", world=8, limit=1)["shape"].unique()) == [
        "128x64x64"
    ]
    assert nearest_workloads(db, op="none", shape="8x8").empty


def test_training_rows_hold_knobs_sizes_and_failures(db: perfdb.Database, make: Make) -> None:
    trial = make("s1", 10.0, samples_us=((9.0, 11.0, 10.0), (8.0, 10.0, 10.0)))
    document = json.dumps({"depth": 4, "tile": {"m": 64}, "order": ["a"]})
    db.record(replace(trial, schedule=replace(trial.schedule, document=document)))
    db.record_many(
        [make("s2", None, status="timeout"), make("s3", source="predicted"), make("s4", shape="8x8", gpu="H100")]
    )
    frame = training(db, gpu="H200")
    assert list(frame["status"]) == ["ok", "timeout"]
    first = frame.iloc[0]
    assert (first["knob.depth"], first["knob.tile.m"], first["knob.order"]) == (4, 64, '["a"]')
    assert (first["size.0"], first["size.2"], first["samples"]) == (4096, 8192, 3)
    assert first["spread"] == pytest.approx(0.1)
    assert set(training(db, op="ag_gemm", gpu="H100")["shape"]) == {"8x8"}
    assert training(db, op="none").empty
    assert flattened({"b": 1, "a": {"c": None}}) == [("a.c", None), ("b", 1)]


def test_predictions_stand_beside_measurements(db: perfdb.Database, make: Make) -> None:
    trial = make("s1", 100.0)
    db.record(trial)
    key = (trial.workload, trial.topology, trial.schedule)
    db.record_prediction(perfdb.PredictionRecord(*key, "analytic", 90.0, low_us=80.0, high_us=95.0))
    db.record_prediction(perfdb.PredictionRecord(*key, "other", 110.0))
    db.record_prediction(perfdb.PredictionRecord(*key[:2], perfdb.ScheduleKey("none"), "analytic", 1.0))
    frame = predictions(db)
    assert list(frame["error"]) == pytest.approx([-0.1, 0.1])
    assert not frame["inside"].iloc[0]
    assert frame["inside"].isna().tolist() == [False, True]
    assert list(predictions(db, model="other")["predicted_us"]) == [110.0]


def test_the_commands_speak_json_and_csv(db: perfdb.Database, make: Make, url: str) -> None:
    two_drivers(db, make, 1.05, 1.0)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--db", url])
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    sides = ["--before", "driver=580", "--after", "driver=590"]
    (row,) = json.loads(run("compare", *sides, "--json"))
    assert row["verdict"] == "environment"
    assert run("compare", *sides, "--csv").startswith("op,shape,")
    assert "environment" in run("compare", *sides)
    near = json.loads(run("nearest", "--op", "ag_gemm", "--shape", "4096x10240x8192", "--json"))
    assert near[0]["distance"] == 0
    assert len(json.loads(run("training", "--json"))) == 6
    assert run("training", "--csv").startswith("trial_id,source,status,value_us")
    wrong = CliRunner().invoke(app, ["compare", "--before", "driver", "--after", "driver=590", "--db", url])
    assert wrong.exit_code == 2
    nothing = CliRunner().invoke(app, ["compare", "--before", "driver=1", "--after", "driver=590", "--db", url])
    assert nothing.exit_code == 1
