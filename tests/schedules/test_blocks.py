"""Block matrices on a 2-D mesh: proofs, which ranks send what to whom, and what the verifier refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import in_blocks

from tilescale.errors import ScheduleError, SpecError
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Contract, Copy, Plan, Step
from tilescale.schedules.proof_cache import ProofCache
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.schedules.verify import verify
from tilescale.spec.op import matmul
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import Block

FUSED = Schedule(overlap="fused", compute="generated", depth=2, num_comm_blocks=4, block_m=64, block_n=128, block_k=64,
                 num_stages=3, raster_group=8)
RING = replace(FUSED, algorithm="ring")
LARGE = Topology.shared_gpu(ranks=9)


@pytest.mark.parametrize(("ranks", "algorithm"), [(4, None), (8, None), (4, "cannon"), (9, None), (9, "cannon")])
def test_every_structure_is_proved(ranks: int, algorithm: str | None) -> None:
    spec, cache = in_blocks(ranks, algorithm=algorithm, on=LARGE if ranks == 9 else None), ProofCache()
    found = Space(spec, {"block_m": [64], "block_n": [128], "num_stages": [3], "num_comm_blocks": [2, 4]}).schedules
    assert {schedule.overlap for schedule in found} == {"none", "fused"}
    assert {schedule.transport for schedule in found} == {"peer_copy", "tma"}
    assert {schedule.algorithm for schedule in found} == {"ring" if algorithm else "direct"}
    assert {(schedule.overlap, schedule.protocol) for schedule in found} == {
        ("none", "simple"), ("fused", "simple"), ("fused", "credit")}
    for schedule in found:
        proof = verify(lower(spec, schedule), cache=cache)
        assert proof.ok, f"{schedule.label}: {proof}"


def targets(plan: Plan, rank: int) -> dict[str, set[int]]:
    """Ranks that a rank puts blocks of a ("gather") and of b ("column") to."""
    found: dict[str, set[int]] = {"gather": set(), "column": set()}
    for _, _, _, step in plan.steps_of(rank):
        if isinstance(step, Copy) and step.dst.rank != rank:
            found[step.dst.buffer].add(step.dst.rank)
    return found


def test_blocks_of_a_stay_in_their_row_and_blocks_of_b_in_their_column() -> None:
    assert targets(lower(in_blocks(8), FUSED), 5) == {"gather": {4, 6, 7}, "column": {1}}
    assert targets(lower(in_blocks(9, algorithm="cannon", on=LARGE), RING), 4) == {"gather": {5}, "column": {7}}


def test_a_rank_begins_with_the_panel_it_holds_and_takes_every_index_once() -> None:
    plan = lower(in_blocks(8), FUSED)
    for rank in range(8):
        found = [step for _, _, _, step in plan.steps_of(rank) if isinstance(step, Contract)]
        assert found[0].at == rank % 4 * 88
        assert sorted(step.at for step in found) == [0, 88, 176, 264]
        assert [step.first for step in found] == [True, False, False, False]
        assert [step.last for step in found] == [False, False, False, True]


def with_step(plan: Plan, number: int, **values: Any) -> Plan:
    """The plan with a panel of the last rank changed."""
    launch = plan.ranks[-1][0]
    role = launch.roles[-1]
    at = [i for i, step in enumerate(role.steps) if isinstance(step, Contract)][number]
    steps: list[Step] = [*role.steps[:at], replace(role.steps[at], **values), *role.steps[at + 1 :]]  # type: ignore[arg-type]
    changed = replace(launch, roles=(*launch.roles[:-1], replace(role, steps=tuple(steps))))
    return replace(plan, ranks=(*plan.ranks[:-1], (changed,)))


def test_panels_that_do_not_meet_are_refused() -> None:
    plan = lower(in_blocks(4), FUSED)
    panels = [step for _, _, _, step in plan.steps_of(3) if isinstance(step, Contract)]
    for values in ({"a": panels[0].a}, {"b": panels[0].b}, {"at": panels[0].at}):
        found = verify(with_step(plan, 1, **values), cache=None).counterexample
        assert found is not None
        assert found.rule == "data_flow"
        assert "must multiply bytes from" in str(found)
    for values, rule in (({"k": 64}, "gemm_shape"), ({"at": 44}, "gemm_shape"), ({"gathered": 0}, "structure")):
        found = verify(with_step(plan, 1, **values), cache=None).counterexample
        assert found is not None
        assert found.rule == rule
    mesh = replace(plan, goal=replace(plan.goal, mesh=(1, 4)))
    assert not verify(mesh, cache=None).ok


@pytest.mark.parametrize("wrong", [{"direction": "pull"}, {"overlap": "chunked"}, {"chunk_rows": 64},
                                   {"transport": "copy_engine", "num_comm_blocks": 0}, {"algorithm": "ring"}])
def test_what_cannot_be_lowered_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError):
        lower(in_blocks(4), replace(FUSED, **wrong))


def test_other_meshes_and_orders_have_no_kernels_and_say_what_does() -> None:
    on = Topology.scale_model("8xH200-NVSwitch", ranks=8).with_mesh({"row": 4, "col": 2})
    wide = Tensor((256, 256), "bfloat16", Block)
    for spec in (matmul(wide, wide, Block, on), in_blocks(6),
                 matmul(wide, Tensor((256, 256), "bfloat16", Block, "col"), Block, Topology.shared_gpu(ranks=4))):
        with pytest.raises(SpecError, match="ag_gemm"):
            spec.require_kernels()
