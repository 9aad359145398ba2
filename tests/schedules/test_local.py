from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from support import ag_gemm, local_gemm, topology

from tilescale.errors import ScheduleError
from tilescale.schedules import tile
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Pieces, SharedGemm, Signal, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.streaming import stream
from tilescale.schedules.verify import verify
from tilescale.spec.op import matmul
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import FullCol, FullRow, Partial, Replicate

BASE = Schedule(compute="generated", block_m=128, block_n=256, block_k=64, num_stages=4, raster_group=8)


@pytest.mark.parametrize("shape", [(4096, 1280, 8192), (512, 768, 4096), (16, 3584, 4096), (1, 4096, 512)])
def test_plans_of_local_products_are_proved_and_fit_the_machine(shape: tuple[int, int, int]) -> None:
    spec = local_gemm(shape)
    schedules = space(spec).schedules
    assert {s.compute for s in schedules} == {"generated", "library"}
    for schedule in schedules[::17]:
        plan = lower(spec, schedule)
        assert verify(plan).ok
        for launch in plan.ranks[0]:
            assert launch.shared_bytes <= spec.topology.gpu.smem_bytes
            assert launch.blocks % launch.cluster == 0
            assert launch.blocks <= spec.topology.sm_share


def test_every_rank_multiplies_what_it_holds() -> None:
    spec = matmul(Tensor((1024, 4096), "bfloat16", FullCol), Tensor((4096, 2048), "bfloat16", FullRow, order="col"),
                  out=Partial, topology=topology(8))
    plan = lower(spec, BASE)
    assert verify(plan).ok
    steps = [next(launch.steps) for (launch,) in plan.ranks]
    assert {(step.m, step.n, step.k) for step in steps} == {(1024, 2048, 512)}  # type: ignore[union-attr]


def test_a_shared_contraction_has_a_cluster_a_tile() -> None:
    spec = local_gemm((512, 768, 4096))
    (launch,) = lower(spec, replace(BASE, block_n=128, num_stages=6, split_k=4)).ranks[0]
    assert (launch.blocks, launch.cluster) == (4 * 6 * 4, 4)
    assert all(s.cluster_m == 1 for s in space(spec) if s.split_k > 1)
    assert all(tile.tiles(spec, s) * s.split_k <= tile.clustered(132, s.split_k) for s in space(spec) if s.split_k > 1)


def test_tiles_are_shared_by_a_resident_launch_and_each_left_sum_is_added_up() -> None:
    spec = local_gemm((512, 3696, 8192))
    schedule = replace(BASE, block_n=128, num_stages=6, stream_k=1)  # 116 tiles of 128 steps
    plan = lower(spec, schedule)
    (launch,) = plan.ranks[0]
    assert launch.blocks == spec.topology.sm_share == 132
    pieces, signal, wait, product = launch.steps
    assert isinstance(pieces, Pieces)
    assert isinstance(product, SharedGemm)
    assert pieces.parts == product.parts
    assert (signal, wait) == (Signal(0, 0), Wait(0, 132))
    assert verify(plan).ok
    assert lower(spec, replace(schedule, stream_k=0)).buffers == plan.buffers[:-1]


def test_stretches_cover_all_steps_of_shared_tiles_once() -> None:
    for shape, waves in (((512, 3696, 8192), 1), ((4096, 1280, 8192), 2), ((8192, 8192, 3696), 2), ((60, 120, 640), 1)):
        found = stream(local_gemm(shape), replace(BASE, stream_k=waves))
        bounds = [found.start(unit) for unit in range(found.units + 1)]
        assert bounds[0] == 0
        assert bounds[-1] == found.shared * found.steps
        assert bounds == sorted(bounds)
        assert max(b - a for a, b in pairwise(bounds)) - min(b - a for a, b in pairwise(bounds)) <= 1
        assert found.whole % found.units == 0
        left = sum(size for _, size in found.ranges) // (found.part_bytes * found.cluster)
        assert left == sum(found.leaves(unit) for unit in range(found.units)) > 0


