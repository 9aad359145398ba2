"""Sums whose epilogue hands out more than its result: proofs on 2 to 8 ranks, and what the verifier refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support import gemm_rs, reduction

from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Plan, Step, SumAside
from tilescale.schedules.proof_cache import ProofCache
from tilescale.schedules.protocol import protocol_digest
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space, space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec
from tilescale.spec.views import FullRow

BOTH, ALONE = ("add_rmsnorm",), ("residual_rmsnorm",)
COPY = Schedule(overlap="none", compute="generated", num_comm_blocks=2)
FUSED = Schedule(overlap="fused", compute="generated", algorithm="two_shot", chunk_rows=64, depth=2, num_comm_blocks=4,
                 block_m=64, block_n=128, block_k=64, num_stages=3, raster_group=8)


def specs(ranks: int, then: tuple[str, ...] = BOTH) -> dict[str, Spec]:
    """Even, uneven and empty shards."""
    return {
        "all_reduce": reduction((128 * ranks, 24), ranks, then=then),
        "all_reduce of few rows": reduction((1, 24), ranks, then=then),
        "reduce_scatter": reduction((128 * ranks - 3, 24), ranks, to=FullRow, then=then),
        "gemm_ar": gemm_rs((128 * ranks, 256, 64 * ranks), ranks, out="Replicate", then=then),
        "gemm_rs": gemm_rs((128 * ranks + 5, 256, 64 * ranks), ranks, then=then),
    }


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", specs(2))
def test_every_structure_is_proved(name: str, ranks: int) -> None:
    spec, cache = specs(ranks)[name], ProofCache()
    knobs = {"num_comm_blocks": [4], "depth": [1, 2]}
    if spec.operation.compute == "gemm":
        knobs |= {"block_m": [64], "block_n": [128], "num_stages": [3], "raster_group": [8]}
    found = Space(spec, knobs).schedules
    assert len(found) > 5
    for schedule in found:
        proof = verify(lower(spec, schedule), cache=cache)
        assert proof.ok, f"{schedule.label}: {proof}"


@pytest.mark.parametrize("name", specs(2))
def test_the_spaces_with_and_without_it_are_the_same(name: str) -> None:
    assert space(specs(4)[name]).schedules == space(specs(4, ALONE)[name]).schedules


def test_its_plan_holds_an_output_more_and_what_owners_hand_out() -> None:
    both, alone = (lower(specs(3, then)["all_reduce"], replace(COPY, algorithm="two_shot")) for then in (BOTH, ALONE))
    names = [{buffer.name for buffer in plan.buffers} for plan in (both, alone)]
    assert names[0] - names[1] == {"added", "aside"}
    assert protocol_digest(both) != protocol_digest(alone)
    own = lower(specs(3)["all_reduce"], replace(COPY, algorithm="one_shot"))
    assert "aside" not in {buffer.name for buffer in own.buffers}
    (step,) = {step for _, _, _, step in own.steps_of(1) if isinstance(step, SumAside)}
    assert [region.buffer for region in step.targets] == ["out", "added"]


def changed(plan: Plan, change: Callable[[Step], Step]) -> Plan:
    """The plan with the last rank's steps changed."""
    launches = tuple(replace(launch, roles=tuple(
        replace(role, steps=tuple(map(change, role.steps))) for role in launch.roles)) for launch in plan.ranks[-1])
    return replace(plan, ranks=(*plan.ranks[:-1], launches))


def exchanged(step: Step) -> Step:
    return replace(step, dst=step.aside[0], aside=(step.dst,)) if isinstance(step, SumAside) else step


def twice(step: Step) -> Step:
    return replace(step, aside=(step.dst,)) if isinstance(step, SumAside) else step


def not_applied(step: Step) -> Step:
    return replace(step, then=()) if isinstance(step, SumAside) else step


@pytest.mark.parametrize(("schedule", "name"), [
    (FUSED, "gemm_ar"), (replace(FUSED, algorithm="direct"), "gemm_rs"),
    (replace(COPY, algorithm="one_shot"), "all_reduce"), (replace(COPY, algorithm="two_shot"), "all_reduce")])
@pytest.mark.parametrize(("change", "rule"), [(exchanged, "data_flow"), (twice, "aside"), (not_applied, "aside")])
def test_what_is_not_handed_out_as_it_should_be_is_found(
        schedule: Schedule, name: str, change: Callable[[Step], Step], rule: str) -> None:
    plan = lower(specs(3)[name], schedule)
    assert verify(plan, cache=None).ok
    found = verify(changed(plan, change), cache=None).counterexample
    assert found is not None
    assert found.rule == rule


def test_a_goal_that_names_no_such_output_is_refused() -> None:
    plan = lower(specs(3)["all_reduce"], replace(COPY, algorithm="two_shot"))
    for name in ("out", "aside", "nothing"):
        found = verify(replace(plan, goal=replace(plan.goal, aside=name)), cache=None).counterexample
        assert found is not None
        assert found.rule == "structure"
    found = verify(replace(plan, goal=replace(plan.goal, aside="")), cache=None).counterexample
    assert found is not None
    assert found.rule == "aside"
