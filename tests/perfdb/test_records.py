"""perfdb.records: values are checked when made, and the environment's digest holds what it must and no more."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

import perfdb
from perfdb.records import ENVIRONMENT_FIELDS, normal_gpu

Make = Callable[..., perfdb.TrialRecord]


@pytest.mark.parametrize("field", ENVIRONMENT_FIELDS)
def test_every_environment_field_is_part_of_its_digest(environment: perfdb.EnvironmentKey, field: str) -> None:
    changed = {"power_cap_w": 500, "gpu_count": 8}.get(field, "other")
    assert replace(environment, **{field: changed}).digest != environment.digest


def test_observed_clocks_and_fractions_of_a_watt_make_no_new_machine(environment: perfdb.EnvironmentKey) -> None:
    # Case D6: 1 MHz of jitter goes to the document or to a trial's conditions.
    jittered = replace(environment, document='{"sm_clock_mhz": 1979}', power_cap_w=700.004)
    assert jittered.digest == environment.digest
    assert jittered.power_cap_w == 700


def test_a_gpu_has_one_spelling_and_models_stay_apart() -> None:
    assert normal_gpu("NVIDIA H200_NVL") == normal_gpu("h200-nvl") == "H200 NVL"
    assert len({normal_gpu(name) for name in ("H20", "H200", "H200 NVL", "H100", "NVIDIA H100 80GB HBM3")}) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "guessed"}, "source must be one of measured"),
        ({"status": "good"}, "status must be one of ok"),
        ({"value_us": None, "status": "ok"}, "finite value_us"),
        ({"value_us": math.inf}, "finite value_us"),
        ({"value_us": -1.0}, "finite value_us"),
        ({"status": "timeout"}, "has no value_us"),
        ({"samples_us": ((1.0,),) * 5}, "one row a rank"),
        ({"recorded_at": datetime(2026, 1, 1)}, "time zone"),
        ({"topology": perfdb.TopologyKey("t8", "8xH200", "real", 8)}, "same world size"),
    ],
)
def test_a_record_that_cannot_be_true_is_refused(make: Make, changes: dict[str, object], message: str) -> None:
    with pytest.raises(perfdb.RecordError, match=message):
        replace(make(), **changes)


def test_a_failed_trial_may_say_nan(make: Make) -> None:
    assert replace(make(value_us=None), value_us=math.nan).value_us is None


def test_errors_survive_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(perfdb.SchemaTooNew("rule", "found", "remedy")))
    assert type(error) is perfdb.SchemaTooNew
    assert str(error) == "rule; got: found; remedy"


def test_keys_are_hashable(workload: perfdb.WorkloadKey) -> None:
    assert len({workload, replace(workload), replace(workload, digest="w2")}) == 2


@pytest.mark.parametrize(
    ("make_key", "said"),
    [
        (lambda: perfdb.ScheduleKey("d" * 65), "a digest has at most 64 characters"),
        (lambda: perfdb.ScheduleKey("d", "la\0bel"), "label is text without NUL"),
        (lambda: perfdb.ScheduleKey("d", "x", '{"a":"\udcff"}'), "document is text without NUL or half characters"),
        (lambda: perfdb.WorkloadKey("w", "op", "1x2", "int8", 2**31), "world is from 1 to 2147483647"),
        (lambda: perfdb.WorkloadKey("w", "op", "1x2", "int8", 2, flops=2**63), "flops is from 0"),
        (lambda: perfdb.WorkloadKey("w", "op", "1x2", "int8", 2.5), "world is a whole number"),
        (lambda: perfdb.EnvironmentKey("H200", "sm_90a", 2**40), "power_cap_w is from 0"),
        (lambda: perfdb.EnvironmentKey("H200", "sm_90a", gpu_count=-1), "gpu_count is from 0"),
    ],
)
def test_keys_hold_what_every_engine_can_store(make_key: Callable[[], object], said: str) -> None:
    with pytest.raises(perfdb.RecordError, match=said):
        make_key()


def test_numbers_of_numpy_are_stored_as_numbers(db: perfdb.Database, make: Make) -> None:
    trial = make(value_us=np.float64(3.0), samples_us=(tuple(np.arange(1.0, 3.0)),))
    key = replace(trial.workload, digest="w7", world=np.int64(4), flops=np.int64(7))
    assert type(key.world) is int
    db.record(replace(trial, workload=key))
    assert list(perfdb.best(db)["value_us"]) == [3.0]
    assert db.rows("SELECT world, flops FROM workload") == [(4, 7)]


def test_a_message_is_kept_whatever_it_is_made_of(db: perfdb.Database, make: Make) -> None:
    db.record(make("s1", None, message="ptxas\0 died\udc80 \N{GREEK SMALL LETTER MU}s"))
    db.record_many([make(f"s{n}", None, message="a\0b") for n in range(20)])
    assert perfdb.trials(db)["message"].tolist()[:2] == ["ptxas\ufffd died\ufffd\ufffd\ufffd \u03bcs", "a\ufffdb"]


@pytest.mark.parametrize("zone", [5, -5])
def test_a_time_that_no_database_holds_is_refused(make: Make, zone: int) -> None:
    year = 1 if zone > 0 else 9999
    month, day, hour = (1, 1, 0) if zone > 0 else (12, 31, 23)
    with pytest.raises(perfdb.RecordError, match="years 1 to 9999"):
        make(recorded_at=datetime(year, month, day, hour, tzinfo=timezone(timedelta(hours=zone))))


def test_a_question_with_a_value_that_fits_no_column_is_a_record_error(db: perfdb.Database, make: Make) -> None:
    trial = make()
    for ask in (
        lambda: perfdb.samples(db, 2**70),
        lambda: db.start_session(seed=2**80),
        lambda: db.record(replace(trial, session_id=2**70)),
        lambda: perfdb.best(db, op="a\udc80b"),
    ):
        with pytest.raises(perfdb.RecordError, match="a value must fit its column"):
            ask()


def test_a_document_that_is_no_json_leaves_training_its_other_columns(db: perfdb.Database, make: Make) -> None:
    db.record(replace(make(), schedule=perfdb.ScheduleKey("s", "x", "not json")))
    assert list(perfdb.training(db)["value_us"]) == [100.0]
