from __future__ import annotations

from dataclasses import replace

import pytest
from support import local_gemm, topology

from tilescale.schedules import tile
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
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


def test_spaces_of_operations_that_move_data_hold_no_clusters() -> None:
    spec = matmul(Tensor((4096, 8192), "bfloat16", FullRow), Tensor((8192, 10240), "bfloat16", FullCol), out=FullCol,
                  topology=topology(4))
    for schedule in space(spec):
        assert (schedule.cluster_m, schedule.split_k) == (1, 1)
        assert (schedule.block_m, schedule.block_n) in {(0, 0), (64, 128), (64, 256), (128, 128), (128, 256)}


def test_knobs_that_came_later_leave_digests_as_they_were() -> None:
    assert "cluster_m" not in BASE.label
    assert replace(BASE, cluster_m=2).digest != BASE.digest != replace(BASE, split_k=2).digest
    values = BASE.as_dict()
    old = {name: value for name, value in values.items() if name not in ("cluster_m", "split_k")}
    assert Schedule.from_dict(old).digest == BASE.digest


def test_few_rows_take_the_narrowest_product() -> None:
    for rows, wanted in ((1, 8), (9, 16), (33, 64)):
        assert {s.block_m for s in space(local_gemm((rows, 4096, 4096))) if s.compute == "generated"} == {wanted}
    assert {s.block_m for s in space(local_gemm((64, 4096, 4096), order="row")) if s.block_m} <= {64, 128, 256}


def test_replicated_operands_need_no_ranks() -> None:
    spec = matmul(Tensor((256, 512), "bfloat16", Replicate), Tensor((512, 256), "bfloat16", Replicate), out=Replicate,
                  topology=topology(2))
    assert verify(lower(spec, replace(BASE, block_m=64, block_n=64, num_stages=6))).ok
