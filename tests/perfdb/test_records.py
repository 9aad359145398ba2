"""perfdb.records: values are checked when made, and the environment's digest holds what it must and no more."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

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
