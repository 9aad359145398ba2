"""Lowered schedules: a sample of each shipped kind of space is proved, and faults planted in them are refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import pytest
from handmade import drop, edit

from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Plan, Signal, Step, Wait
from tilescale.schedules.proof_cache import ProofCache
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec, matmul, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow, Replicate


def declare(op: str, ranks: int, inputs: str) -> Spec:
    topology = Topology.scale_model("8xH200-NVSwitch", ranks)
    a = Tensor((768 * ranks, 1024), "bfloat16", FullRow)
    if op == "all_gather":
        return redistribute(a, to=Replicate, topology=topology, inputs=inputs)
    b = Tensor((1024, 256 * ranks), "bfloat16", FullCol, order="col")
    return matmul(a, b, out=FullCol, topology=topology, inputs=inputs)


def sample(spec: Spec, count: int, algorithms: tuple[str, ...] = ("direct", "ring")) -> list[Schedule]:
    """Schedules of all kinds of overlap, transport, direction and algorithm."""
    found = [s for s in space(spec).schedules if s.algorithm in algorithms]
    first = {(s.overlap, s.transport, s.direction, s.compute, s.algorithm): s for s in found}
    return [*first.values(), *found[:: max(1, len(found) // count)]]


@pytest.mark.parametrize("inputs", ["ordinary", "symmetric"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("op", ["ag_gemm", "all_gather"])
def test_lowered_schedules_are_proved(op: str, ranks: int, inputs: str) -> None:
    spec = declare(op, ranks, inputs)
    cache = ProofCache()
    for schedule in sample(spec, 12):
        proof = verify(lower(spec, schedule), cache=cache)
        assert proof.ok, f"{schedule.label}: {proof}"
        assert proof.stats.symmetric or ranks == 1


def plans() -> list[Plan]:
    """Without rings: who passes a shard on has waited for it, so that some of the waits of those behind say nothing new."""
    found = []
    for inputs in ("ordinary", "symmetric"):
        spec = declare("ag_gemm", 3, inputs)
        found += [lower(spec, schedule) for schedule in sample(spec, 1, ("direct",))]
    return found


def test_every_dropped_signal_that_is_waited_for_is_a_deadlock() -> None:
    for plan in plans():
        waited = {(rank, s.counter) for rank in range(3) for _, _, _, s in plan.steps_of(rank) if isinstance(s, Wait)}
        for number, _, _, step in plan.steps_of(1):
            if isinstance(step, Signal) and (step.rank, step.counter) in waited:
                found = verify(edit(plan, 1, number, drop), cache=None).counterexample
                assert found is not None
                assert found.rule == "deadlock"


def longer(step: Step) -> list[Step]:
    return [replace(step, value=step.value + 1)] if isinstance(step, Wait) else [step]


def shorter(step: Step) -> list[Step]:
    return [replace(step, value=step.value - 1)] if isinstance(step, Wait) else [step]


def announced(plan: Plan, rank: int) -> set[int]:
    """Counters of `rank` that blocks signal before they have touched anything: one block says as much as all."""
    found: set[int] = set()
    for launches in plan.ranks:
        for launch in launches:
            for role in launch.roles:
                early = takewhile(lambda step: isinstance(step, Signal), role.steps)
                found |= {s.counter for s in early if isinstance(s, Signal) and s.rank == rank}
    return found


def test_every_wait_one_long_is_a_deadlock_and_one_short_or_dropped_a_race() -> None:
    for plan in plans():
        for number, _, _, step in plan.steps_of(2):
            if isinstance(step, Wait):
                long = verify(edit(plan, 2, number, longer), cache=None).counterexample
                assert long is not None
                assert long.rule == "deadlock"
                gone = verify(edit(plan, 2, number, drop), cache=None).counterexample
                assert gone is not None, f"{plan.notes} step {number} {step}"
                assert gone.rule == "race"
                if step.value > 1 and step.counter not in announced(plan, 2):
                    short = verify(edit(plan, 2, number, shorter), cache=None).counterexample
                    assert short is not None
                    assert short.rule == "race"


def test_one_version_of_what_peers_write_is_a_race() -> None:
    pushes = [plan for plan in plans() if any(b.versions == 2 for b in plan.buffers)]
    assert pushes
    for plan in pushes:
        single = replace(plan, buffers=tuple(replace(b, versions=1) for b in plan.buffers))
        found = verify(single, cache=None).counterexample
        assert found is not None
        assert found.rule == "race"


def test_more_blocks_than_the_share_are_refused() -> None:
    for plan in plans():
        waiting = [launch for launch in plan.ranks[0] if any(isinstance(step, Wait) for step in launch.steps)]
        most = max(launch.blocks for launch in waiting)
        found = verify(replace(plan, sm_share=most - 1), cache=None).counterexample
        assert found is not None
        assert found.rule == "co_residency"
