"""The data flow of ragged plans: a segment that is missing, another's, or of another call is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from handmade import drop, edit
from support import routed

from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Plan, Ragged, Region, Step
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.verify import verify

GANG = Schedule(compute="generated", num_comm_blocks=2)


def dispatch() -> Plan:
    return lower(routed("dispatch", 3), GANG)


def combine() -> Plan:
    return lower(routed("combine", 3), GANG)


def number_of(plan: Plan, task: str, rank: int = 1) -> int:
    return next(n for n, _, _, step in plan.steps_of(rank) if isinstance(step, Ragged) and step.task == task)


def changed(plan: Plan, task: str, change: Callable[[Ragged], Ragged]) -> str:
    """The rule that a change of a task of rank 1 breaks, and why."""

    def rewrite(step: Step) -> list[Step]:
        assert isinstance(step, Ragged)
        return [change(step)]

    found = verify(edit(plan, 1, number_of(plan, task), rewrite), cache=None).counterexample
    return f"{found.rule}: {found.message}" if found else ""


def with_read(at: int, region: Callable[[Region], Region]) -> Callable[[Ragged], Ragged]:
    return lambda step: replace(step, reads=(*step.reads[:at], region(step.reads[at]), *step.reads[at + 1:]))


@pytest.mark.parametrize("task", ["route", "total", "send", "place"])
def test_a_dispatch_without_one_of_its_steps_is_refused(task: str) -> None:
    plan = dispatch()
    assert not verify(edit(plan, 1, number_of(plan, task), drop), cache=None).ok


@pytest.mark.parametrize("task", ["tally", "return", "route", "total", "weigh"])
def test_a_combine_without_one_of_its_steps_is_refused(task: str) -> None:
    plan = combine()
    assert not verify(edit(plan, 1, number_of(plan, task), drop), cache=None).ok


def test_a_segment_of_another_source_is_told() -> None:
    plan = dispatch()
    stride = plan.buffer("inbox").size // 3
    says = changed(plan, "place", with_read(2, lambda region: replace(region, offset=region.offset - stride)))
    assert says.startswith("data_flow: ")
    assert "send of rank 2 for rank 1" in says


def test_a_segment_that_is_filled_for_another_rank_is_told() -> None:
    assert "data_flow" in changed(dispatch(), "send", lambda step: replace(step, peer=0))


def test_segments_that_meet_are_a_race() -> None:
    plan = dispatch()
    stride = plan.buffer("inbox").size // 3
    says = changed(plan, "send", lambda step: replace(
        step, writes=(replace(step.writes[0], offset=step.writes[0].offset - stride),)))
    assert says.startswith(("race", "data_flow"))


def test_numbers_are_added_up_before_they_are_used_by_the_same_blocks() -> None:
    plan = dispatch()
    without = edit(plan, 1, number_of(plan, "total"), drop)
    found = verify(without, cache=None).counterexample
    assert found is not None
    assert "needs total before it" in found.message


def test_an_operand_of_a_peer_is_not_taken_for_the_own_one() -> None:
    plan = lower(routed("combine", 3, inputs="symmetric"), replace(GANG, direction="pull"))
    says = changed(plan, "weigh", with_read(3, lambda region: replace(region, rank=2)))
    assert says.startswith("data_flow: ")
