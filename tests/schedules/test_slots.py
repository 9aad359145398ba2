"""Block matrices whose panels arrive in slots: what a rank holds, who hands back what, and what the verifier refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support import ag_gemm, in_blocks

from tilescale.errors import ScheduleError
from tilescale.schedules.constraints import CONSTRAINTS
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Buffer, Contract, Copy, Pass, Plan, Signal, Step, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.slots import SLOTS, slotted_blocks
from tilescale.schedules.verify import verify
from tilescale.spec.topology import Topology

CREDIT = Schedule(overlap="fused", compute="generated", depth=2, num_comm_blocks=4, block_m=64, block_n=128, block_k=64,
                  num_stages=3, raster_group=8, protocol="credit")
NINE = Topology.shared_gpu(ranks=9)


def buffers(plan: Plan) -> dict[str, Buffer]:
    return {buffer.name: buffer for buffer in plan.buffers}


@pytest.mark.parametrize(("ranks", "slots"), [(4, (1, 1)), (8, (2, 2)), (9, (2, 2))])
def test_no_more_than_two_panels_a_side_are_held_and_none_twice(ranks: int, slots: tuple[int, int]) -> None:
    spec = in_blocks(ranks, on=NINE if ranks == 9 else None)
    plan, usual = lower(spec, CREDIT), lower(spec, replace(CREDIT, protocol="simple"))
    geo, held = slotted_blocks(spec), buffers(plan)
    assert geo.slots == slots
    assert max(slots) <= SLOTS
    assert (held["gather"].size, held["column"].size) == tuple(
        count * size for count, size in zip(slots, geo.panel_sizes, strict=True))
    assert {buffer.versions for buffer in plan.buffers} == {1}
    assert ("sums" in held) == geo.passes == (ranks == 8)
    spent = [sum(b.size * b.versions for b in each.buffers if b.peer_visible) for each in (plan, usual)]
    assert spent[0] <= spent[1] / 2
    for rank in range(ranks):
        moved = [step for _, _, _, step in plan.steps_of(rank) if isinstance(step, Copy)]
        assert all(step.dst.rank != rank for step in moved)  # own blocks are multiplied where they lie


def test_each_byte_crosses_once_and_every_slot_is_told_of_once() -> None:
    spec = in_blocks(8)
    plan, geo = lower(spec, CREDIT), slotted_blocks(spec)
    for rank in range(8):
        into = [step.dst for other in range(8) for _, _, _, step in plan.steps_of(other)
                if isinstance(step, Copy) and step.dst.rank == rank]
        assert sorted(region.buffer for region in into) == ["column"] * 2 + ["gather"] * 3
        told = [(role.name, step) for _, _, role, step in plan.steps_of(rank)
                if isinstance(step, Signal) and step.counter >= 2 * geo.cols]
        assert len(told) == len(into) == len({(step.rank, step.counter) for _, step in told})
        assert [name for name, _ in told].count("work") == 1  # one panel takes a slot again
    order = [step for launch in plan.ranks[5] for role in launch.roles if role.name == "work" for step in role.steps]
    kinds = "".join({Wait: "w", Signal: "s"}.get(type(step), "p") for step in order)
    assert kinds.count("p") == 4
    assert "psw" in kinds
    passes = [step for step in order if isinstance(step, Pass)]
    assert [(step.first, step.last) for step in passes] == [(True, False), (False, False), (False, False), (False, True)]


def test_where_all_panels_have_a_slot_sums_stay_in_registers() -> None:
    plan = lower(in_blocks(4), CREDIT)
    steps = [step for _, _, _, step in plan.steps_of(1) if isinstance(step, Contract)]
    assert [(type(step), step.first, step.last) for step in steps] == [(Contract, True, False), (Contract, False, True)]


def changed(plan: Plan, change: Callable[[list[Step]], list[Step]], role_name: str = "work") -> Plan:
    """The plan with the steps of a role of the last rank changed."""
    launch = plan.ranks[-1][0]
    roles = tuple(replace(role, steps=tuple(change(list(role.steps)))) if role.name == role_name else role
                  for role in launch.roles)
    return replace(plan, ranks=(*plan.ranks[:-1], (replace(launch, roles=roles),)))


def early(steps: list[Step]) -> list[Step]:
    """A slot is told to be free before it is multiplied."""
    at = next(at for at, step in enumerate(steps) if isinstance(step, Signal))
    return [*steps[: at - 1], steps[at], steps[at - 1], *steps[at + 1 :]]


def of_the_call_before(steps: list[Step]) -> list[Step]:
    """Sums that no pass of this call has left."""
    at = next(at for at, step in enumerate(steps) if isinstance(step, Pass))
    return [*steps[:at], replace(steps[at], first=False), *steps[at + 1 :]]  # type: ignore[arg-type]


def not_awaited(steps: list[Step]) -> list[Step]:
    """A panel is sent to a slot that still is multiplied."""
    at = [at for at, step in enumerate(steps) if isinstance(step, Wait)][-1]
    return [*steps[:at], *steps[at + 1 :]]


@pytest.mark.parametrize(("change", "role", "rules"), [
    (early, "work", {"race", "data_flow"}), (of_the_call_before, "work", {"structure"}),
    (not_awaited, "comm.0", {"race", "data_flow"})])
def test_slots_that_are_taken_too_early_are_found(
        change: Callable[[list[Step]], list[Step]], role: str, rules: set[str]) -> None:
    plan = lower(in_blocks(8), CREDIT)
    assert verify(plan, cache=None).ok
    found = verify(changed(plan, change, role), cache=None).counterexample
    assert found is not None
    assert found.rule in rules


@pytest.mark.parametrize("values", [
    {"sums": ()}, {"offset": 64}, {"buffer": "gather"}, {"buffer": "out"}, {"rank": 0}, {"gathered": 0}])
def test_sums_that_are_not_kept_apart_are_refused(values: dict[str, Any]) -> None:
    def change(steps: list[Step]) -> list[Step]:
        at = [at for at, step in enumerate(steps) if isinstance(step, Pass)][1]
        step = steps[at]
        assert isinstance(step, Pass)
        own = {name: value for name, value in values.items() if name in ("sums", "gathered")}
        sums = values.get("sums", (replace(step.sums[0], **{k: v for k, v in values.items() if k not in own}),))
        return [*steps[:at], replace(step, **{"sums": sums, **own}), *steps[at + 1 :]]

    found = verify(changed(lower(in_blocks(8), CREDIT), change), cache=None).counterexample
    assert found is not None
    assert found.rule in ("gemm_shape", "structure", "bounds", "visibility")


def test_a_block_finds_only_what_it_has_left_itself() -> None:
    """Two gangs that multiply would find each other's sums."""
    plan = lower(in_blocks(8), CREDIT)
    launch = plan.ranks[-1][0]
    *copies, work = launch.roles
    half = [at for at, step in enumerate(work.steps) if isinstance(step, Pass)][1] + 1
    parts = (replace(work, name="work", steps=work.steps[:half]), replace(work, name="more", steps=work.steps[half:]))
    apart = replace(plan, ranks=(*plan.ranks[:-1], (replace(launch, roles=(*copies, *parts)),)))
    found = verify(apart, cache=None).counterexample
    assert found is not None
    assert found.rule == "structure"


@pytest.mark.parametrize("wrong", [{"overlap": "none", "depth": 1}, {"direction": "pull"}, {"protocol": "ll"}])
def test_what_has_no_slots_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError):
        lower(in_blocks(4), replace(CREDIT, **wrong))


def test_other_operations_have_no_slots() -> None:
    with pytest.raises(ScheduleError, match="panels of block matrices as they come"):
        lower(ag_gemm((512, 256, 128), 4), replace(CREDIT, chunk_rows=128))


def test_shifts_hold_all_that_they_pass_on() -> None:
    """On a mesh of four by four three panels come, in another order than they are multiplied."""
    spec = in_blocks(16, algorithm="cannon", on=Topology.shared_gpu(ranks=16))
    ring = replace(CREDIT, algorithm="ring", depth=1, num_comm_blocks=2)
    with pytest.raises(ScheduleError, match="in another order than it is multiplied"):
        lower(spec, ring)
    (rule,) = (constraint for constraint in CONSTRAINTS if constraint.name == "shifts_in_slots")
    assert not rule.holds(spec, ring)
    assert rule.holds(in_blocks(4, algorithm="cannon"), ring)
    assert rule.holds(spec, replace(ring, protocol="simple"))
