"""Plans that sum, and waits by parity: right ones are proved, each fault is refused by the rule that names it."""

from __future__ import annotations

import pytest
from handmade import drop, edit, find
from reduce_plans import gemm_rs, reduce_scatter, stages

from tilescale import canon
from tilescale.schedules.plan import Clear, Copy, Plan, Reduce, Signal
from tilescale.schedules.verify import verify

RIGHT = {
    "gemm_rs": gemm_rs(4, 2, 4), "gemm_rs of one rank": gemm_rs(1, 2, 2), "reduce_scatter": reduce_scatter(4),
    "all_reduce": reduce_scatter(3, replicate=True), "stages": stages(), "deep stages": stages(2, 3, 6),
}


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_right_sums_are_proved(name: str) -> None:
    proof = verify(RIGHT[name], cache=None)
    assert proof.ok, str(proof)


def rule_of(plan: Plan) -> str:
    found = verify(plan, cache=None).counterexample
    assert found is not None
    return found.rule


def test_a_part_that_is_missing_or_counted_twice() -> None:
    plan = reduce_scatter(3)
    number = find(plan, 1, Reduce)
    assert rule_of(edit(plan, 1, number, drop)) == "data_flow"
    assert rule_of(edit(plan, 1, number, lambda step: [step, step])) == "data_flow"


def test_a_sum_that_is_not_cleared_is_summed_into_again() -> None:
    plan = reduce_scatter(3)
    found = verify(edit(plan, 0, find(plan, 0, Clear), drop), cache=None).counterexample
    assert found is not None
    assert "must add to zeros or to other parts" in found.message


def test_a_copy_does_not_commute() -> None:
    plan = reduce_scatter(3)
    change = edit(plan, 0, find(plan, 0, Reduce), lambda step: [Copy(step.src, step.dst)])  # type: ignore[union-attr]
    assert rule_of(change) == "race"


def test_a_fast_rank_stands_in_for_a_slow_one() -> None:
    assert rule_of(reduce_scatter(4, early=True)) == "race"


def test_hearing_of_tiles_before_they_are_written() -> None:
    plan = gemm_rs(2, 2, 2)
    role = next(launch.roles[1] for launch in plan.ranks[0])
    assert [type(step) for step in role.steps[3:5]] == [Reduce, Signal]
    number = find(plan, 0, Reduce)
    steps = {n: step for n, _, _, step in plan.steps_of(0)}
    swapped = edit(edit(plan, 0, number, lambda _: [steps[number + 1]]), 0, number + 1, lambda _: [steps[number]])
    assert verify(swapped, cache=None).ok  # the last tile of the block still follows
    last = max(n for n, step in steps.items() if isinstance(step, Reduce))
    swapped = edit(edit(plan, 0, last, lambda _: [steps[last + 1]]), 0, last + 1, lambda _: [steps[last]])
    assert rule_of(swapped) == "race"


def test_a_loader_that_laps_its_storer() -> None:
    found = verify(stages(drained=False), cache=None).counterexample
    assert found is not None
    assert found.rule == "phase"
    assert "would miss its phase" in found.message


def test_digests_tell_sums_from_copies() -> None:
    plan = reduce_scatter(2)
    assert canon.decode(Plan, canon.encode(plan)) == plan
    copied = edit(plan, 0, 0, lambda step: [Copy(step.src, step.dst)])  # type: ignore[union-attr]
    assert copied.digest != plan.digest
