"""tilescale.runtime.measure"""

from __future__ import annotations

import math

import pytest

from tilescale import canon
from tilescale.errors import RunnerError
from tilescale.runtime.measure import SOURCES, STATUSES, Measurement
from tilescale.schedules.schedule import Schedule


def test_value_is_the_median_of_the_slowest_rank() -> None:
    found = Measurement(Schedule(), "ok", "measured", ((1.0, 9.0, 3.0), (2.0, 4.0, 8.0)))
    assert found.calls_us == (2.0, 9.0, 8.0)
    assert found.value_us == 8.0


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "ok"])
def test_a_failure_has_no_value(status: str) -> None:
    found = Measurement(Schedule(), status, "measured", ((1.0,),), "why")
    assert not found.ok
    assert math.isnan(found.value_us)


def test_survives_canonical_json_and_can_be_hashed() -> None:
    found = Measurement(
        Schedule(chunk_rows=7), "ok", "replayed", ((1.5,), (2.25,)), "m", (("gpu", "H200"),), "b", "t"
    )
    again = canon.loads(Measurement, canon.dumps(found))
    assert again == found
    assert hash(again) == hash(found)


@pytest.mark.parametrize(
    ("status", "source", "samples", "rule"),
    [
        ("fine", "measured", ((1.0,),), "status is one of"),
        ("ok", "guessed", ((1.0,),), "source is one of"),
        ("ok", "measured", ((1.0,), (1.0, 2.0)), "as many samples"),
        ("ok", "measured", (), "has samples"),
        ("ok", "measured", ((), ()), "has samples"),
        ("ok", "measured", ((0.0,),), "positive"),
        ("ok", "measured", ((math.nan,),), "positive"),
        ("timeout", "measured", ((math.inf,),), "positive"),
    ],
)
def test_what_cannot_be_is_refused(status: str, source: str, samples: tuple[tuple[float, ...], ...], rule: str) -> None:
    with pytest.raises(RunnerError, match=rule):
        Measurement(Schedule(), status, source, samples)


def test_sources_are_those_of_the_design() -> None:
    assert set(SOURCES) == {
        "measured", "measured_scale_model", "measured_shared_gpu", "replayed", "predicted", "emulated",
    }