def test_spaces_share_tiles_where_the_last_wave_is_not_full() -> None:
    spec = local_gemm((8192, 8192, 3696))
    shared = [s for s in space(spec) if s.stream_k]
    assert shared
    assert all(s.split_k == 1 for s in shared)
    for schedule in shared:
        assert tile.tiles(spec, schedule) % (132 // schedule.cluster_m) > 0
    assert not [s for s in space(local_gemm((16, 3584, 4096))) if s.stream_k]


def test_tiles_of_full_waves_are_not_shared() -> None:
    with pytest.raises(ScheduleError, match="waves whose tiles are shared are not full"):
        lower(local_gemm((4096, 8448, 4096)), replace(BASE, stream_k=1))
    with pytest.raises(ScheduleError, match="stream_k=3"):
        lower(local_gemm((512, 3696, 8192)), replace(BASE, stream_k=3))
    with pytest.raises(ScheduleError, match="where nothing is sent"):
        lower(ag_gemm(), replace(BASE, overlap="none", num_comm_blocks=4, stream_k=1))


def test_warpgroups_take_turns_where_blocks_have_several_tiles() -> None:
    spec = local_gemm((8192, 8192, 3696))
    turns = [s for s in space(spec) if s.consumers == "pingpong"]
    assert turns
    for schedule in turns:
        assert schedule.block_m in (64, 128)
        assert (schedule.split_k, schedule.stream_k) == (1, 0)
        assert tile.tiles(spec, schedule) >= 2 * (132 // schedule.cluster_m)
        assert tile.threads(spec, schedule) == 384
    assert not [s for s in space(local_gemm((512, 3696, 4096))) if s.consumers == "pingpong" and s.block_m == 128]
    with pytest.raises(ScheduleError, match="64 or 128 rows"):
        lower(spec, replace(BASE, block_m=256, block_n=128, consumers="pingpong"))
    with pytest.raises(ScheduleError, match="where nothing is sent"):
        lower(spec, replace(BASE, stream_k=1, consumers="pingpong"))


def test_spaces_of_operations_that_move_data_hold_no_clusters() -> None:
    spec = matmul(Tensor((4096, 8192), "bfloat16", FullRow), Tensor((8192, 10240), "bfloat16", FullCol), out=FullCol,
                  topology=topology(4))
    for schedule in space(spec):
        assert (schedule.cluster_m, schedule.split_k) == (1, 1)
        assert (schedule.block_m, schedule.block_n) in {(0, 0), (64, 128), (64, 256), (128, 128), (128, 256)}


def test_knobs_that_came_later_leave_digests_as_they_were() -> None:
    assert "cluster_m" not in BASE.label
    assert replace(BASE, cluster_m=2).digest != BASE.digest != replace(BASE, split_k=2).digest
    assert replace(BASE, stream_k=1).digest != BASE.digest
    values = BASE.as_dict()
    old = {name: value for name, value in values.items() if name not in ("cluster_m", "split_k", "stream_k", "consumers")}
    assert Schedule.from_dict(old).digest == BASE.digest


def test_few_rows_take_the_narrowest_product() -> None:
    for rows, wanted in ((1, 8), (9, 16), (33, 64)):
        assert {s.block_m for s in space(local_gemm((rows, 4096, 4096))) if s.compute == "generated"} == {wanted}
    assert {s.block_m for s in space(local_gemm((64, 4096, 4096), order="row")) if s.block_m} <= {64, 128, 256}


def test_replicated_operands_need_no_ranks() -> None:
    spec = matmul(Tensor((256, 512), "bfloat16", Replicate), Tensor((512, 256), "bfloat16", Replicate), out=Replicate,
                  topology=topology(2))
    assert verify(lower(spec, replace(BASE, block_m=64, block_n=64, num_stages=6))).ok


def test_products_stay_in_flight_where_a_warpgroup_has_64_rows() -> None:
    spec = local_gemm((512, 3584, 8192))
    assert [tile.in_flight(spec, replace(BASE, block_m=rows)) for rows in (64, 128, 256)] == [True, True, False]
    assert tile.in_flight(spec, replace(BASE, consumers="pingpong"))


def test_weights_pass_through_the_cache_where_one_wave_takes_all_rows() -> None:
    few, many = local_gemm((512, 3584, 8192)), local_gemm((4096, 3584, 8192))
    assert tile.b_passes(few, replace(BASE, raster_group=4))
    assert not tile.b_passes(few, replace(BASE, raster_group=4, cluster_m=2))
    assert not tile.b_passes(many, BASE)
    assert not tile.b_passes(ag_gemm((512, 3584, 8192)), BASE)
