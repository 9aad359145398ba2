"""Plans of products of experts before a combine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import routed

from tilescale.errors import ScheduleError
from tilescale.schedules.grouped_combine import products_geometry
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Grouped, Ragged, Signal, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify

BEHIND = Schedule(compute="generated", num_comm_blocks=4, block_m=64, block_n=128, block_k=64, num_stages=3, raster_group=8)


BESIDE = replace(BEHIND, overlap="fused")
ALL = (BEHIND, BESIDE, replace(BESIDE, depth=4))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.label)
def test_every_schedule_is_proved_on_every_world(ranks: int, schedule: Schedule) -> None:
    proof = verify(lower(routed("gemm_combine", ranks, experts=4 * ranks), schedule), cache=None)
    assert proof.ok, proof
    assert proof.stats.symmetric


def test_uneven_shards_are_proved_too() -> None:
    spec = routed("gemm_combine", 4, tokens=5, experts=16)
    assert products_geometry(spec, 1, 4).tokens == (2, 2, 1, 0)
    assert all(verify(lower(spec, schedule), cache=None).ok for schedule in ALL)


def test_products_are_complete_before_they_go_back() -> None:
    spec = routed("gemm_combine", 3)
    first, second = lower(spec, BEHIND).ranks[0]
    assert (first.family, first.blocks, second.family) == ("grouped", spec.topology.sm_share, "moe")
    found = [[step.task for step in launch.steps if isinstance(step, Ragged)] for launch in (first, second)]
    assert found == [["multiply"], ["tally", "return", "return", "route", "total", "weigh"]]


def test_products_of_a_group_go_back_while_the_next_ones_are_made() -> None:
    spec = routed("gemm_combine", 3, experts=6)
    (launch,) = lower(spec, replace(BESIDE, depth=2)).ranks[1]
    comm, work = launch.roles
    tasks = [step.task for step in comm.steps if isinstance(step, Ragged)]
    assert tasks == ["route", "total", "tally", *["return_group"] * 4, "weigh"]
    returned = [step for step in comm.steps if isinstance(step, Grouped)]
    assert [(step.group, step.peer) for step in returned] == [(0, 2), (0, 0), (1, 2), (1, 0)]
    assert [type(step) for step in work.steps] == [Grouped, Signal] * 2
    waits = [step for step in comm.steps if isinstance(step, Wait)]
    told = [step.counter for step in work.steps if isinstance(step, Signal)]
    assert [(wait.counter, wait.value) for wait in waits[1:3]] == [(counter, work.blocks) for counter in told]
    assert [wait.value for wait in waits[3:]] == [4] * 2  # of both peers, when the last group has come
    ends = [(step.writes[0].offset, step.writes[0].end) for step in returned if step.peer == 2]
    assert ends[0][1] == ends[1][0]


def test_products_have_the_bytes_of_parts_of_a_sum() -> None:
    wide, narrow = (products_geometry(routed("gemm_combine", 2, partial_dtype=dtype), 1, 4) for dtype in (None, "float16"))
    assert (wide.row_bytes, narrow.row_bytes) == (152 * 4, 152 * 2)
    assert wide.sizes["rows"] == wide.room * 152 * 4
    assert (wide.sizes["a"], wide.sizes["out"]) == (wide.room * 136 * 2, wide.most * 152 * 2)


def test_a_combine_of_rows_instead_of_products_is_refused() -> None:
    plan = lower(routed("gemm_combine", 2), BEHIND)
    bare = replace(plan, ranks=tuple((launches[1],) for launches in plan.ranks))
    found = verify(bare, cache=None).counterexample
    assert found is not None
    assert "rows of rank 0, which is read" in str(found)


def test_spaces_say_what_they_leave_out() -> None:
    found = space(routed("gemm_combine", 2, experts=12))  # six experts a rank
    assert {(s.direction, s.overlap, s.compute, s.depth) for s in found} == {
        ("push", "none", "generated", 1), ("push", "fused", "generated", 1), ("push", "fused", "generated", 2)}
    with pytest.raises(ScheduleError, match="cut into equal groups"):
        lower(routed("gemm_combine", 2, experts=12), replace(BESIDE, depth=4))
