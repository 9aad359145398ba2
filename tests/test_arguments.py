"""What is no spec, schedule, runner, database or path is said with the rule, the value and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import ag_gemm

import perfdb
import tilescale as ts
from tilescale.errors import BundleError, EmulationError, RunnerError, ScheduleError, SpecError, TilescaleError

SPEC: Any = ag_gemm((512, 512, 256), ranks=2)
ONE: Any = ts.Schedule()
ANY: Any = ts

WRONG: list[tuple[Callable[[], object], type[TilescaleError], str]] = [
    (lambda: ANY.tune(None), SpecError, "got: None"),
    (lambda: ANY.tune("ag_gemm"), SpecError, "a str, 'ag_gemm'"),
    (lambda: ANY.tune({"a": None}), SpecError, "got: None"),
    (lambda: ANY.tune({}), SpecError, "no specs"),
    (lambda: ANY.tune(SPEC, runner="gpu"), RunnerError, "without source, measure, close"),
    (lambda: ANY.tune(SPEC, db=5, runner=Runner()), RunnerError, "a int, 5"),
    (lambda: ANY.tune(SPEC, spaces=5), RunnerError, "spaces is a path"),
    (lambda: ANY.predict(None, ONE), SpecError, "got: None"),
    (lambda: ANY.predict(SPEC, None), ScheduleError, "got: None"),
    (lambda: ANY.emulate(None, ONE), SpecError, "got: None"),
    (lambda: ANY.emulate(SPEC, "x"), ScheduleError, "a str, 'x'"),
    (lambda: ANY.emulate(SPEC, ONE, seed="0"), EmulationError, "seed is"),
    (lambda: ANY.emulate(SPEC, ONE, adversary="lasy"), EmulationError, "did you mean 'lazy'?"),
    (lambda: ANY.load(None), BundleError, "a bundle is a path"),
    (lambda: ANY.load(5), BundleError, "a int, 5"),
]


class Runner:
    source = "predicted"

    def measure(self, spec: object, schedules: object) -> list[object]:
        raise AssertionError("nothing is measured")

    def close(self) -> None: ...


@pytest.mark.parametrize(("call", "error", "says"), WRONG)
def test_wrong_values_are_said(call: Callable[[], object], error: type[TilescaleError], says: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert says in str(caught.value)
    assert caught.value.remedy


def test_what_the_database_refuses_is_a_tilescale_error_of_its_own_class_too(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("no database, and longer than a header of one: " * 10)
    with pytest.raises(TilescaleError) as caught:
        ANY.tune(SPEC, db=path, runner=Runner())
    assert isinstance(caught.value, perfdb.NotADatabase)
    assert str(path) in str(caught.value)
    assert caught.value.remedy
