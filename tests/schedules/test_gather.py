"""Gathers of shards that are uneven or empty are proved for every kind of schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from mutations import changed
from support import ag_gemm, all_gather

from tilescale.schedules.geometry import spanned
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Copy, Gemm, Plan, Signal, Step, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec

PUSH = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4)


def specs(ranks: int) -> list[Spec]:
    """Shorter last shards, fewer chunks in them, empty ones, more than one; rows of a few bytes."""
    return [
        all_gather((64 * ranks + 1, 24), ranks), all_gather((64 * ranks + 1, 24), ranks, inputs="symmetric"),
        all_gather((300 * ranks - 290, 24), ranks), all_gather((1, 3), ranks),
        all_gather((ranks + 1, 3), ranks, inputs="symmetric"), all_gather((7,), ranks, dtype="int8"),
        ag_gemm((128 * ranks + 1, 128 * ranks, 128), ranks), ag_gemm((1, 128 * ranks, 128), ranks),
        ag_gemm((5, 128 * ranks, 128), ranks, inputs="symmetric"),
    ]


def structures(spec: Spec) -> list[Schedule]:
    """One schedule of each kind of plan."""
    found: dict[tuple[object, ...], Schedule] = {}
    for s in space(spec):
        found.setdefault((s.transport, s.direction, s.algorithm, s.overlap, s.compute, s.depth > 1, s.chunk_order), s)
    return list(found.values())


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
def test_every_kind_of_schedule_is_proved(ranks: int) -> None:
    for spec in specs(ranks):
        schedules = structures(spec)
        assert len(schedules) >= 6, spec.label
        for schedule in schedules:
            proof = verify(lower(spec, schedule), cache=None)
            assert proof.ok, f"{spec.label} {schedule.label}: {proof.counterexample}"


def test_shards_follow_each_other_by_the_rule_of_dtensor() -> None:
    plan = lower(all_gather((610, 24), 4), PUSH)  # 153, 153, 153, 151
    row = 48
    assert plan.goal.starts == (0, 153 * row, 306 * row, 459 * row, 610 * row)
    assert plan.buffer("out").size == plan.buffer("gather").size == 610 * row
    sent = [step.src.size // row for *_, step in plan.steps_of(3) if isinstance(step, Copy) and step.kind(3) == "put"]
    assert sent == [64, 64, 23] * 3 or sorted(sent) == sorted([64, 64, 23] * 3)


def test_a_rank_without_rows_takes_part_in_every_call() -> None:
    plan = lower(all_gather((5, 24), 4), replace(PUSH, overlap="none", chunk_rows=0, depth=1))  # 2, 2, 1, 0
    told = {step.rank for *_, step in plan.steps_of(3) if isinstance(step, Signal)}
    assert told == {0, 1, 2}
    assert not any(isinstance(step, Copy) and step.kind(3) == "put" for *_, step in plan.steps_of(3))


def _silent(step: Step) -> Step | None:
    """Who has nothing to send says nothing: counters 3 are those of rank 3 at its peers, who do not wait for it either."""
    return None if getattr(step, "counter", -1) == 3 else step


FAULTS: dict[str, tuple[Callable[[Step], Step | None], str]] = {"an empty shard that nobody waits for": (_silent, "race")}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    change, rule = FAULTS[name]
    plan: Plan = lower(all_gather((5, 24), 4), replace(PUSH, overlap="none", chunk_rows=0, depth=1))
    found = verify(changed(plan, change), cache=None).counterexample
    assert found is not None
    assert found.rule == rule


def test_products_of_uneven_rows_are_made_by_the_library() -> None:
    found = space(ag_gemm((4098, 10240, 8192)))
    assert {s.compute for s in found} == {"library"}
    assert found.rejected["even_products"] > 0
    assert {s.overlap for s in found} == {"none", "chunked"}


SPANNING = Schedule(overlap="fused", compute="generated", chunk_rows=64, num_comm_blocks=2, block_m=128, block_n=128,
                    block_k=64, num_stages=3, raster_group=8)


@pytest.mark.parametrize(("rows", "ranks", "span"), [
    (512, 8, 2), (128, 8, 8), (256, 4, 2), (128, 2, 2), (192, 3, 1), (1024, 8, 1), (520, 8, 1)])
def test_a_tile_takes_several_shards_where_they_have_fewer_rows(rows: int, ranks: int, span: int) -> None:
    spec = ag_gemm((rows, 128 * ranks, 128), ranks)
    assert spanned(spec, SPANNING) == span
    for schedule in (SPANNING, replace(SPANNING, transport="copy_engine", num_comm_blocks=0),
                     replace(SPANNING, overlap="none", chunk_rows=0)):
        plan = lower(spec, schedule)
        assert verify(plan, cache=None).ok
        products = [step for *_, step in plan.steps_of(1) if isinstance(step, Gemm)]
        if span > 1:
            whole = schedule.overlap == "none"
            assert {step.m for step in products} == {rows if whole else span * rows // ranks}
            assert {step.a.buffer for step in products} == {"gather"}


def test_ranks_send_to_those_of_their_own_product_first_and_to_one_at_a_time() -> None:
    plan = lower(ag_gemm((512, 1024, 128), 8), SPANNING)
    targets = [[step.rank for *_, step in plan.steps_of(rank) if isinstance(step, Signal) and step.rank != rank]
               for rank in range(8)]
    assert [order[0] for order in targets] == [1, 0, 3, 2, 5, 4, 7, 6]
    assert all(sorted(turn) == list(range(8)) for turn in zip(*targets, strict=True))


def _before_own(step: Step) -> Step | None:
    """The product of several shards does not wait for the own one."""
    return None if isinstance(step, Wait) and step.counter == 1 else step


def test_the_own_shard_is_waited_for_where_a_tile_spans_it() -> None:
    found = verify(changed(lower(ag_gemm((512, 1024, 128), 8), SPANNING), _before_own), cache=None).counterexample
    assert found is not None
    assert found.rule == "race"


@pytest.mark.parametrize("direction", ["push", "pull"])
def test_where_nothing_overlaps_waits_come_first_and_signals_last(direction: str) -> None:
    plan = lower(all_gather((256, 24), 4), Schedule(direction=direction, compute="generated", num_comm_blocks=2))
    moved = next(launch for launch in plan.ranks[0] if launch.name == "comm.0")
    kinds = [type(step) for step in moved.steps]
    assert kinds == [*[Wait] * 3 * (direction == "pull"), *[Copy] * 3, *[Signal] * 3 * (direction == "push")]
    assert verify(plan, cache=None).ok


def test_a_ring_passes_on_what_it_has_waited_for() -> None:
    plan = lower(all_gather((256, 24), 4), Schedule(algorithm="ring", compute="generated", num_comm_blocks=2))
    kinds = [type(step) for step in next(launch for launch in plan.ranks[0] if launch.name == "comm.0").steps]
    assert kinds == [Copy, Signal, Wait, Copy, Signal, Wait, Copy, Signal]
    assert verify(plan, cache=None).ok


def test_a_flat_tensor_is_cut_into_no_more_chunks_than_a_table_should_hold() -> None:
    flat, rows = space(all_gather((2**26,), 8)), space(all_gather((2**14, 2**12), 8))
    assert {s.overlap for s in flat} == {"none"}
    assert {s.overlap for s in rows} == {"none", "chunked", "fused"}
