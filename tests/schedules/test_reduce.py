"""Sums over ranks: every kind of schedule is proved, planted faults are found, shards may be uneven or empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from mutations import changed
from support import gemm_rs, reduction

from tilescale.errors import ScheduleError
from tilescale.schedules import tile
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Buffer, Copy, Gemm, Plan, Signal, Step, Sum, Wait
from tilescale.schedules.protocol import protocol_digest, rotates
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.sums import summed
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec
from tilescale.spec.views import FullRow

TILE = {"block_m": 64, "block_n": 128, "block_k": 64, "num_stages": 3, "raster_group": 8}
PUSH = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4, **TILE)
SCATTER = Schedule(algorithm="scatter", overlap="fused", compute="generated", chunk_rows=64, **TILE)
BESIDE = replace(SCATTER, chunk_order="chunk_major", sum_blocks=2)
TWO_SHOT = replace(PUSH, algorithm="two_shot")
ONE_SHOT = Schedule(algorithm="one_shot", overlap="none", num_comm_blocks=4)
SPECS = {
    "gemm_rs": gemm_rs((384, 256, 384), ranks=3),
    "gemm_rs of a few rows": gemm_rs((2, 256, 384), ranks=3),
    "gemm_ar": gemm_rs((200, 256, 384), ranks=3, out="Replicate"),
    "gemm_ar to float32": gemm_rs((200, 256, 384), ranks=3, out="Replicate", out_dtype="float32"),
    "reduce_scatter, uneven": reduction((100, 24), to=FullRow, ranks=3),
    "all_reduce": reduction((256, 24), ranks=3),
    "all_reduce in place": reduction((256, 24), ranks=3, inputs="symmetric"),
    "all_reduce of odd sizes": reduction((7, 3), ranks=3),
}


def structures(spec: Spec) -> list[Schedule]:
    """One schedule of each kind of plan."""
    found: dict[tuple[object, ...], Schedule] = {}
    for s in space(spec):
        found.setdefault((s.transport, s.direction, s.algorithm, s.overlap, s.compute, s.depth > 1, s.chunk_order,
                          s.sum_blocks > 0), s)
    return list(found.values())


@pytest.mark.parametrize("name", SPECS)
def test_every_kind_of_schedule_is_proved(name: str) -> None:
    schedules = structures(SPECS[name])
    assert len(schedules) > 5
    for schedule in schedules:
        proof = verify(lower(SPECS[name], schedule), cache=None)
        assert proof.ok, f"{schedule.label}: {proof.counterexample}"


def one_version(name: str) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        def buffer(b: Buffer) -> Buffer:
            return replace(b, versions=1) if b.name == name else b

        return replace(plan, buffers=tuple(map(buffer, plan.buffers)))

    return change


def _add_twice(step: Step) -> Step:
    return replace(step, srcs=(step.srcs[0], *step.srcs[:-1])) if isinstance(step, Sum) else step


def _add_fewer(step: Step) -> Step:
    return replace(step, srcs=step.srcs[:-1]) if isinstance(step, Sum) else step


def _wait_for_fewer(step: Step) -> Step:
    return replace(step, value=step.value - 1) if isinstance(step, Wait) and step.value > 1 else step


def _never_wait(step: Step) -> Step | None:
    return None if isinstance(step, Wait) else step


def _signal_less(step: Step) -> Step | None:
    return None if isinstance(step, Signal) and step.rank == 1 else step


FAULTS: dict[str, tuple[Spec, Schedule, Callable[[Plan], Plan], set[str]]] = {
    "one inbox for all calls": (SPECS["gemm_rs"], PUSH, one_version("inbox"), {"race"}),
    "one inbox for scattered products": (SPECS["gemm_rs"], SCATTER, one_version("inbox"), {"race"}),
    "a result that nobody waits for": (SPECS["gemm_ar"], TWO_SHOT, lambda p: changed(p, _never_wait), {"race"}),
    "one staging for all calls": (
        SPECS["all_reduce"], replace(ONE_SHOT, direction="pull"), one_version("staging"), {"race"}),
    "one partial for all calls": (
        SPECS["gemm_ar"], replace(ONE_SHOT, direction="pull", compute="library", num_comm_blocks=0),
        one_version("partial"), {"race"}),
    "a part twice": (SPECS["gemm_rs"], PUSH, lambda p: changed(p, _add_twice), {"data_flow"}),
    "a part missing": (SPECS["all_reduce"], ONE_SHOT, lambda p: changed(p, _add_fewer), {"data_flow", "coverage"}),
    "a wait too short": (SPECS["gemm_rs"], PUSH, lambda p: changed(p, _wait_for_fewer), {"race"}),
    "no waits": (SPECS["all_reduce"], ONE_SHOT, lambda p: changed(p, _never_wait), {"race"}),
    "a rank that nobody tells": (SPECS["gemm_rs"], SCATTER, lambda p: changed(p, _signal_less), {"deadlock"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    spec, schedule, change, rules = FAULTS[name]
    plan = lower(spec, schedule)
    assert verify(plan, cache=None).ok
    found = verify(change(plan), cache=None).counterexample
    assert found is not None
    assert found.rule in rules, found


def test_parts_are_float32_unless_the_declaration_allows_less() -> None:
    spec = gemm_rs((384, 256, 384), ranks=3)
    assert (summed(spec).element, summed(spec).part_row_bytes) == ("float32", 1024)
    less = replace(spec, attributes=(("partial_dtype", "bfloat16"),))
    assert (summed(less).element, summed(less).part_row_bytes) == ("bfloat16", 512)
    assert verify(lower(less, PUSH), cache=None).ok


def test_every_rank_adds_in_the_same_order() -> None:
    plan = lower(SPECS["gemm_ar"], replace(TWO_SHOT, algorithm="one_shot", direction="pull", num_comm_blocks=0, depth=1))
    orders = {tuple(source.rank for source in step.srcs) for rank in plan.ranks for launch in rank
              for step in launch.steps if isinstance(step, Sum)}
    assert orders == {(0, 1, 2)}


def test_plans_of_other_sizes_share_a_proof_and_ranks_are_alike() -> None:
    plan, larger = (lower(gemm_rs((m, 256, 384), ranks=3), replace(PUSH, chunk_rows=rows))
                    for m, rows in ((384, 64), (768, 128)))
    assert protocol_digest(plan) == protocol_digest(larger)
    assert rotates(plan)
    assert rotates(lower(SPECS["all_reduce in place"], replace(ONE_SHOT, direction="pull")))


@pytest.mark.parametrize(("spec", "schedule", "rule"), [
    (SPECS["gemm_rs"], replace(PUSH, direction="pull", transport="tma"), "reads its peers directly"),
    (SPECS["gemm_rs"], replace(SCATTER, overlap="chunked"), "stores of a generated product"),
    (SPECS["gemm_rs"], TWO_SHOT, "algorithms of gemm_rs"),
    (SPECS["all_reduce"], replace(ONE_SHOT, overlap="chunked", chunk_rows=64), "streams are products"),
    (SPECS["gemm_rs"], replace(PUSH, sum_blocks=2), "sums beside products are of parts that peers read or store"),
    (SPECS["gemm_rs"], replace(SCATTER, sum_blocks=2), "sums beside products are of parts that peers read or store"),
    (SPECS["gemm_rs"], replace(BESIDE, sum_blocks=1 << 10), "leave some of .* SMs to those that multiply"),
])
def test_a_schedule_without_sense_is_refused(spec: Spec, schedule: Schedule, rule: str) -> None:
    with pytest.raises(ScheduleError, match=rule):
        lower(spec, schedule)


@pytest.mark.parametrize("name", ["gemm_rs", "gemm_ar"])
def test_what_is_stored_at_a_peer_is_announced_behind_the_next_product(name: str) -> None:
    plan = lower(SPECS[name], replace(SCATTER, chunk_rows=128))
    assert verify(plan, cache=None).ok
    work = next(launch for launch in plan.ranks[0] if launch.name == "work")
    kinds = ["product" if isinstance(step, Gemm) else f"signal {step.rank}" for step in work.steps]
    assert kinds == ["product", "product", "signal 1", "product", "signal 2"]
    products = [step for step in work.steps if isinstance(step, Gemm)]
    assert [step.out.rank for step in products] == [1, 2, 0]


@pytest.mark.parametrize("name", ["gemm_rs", "gemm_ar", "gemm_rs of a few rows"])
def test_products_of_all_owners_follow_each_other_and_are_told_of_together(name: str) -> None:
    plan = lower(SPECS[name], replace(SCATTER, overlap="none", chunk_rows=0))
    assert verify(plan, cache=None).ok
    work = next(launch for launch in plan.ranks[0] if launch.name == "work")
    kinds = [(type(step).__name__, step.out.rank if isinstance(step, Gemm) else step.rank) for step in work.steps
             if isinstance(step, Gemm | Signal)]
    empty = name.endswith("few rows")  # the last owner has no rows of two, and is told nevertheless
    assert kinds == [("Gemm", 1), *([] if empty else [("Gemm", 2)]), ("Gemm", 0), ("Signal", 1), ("Signal", 2)]


def test_two_owners_share_a_tile_where_each_has_as_many_rows_as_a_warpgroup() -> None:
    whole = replace(SCATTER, overlap="none", chunk_rows=0, block_m=128)

    def owners(rows: int, ranks: int, schedule: Schedule = whole) -> int:
        return tile.owners(gemm_rs((rows, 256, 64 * ranks), ranks=ranks), schedule)

    assert [owners(64 * ranks, ranks) for ranks in (2, 4, 8)] == [2, 2, 2]
    assert [owners(64 * 3, 3), owners(64 * 4 - 1, 4), owners(128 * 4, 4)] == [1, 1, 1]
    assert [owners(256, 4, replace(whole, block_m=64)), owners(256, 4, SCATTER)] == [1, 1]


@pytest.mark.parametrize("schedule", [
    BESIDE, *(replace(BESIDE, algorithm=name, direction="pull") for name in ("two_shot", "one_shot")),
], ids=["scatter", "two_shot", "one_shot"])
def test_a_chunk_is_added_up_beside_the_products_of_the_next(schedule: Schedule) -> None:
    spec = gemm_rs((768, 256, 384), ranks=3, out="Replicate")
    plan = lower(spec, schedule)
    assert verify(plan, cache=None).ok
    for rank, launches in enumerate(plan.ranks):
        work, sums, finish = launches
        assert [(each.name, each.stream) for each in launches] == [("work", 0), ("sum", 1), ("finish", 0)]
        assert work.roles[0].blocks + sums.roles[0].blocks == spec.topology.sm_share
        assert (sums.after, finish.after) == ((), ("sum",))
        told = {step.counter for step in work.steps if isinstance(step, Signal) and step.rank == rank}
        chunks = sum(isinstance(step, Sum) for step in sums.steps)
        assert chunks == (4 if schedule.algorithm != "one_shot" else 12) == len(told)
        waited = {step.counter for step in sums.steps if isinstance(step, Wait)}
        assert told <= waited  # of its own part of each chunk, too
        kinds = "".join("s" if isinstance(step, Sum) else "f" for step in sums.steps if isinstance(step, Sum | Copy))
        assert kinds == ("s" * 12 if schedule.algorithm == "one_shot" else "s" + "sfff" * 3 + "fff")


def test_own_products_are_made_with_their_chunk_where_sums_are_beside() -> None:
    plan = lower(gemm_rs((384, 256, 384), ranks=3), BESIDE)
    work = next(launch for launch in plan.ranks[0] if launch.name == "work")
    assert [step.out.rank for step in work.steps if isinstance(step, Gemm)] == [1, 2, 0, 1, 2, 0]


def test_a_space_has_sums_beside_products_of_several_chunks_on_few_of_the_sms() -> None:
    for ranks, out in ((2, "FullRow"), (4, "Replicate"), (8, "FullRow")):
        spec = gemm_rs((4096, 512, 512 * ranks), ranks=ranks, out=out)
        found = [s for s in space(spec) if s.sum_blocks]
        assert {(s.overlap, s.compute, s.transport) for s in found} == {("fused", "generated", "peer_copy")}
        assert {s.algorithm == "scatter" or s.direction == "pull" for s in found} == {True}
        share = spec.topology.sm_share
        assert {s.sum_blocks for s in found} == {n for n in (2, 4, 8, 16, 32) if share / 16 < n <= share / 4} != set()
        assert all(s.chunk_rows < (4096 if s.algorithm == "one_shot" else 4096 // ranks) for s in found)
    assert not [s for s in space(gemm_rs((64 * 8, 512, 4096), ranks=8)) if s.sum_blocks]  # of one chunk
    assert not [s for s in space(SPECS["all_reduce"]) if s.sum_blocks]
