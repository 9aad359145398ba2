"""Trips over a link that stand behind each other in a call."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade import ring
from support import all_gather, gemm_rs, reduction

from tilescale.errors import PlanError
from tilescale.schedules.latency import one_way_trips
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullRow

NONE = Schedule(compute="generated", num_comm_blocks=4)
ONE_SHOT, TWO_SHOT = replace(NONE, algorithm="one_shot"), replace(NONE, algorithm="two_shot")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_packets_take_one_trip_and_signals_with_loads_three(ranks: int) -> None:
    spec = reduction((1, 4096), ranks, on=Topology.shared_gpu(ranks))
    assert one_way_trips(lower(spec, replace(ONE_SHOT, protocol="ll"))) == 1
    assert one_way_trips(lower(spec, replace(TWO_SHOT, protocol="ll"))) == 2
    assert one_way_trips(lower(spec, replace(ONE_SHOT, direction="pull"))) == 3  # told, asked for, there
    assert one_way_trips(lower(spec, ONE_SHOT)) == 3  # there, acknowledged, told
    fetched = 2 * (ranks - 1)  # one after the other
    assert one_way_trips(lower(spec, replace(TWO_SHOT, direction="pull"))) == 4 + fetched
    assert one_way_trips(lower(spec, TWO_SHOT)) == 4 + fetched


def test_operands_that_are_read_in_place_are_given_back_by_a_trip_more() -> None:
    spec = reduction((1, 4096), 4, on=Topology.shared_gpu(4), inputs="symmetric")
    assert one_way_trips(lower(spec, replace(ONE_SHOT, direction="pull"))) == 4


def test_a_copy_to_a_peer_is_acknowledged_before_its_signal_leaves() -> None:
    spec = all_gather((64, 64), 2, on=Topology.shared_gpu(2))
    assert one_way_trips(lower(spec, NONE)) == 3
    assert one_way_trips(lower(spec, replace(NONE, direction="pull"))) == 3


def test_what_goes_round_a_ring_takes_as_many_as_there_are_ranks() -> None:
    def trips(ranks: int) -> int:
        spec = reduction((64 * ranks, 64), ranks, to=FullRow, on=Topology.shared_gpu(ranks))
        return one_way_trips(lower(spec, replace(NONE, algorithm="ring")))

    assert [trips(ranks) for ranks in (3, 4, 8)] == [6, 9, 21]


def test_launches_and_streams_follow_each_other() -> None:
    """Behind a product on its stream, copies on two more, and a second kernel that adds up."""
    spec = gemm_rs((384, 256, 384), 3)
    fused = Schedule(overlap="fused", compute="generated", chunk_rows=128, num_comm_blocks=4, block_m=64, block_n=128,
                     block_k=64, num_stages=3, raster_group=8)
    chunked = replace(fused, overlap="chunked", depth=2)
    assert one_way_trips(lower(spec, fused)) == 5  # to two peers, one after the other
    assert one_way_trips(lower(spec, chunked)) == 3  # side by side
    assert one_way_trips(lower(spec, replace(fused, direction="pull", num_comm_blocks=0))) == 3
    assert one_way_trips(lower(gemm_rs((64, 64, 128), 2, out="Partial"), replace(fused, num_comm_blocks=0))) == 0


def test_a_plan_that_waits_for_ever_is_told() -> None:
    plan = ring(3, blocks=2)
    launch = plan.ranks[1][0]
    mute = replace(launch, roles=(replace(launch.roles[0], steps=()), *launch.roles[1:]))
    with pytest.raises(PlanError, match="every wait is met; got: rank"):
        one_way_trips(replace(plan, ranks=(plan.ranks[0], (mute, *plan.ranks[1][1:]), *plan.ranks[2:])))
