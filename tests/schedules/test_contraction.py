"""Products whose contraction is gathered: proofs on 2 to 8 ranks, what the verifier refuses, and what the space holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support import CONTRACTIONS, contraction

from tilescale.costmodel.analytic import predict
from tilescale.errors import ScheduleError
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Contract, Launch, Plan, Role, Step, Wait
from tilescale.schedules.proof_cache import ProofCache
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space, space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec

FUSED = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4, block_m=64, block_n=128,
                 block_k=64, num_stages=3, raster_group=8)
SMALL = {"block_m": [64], "block_n": [128], "num_stages": [3]}


def small(name: str, ranks: int, inputs: str = "ordinary") -> Spec:
    return contraction(name, (64 * ranks, 64 * ranks, 192 * ranks), ranks, inputs=inputs)


def segments(plan: Plan, rank: int) -> list[Contract]:
    return [step for _, _, _, step in plan.steps_of(rank) if isinstance(step, Contract)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("inputs", ["ordinary", "symmetric"])
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_every_structure_is_proved(name: str, inputs: str, ranks: int) -> None:
    spec, cache, seen = small(name, ranks, inputs), ProofCache(), set()
    for schedule in Space(spec, {**SMALL, "num_comm_blocks": [4]}):
        proof = verify(lower(spec, schedule), cache=cache)
        assert proof.ok, f"{schedule.label}: {proof}"
        seen.add((schedule.transport, schedule.direction, schedule.overlap, schedule.compute))
    assert {overlap for _, _, overlap, _ in seen} == {"none", "chunked", "fused"}
    assert {(transport, direction) for transport, direction, *_ in seen} == {
        (transport, direction) for transport in ("peer_copy", "tma", "copy_engine") for direction in ("push", "pull")}
    # What does not move in rows is no matrix when it has arrived, and a library call takes matrices.
    assert any(compute == "library" for *_, compute in seen) == (name in ("weights", "gradients"))


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_a_product_takes_every_index_once_its_own_first(name: str) -> None:
    spec = small(name, 4)
    whole = name in ("weights col", "gradients row")
    plan = lower(spec, replace(FUSED, chunk_rows=256 if whole else 64, depth=1))
    for rank in range(4):
        found = segments(plan, rank)
        assert found[0].at == rank * 192
        assert found[0].k == 192
        taken = sorted((step.at, step.k) for step in found)
        assert [at for at, _ in taken] == [sum(k for _, k in taken[:i]) for i in range(len(taken))]
        assert sum(k for _, k in taken) == 4 * 192
        assert [step.first for step in found] == [True] + [False] * (len(found) - 1)
        assert [step.last for step in found] == [False] * (len(found) - 1) + [True]
        assert len(found) == 4 if whole else 1 + 3 * 3


def with_steps(plan: Plan, change: Callable[[list[Step]], list[Step]]) -> Plan:
    """The plan with the steps of the last role of the last rank's work changed."""
    def launches(found: tuple[Launch, ...]) -> tuple[Launch, ...]:
        return tuple(replace(launch, roles=tuple(roles(role) for role in launch.roles)) for launch in found)

    def roles(role: Role) -> Role:
        return replace(role, steps=tuple(change(list(role.steps)))) if role.name == "work" else role

    return replace(plan, ranks=(*plan.ranks[:-1], launches(plan.ranks[-1])))


def place(steps: list[Step], number: int) -> int:
    return [at for at, step in enumerate(steps) if isinstance(step, Contract)][number]


def changed(number: int, **values: object) -> Callable[[list[Step]], list[Step]]:
    def change(steps: list[Step]) -> list[Step]:
        at = place(steps, number)
        return [*steps[:at], replace(steps[at], **values), *steps[at + 1 :]]  # type: ignore[arg-type]

    return change


def without(number: int) -> Callable[[list[Step]], list[Step]]:
    return lambda steps: [step for at, step in enumerate(steps) if at != place(steps, number)]


def again(steps: list[Step]) -> list[Step]:
    at = place(steps, 2)
    return [*steps[:at], steps[at], *steps[at:]]


def unwaited(steps: list[Step]) -> list[Step]:
    at = next(at for at, step in enumerate(steps) if isinstance(step, Wait))
    return [*steps[:at], *steps[at + 1 :]]


@pytest.mark.parametrize(("change", "rule", "words"), [
    (without(3), "data_flow", "without indices"),
    (again, "data_flow", "twice"),
    (changed(2, at=0), "data_flow", "by the same of its own"),
    (changed(2, k=63), "gemm_shape", "rows"),
    (changed(1, first=True), "structure", "begins once"),
    (changed(1, last=True), "structure", "begins once"),
    (changed(-1, last=False), "structure", "ends with"),
    (unwaited, "race", "nothing orders"),
])
def test_what_is_no_whole_product_is_refused(change: Callable[[list[Step]], list[Step]], rule: str, words: str) -> None:
    plan = lower(small("weights", 3), FUSED)
    assert verify(plan, cache=None).ok
    found = verify(with_steps(plan, change), cache=None).counterexample
    assert found is not None
    assert found.rule == rule
    assert words in str(found)


@pytest.mark.parametrize("wrong", [
    {"compute": "library", "overlap": "chunked"}, {"overlap": "chunked", "transport": "copy_engine", "num_comm_blocks": 0},
    {"chunk_rows": 96},
])
def test_what_cannot_be_lowered_is_refused_with_a_remedy(wrong: dict[str, object]) -> None:
    with pytest.raises(ScheduleError, match="contraction"):
        lower(small("weights", 2), replace(FUSED, **wrong))


def test_the_prior_hides_what_is_sent_behind_one_wave_of_tiles_alone() -> None:
    """Registers hold the sums of one tile a block: tiles behind the first wave begin when everything has arrived."""
    fused = replace(FUSED, chunk_rows=512, num_comm_blocks=8, block_m=128, block_n=256)
    after = replace(fused, overlap="none", chunk_rows=0, depth=1)
    gains = []
    for columns in (2048, 16384):  # 16 and 128 tiles for 24 blocks
        spec = contraction("weights", (1024, columns, 16384), 4)
        gains.append(predict(spec, after).us / predict(spec, fused).us)
    assert gains[0] > 1.2
    assert gains[1] < gains[0]


def test_rejections_are_counted_by_their_constraint() -> None:
    rejected = space(small("weights col", 4), SMALL).rejected
    assert rejected["segments_contiguous"] > 0
    assert rejected["contraction_in_one_product"] > 0
    assert rejected["contraction_beside_blocks"] > 0
