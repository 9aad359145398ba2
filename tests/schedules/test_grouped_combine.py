"""Plans of products of experts before a combine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import routed

from tilescale.errors import ScheduleError
from tilescale.schedules.grouped_combine import products_geometry
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Ragged
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify

BEHIND = Schedule(compute="generated", num_comm_blocks=4, block_m=64, block_n=128, block_k=64, num_stages=3, raster_group=8)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("partial", [None, "bfloat16"])
def test_every_world_is_proved(ranks: int, partial: str | None) -> None:
    proof = verify(lower(routed("gemm_combine", ranks, partial_dtype=partial), BEHIND), cache=None)
    assert proof.ok, proof
    assert proof.stats.symmetric


def test_uneven_shards_are_proved_too() -> None:
    spec = routed("gemm_combine", 4, tokens=5)
    assert products_geometry(spec, 4).tokens == (2, 2, 1, 0)
    assert verify(lower(spec, BEHIND), cache=None).ok


def test_products_are_complete_before_they_go_back() -> None:
    spec = routed("gemm_combine", 3)
    first, second = lower(spec, BEHIND).ranks[0]
    assert (first.family, first.blocks, second.family) == ("grouped", spec.topology.sm_share, "moe")
    found = [[step.task for step in launch.steps if isinstance(step, Ragged)] for launch in (first, second)]
    assert found == [["multiply"], ["tally", "return", "return", "route", "total", "weigh"]]


def test_products_have_the_bytes_of_parts_of_a_sum() -> None:
    wide, narrow = (products_geometry(routed("gemm_combine", 2, partial_dtype=dtype), 4) for dtype in (None, "float16"))
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
    found = space(routed("gemm_combine", 2, experts=8))
    assert {(s.direction, s.overlap, s.compute, s.depth) for s in found} == {("push", "none", "generated", 1)}
    assert found.rejected["products_before_combine"] > 0
    with pytest.raises(ScheduleError, match="complete before they go back"):
        lower(routed("gemm_combine", 2), replace(BEHIND, overlap="fused"))
