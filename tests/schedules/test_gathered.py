"""ag_gemm that returns what it gathers: proofs on 2 to 8 ranks, and what the verifier refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import ag_gemm, ag_gemm_of_several

from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Copy, Plan, Region, Step
from tilescale.schedules.proof_cache import ProofCache
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec

FUSED = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4, block_m=64, block_n=128,
                 block_k=64, num_stages=3, raster_group=8)


def small(ranks: int, inputs: str = "ordinary") -> Spec:
    return ag_gemm((128 * ranks, 64 * ranks, 128), ranks, inputs=inputs, gathered=True)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("inputs", ["ordinary", "symmetric"])
def test_every_structure_is_proved(inputs: str, ranks: int) -> None:
    spec, cache = small(ranks, inputs), ProofCache()
    found = Space(spec, {"block_m": [64], "block_n": [128], "num_stages": [3], "num_comm_blocks": [4]}).schedules
    assert {schedule.overlap for schedule in found} == {"none", "chunked", "fused"}
    for schedule in found:
        proof = verify(lower(spec, schedule), cache=cache)
        assert proof.ok, f"{schedule.label}: {proof}"


def test_the_spaces_with_and_without_it_are_the_same() -> None:
    assert Space(small(4)).schedules == Space(ag_gemm((512, 256, 128), 4)).schedules


def test_its_plan_holds_one_more_output_and_no_other_kernel() -> None:
    from tilescale.codegen.emit import emit

    kept, usual = small(3), ag_gemm((384, 192, 128), 3)
    names = [{buffer.name for buffer in lower(spec, FUSED).buffers} for spec in (kept, usual)]
    assert names[0] - names[1] == {"gathered"}
    assert emit(kept, FUSED).kernels == emit(usual, FUSED).kernels


def test_several_b_are_the_plan_and_the_program_of_one() -> None:
    from tilescale.codegen.emit import emit

    several, one = ag_gemm_of_several((384, 128), (96, 96), 3), ag_gemm((384, 192, 128), 3)
    assert several.digest != one.digest
    assert lower(several, FUSED) == lower(one, FUSED)
    assert emit(several, FUSED) == emit(one, FUSED)


def changed(plan: Plan, number: int, step: Step | None) -> Plan:
    """The last rank's copy to the output, of this number, in another form or without it."""
    def kept(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        nonlocal number
        found: list[Step] = []
        for each in steps:
            hit = isinstance(each, Copy) and each.dst.buffer == "gathered"
            number -= hit
            found += [each] if not hit or number != -1 else [] if step is None else [step]
        return tuple(found)

    launches = tuple(replace(launch, roles=tuple(replace(role, steps=kept(role.steps)) for role in launch.roles))
                     for launch in plan.ranks[-1])
    return replace(plan, ranks=(*plan.ranks[:-1], launches))


def test_what_it_does_not_hold_is_found() -> None:
    plan = lower(small(3), FUSED)
    copies = [step for _, _, _, step in plan.steps_of(2) if isinstance(step, Copy) and step.dst.buffer == "gathered"]
    assert len(copies) == 1 + 2 * 2
    missing = verify(changed(plan, 1, None), cache=None).counterexample
    assert missing is not None
    assert missing.buffer == "gathered"
    other = replace(copies[1], src=replace(copies[1].src, offset=copies[2].src.offset))
    assert other != copies[1]
    exchanged = verify(changed(plan, 1, other), cache=None).counterexample
    assert exchanged is not None
    assert exchanged.rule in ("data_flow", "race")


def test_a_goal_that_keeps_in_no_output_is_refused() -> None:
    plan = lower(small(3), FUSED)
    for name in ("gather", "out"):
        found = verify(replace(plan, goal=replace(plan.goal, keeps=name)), cache=None).counterexample
        assert found is not None
        assert found.rule == "structure"
    assert isinstance(plan.ranks[0][0].roles[0].steps[0], Copy)
    assert isinstance(plan.ranks[0][0].roles[0].steps[0].src, Region)
