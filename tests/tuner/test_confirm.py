"""tilescale.tuner.confirm: the provider of perfdb's entry point."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

import pytest
from tuner_support import SPEC, small_space

from perfdb.confirming import Request, Side
from tilescale import canon
from tilescale.errors import RunnerError
from tilescale.schedules.schedule import Schedule
from tilescale.tuner.confirm import confirm
from tilescale.tuner.runners import Choice

OLD, NEW = small_space().schedules[:2]


def side(schedule: Schedule) -> Side:
    return Side(1, 100.0, schedule.digest, canon.dumps(schedule), SPEC.digest, canon.dumps(SPEC),
                canon.dumps(SPEC.topology), "", "", "")


class Racer:
    source = "measured_scale_model"

    def __init__(self) -> None:
        self.closed = False

    def race(self, spec: Any, schedules: Any, rounds: int) -> list[dict[str, Any]]:
        assert spec == SPEC
        return [{OLD.digest: ((100.0, 104.0), (101.0, 90.0)), NEW.digest: ((120.0,), (110.0,))} for _ in range(rounds)]

    def close(self) -> None:
        self.closed = True


def test_both_sides_are_raced_and_pairs_come_back_old_first() -> None:
    racer: Any = Racer()
    assert confirm(Request(side(OLD), side(NEW), 3), lambda spec: Choice(racer, "")) == [(102.5, 120.0)] * 3
    assert racer.closed


def test_one_schedule_on_both_sides_is_no_change_that_can_be_measured_again() -> None:
    with pytest.raises(RunnerError, match="perfdb compare"):
        confirm(Request(side(OLD), side(replace(OLD)), 3), lambda spec: Choice(Racer(), ""))  # type: ignore[arg-type]


def test_the_package_offers_it_to_perfdb() -> None:
    (found,) = [point for point in entry_points(group="perfdb.confirm") if point.name == "tilescale"]
    assert found.load() is confirm
