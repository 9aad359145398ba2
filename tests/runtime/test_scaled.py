"""scaled: what is emulated in place of a large operation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import MAIN, ag_gemm, all_gather, gemm_rs, reduction

from tilescale.runtime import scaled as module
from tilescale.runtime.emulate import emulate
from tilescale.runtime.scaled import WORK_BLOCKS, _few_sms, _is_small, _resized, _shard_rows, scaled
from tilescale.schedules.geometry import spanned
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Launch, Plan, Role, Signal
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec, matmul
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow, Replicate

FUSED = Schedule(overlap="fused", compute="generated", chunk_rows=256, depth=2, num_comm_blocks=4, block_m=64,
                 block_n=128, block_k=64, num_stages=3, raster_group=8)
LARGE = [
    gemm_rs(), gemm_rs(out="Replicate", order="col"), gemm_rs(dtype="float16", ranks=8), reduction((4096, 8192)),
    reduction((4096, 8192), to=FullRow, ranks=8), reduction((4096, 8192), dtype="float32"), ag_gemm(), all_gather(),
]


@pytest.mark.parametrize("spec", LARGE, ids=lambda spec: f"{spec.label} {spec.output.view.label}")
def test_a_stand_in_has_tails_on_every_rank_and_aligned_rows(spec: Spec) -> None:
    small = _resized(spec, 104, FUSED)
    assert small.op == spec.op
    assert {t.view for t in small.inputs} == {t.view for t in spec.inputs}
    assert small.output.sizes[0] == 104 * spec.world
    for tensor in (*small.inputs, small.output):
        local = tensor.local_shape(0, spec.world)
        assert {tensor.local_shape(rank, spec.world) for rank in range(spec.world)} == {local}
        assert local[-1 if tensor.order == "row" else 0] * tensor.itemsize % 16 == 0
    if spec.operation.compute == "gemm":
        rows, columns = small.inputs[1].local_shape(0, spec.world)
        assert 2 * FUSED.block_k < rows < 3 * FUSED.block_k
        assert FUSED.block_n < columns < 2 * FUSED.block_n
        assert _is_small(small, FUSED)


@pytest.mark.parametrize(("a", "b", "out", "sizes"), [
    (Replicate, Replicate, Replicate, (104, 152, 152)), (FullRow, Replicate, FullRow, (4 * 104, 152, 152)),
    (Replicate, FullCol, FullCol, (104, 4 * 152, 152)), (FullCol, FullRow, "Partial", (104, 152, 4 * 152)),
])
def test_a_local_product_is_as_small_on_every_rank(a: object, b: object, out: object, sizes: tuple[int, ...]) -> None:
    m, n, k = MAIN
    topology = Topology.shared_gpu(4)
    spec = matmul(Tensor((m, k), "bfloat16", a), Tensor((k, n), "bfloat16", b), out, topology)  # type: ignore[arg-type]
    assert _resized(spec, 104, FUSED).mnk == sizes


def test_uneven_shards_stay_uneven() -> None:
    spec = gemm_rs((8191, 8192, 28672), ranks=8)
    rows = [_resized(spec, 104, FUSED).output.local_shape(rank, 8)[0] for rank in range(8)]
    assert rows == [104] * 7 + [103]


def test_decode_sizes_are_not_small_where_tiles_are_padded() -> None:
    assert not _is_small(gemm_rs((1, 4096, 1792 * 8), ranks=8), FUSED)
    assert not _is_small(gemm_rs((1, 4096, 1792 * 8), ranks=8), replace(FUSED, block_m=0, block_n=0))  # B is large
    assert _is_small(gemm_rs((1, 256, 512), ranks=8), FUSED)
    assert (_shard_rows(gemm_rs((17, 256, 512), ranks=8)), _shard_rows(ag_gemm())) == (3, 1024)


def test_a_smaller_gpu_leaves_a_rank_the_asked_sms_and_the_rest_as_it_is() -> None:
    real = Topology.named("8xH200-NVSwitch")
    assert _few_sms(real, 6).sm_share == 6
    for shared in (Topology.shared_gpu(4), Topology.scale_model("8xH200-NVSwitch", ranks=8)):
        found = _few_sms(shared, 6)
        assert (found.sm_share, found.ranks, found.kind, found.link) == (8, shared.ranks, shared.kind, shared.link)
        assert _few_sms(shared, 1000) == shared


@pytest.mark.parametrize("counted", [False, True])
def test_working_gangs_are_small_and_counted_ones_are_lowered_so(
    monkeypatch: pytest.MonkeyPatch, counted: bool
) -> None:
    """A plan whose waits count the blocks of a working gang is made anew: edited, it would wait for blocks it lacks."""
    spec = ag_gemm()

    def lowered(given: Spec, schedule: Schedule) -> Plan:
        plan = lower(given, schedule)

        def signalling(role: Role) -> Role:
            works = counted and role.name == "work"
            return replace(role, steps=(*role.steps, Signal(0, 0, 1))) if works else role

        def edited(launch: Launch) -> Launch:
            return replace(launch, roles=tuple(signalling(role) for role in launch.roles))

        return replace(plan, ranks=tuple(tuple(edited(launch) for launch in rank) for rank in plan.ranks))

    monkeypatch.setattr(module, "lower", lowered)
    small = scaled(spec, FUSED)
    roles = {role.name: role.blocks for launch in small.plan.ranks[0] for role in launch.roles}
    assert roles["comm.0"] == roles["comm.1"] == 2
    if counted:
        assert roles["work"] == lower(replace(small.spec, topology=_few_sms(spec.topology, 6)),
                                      small.schedule).ranks[0][0].roles[-1].blocks == 4
        assert small.plan.sm_share == 8
    else:
        assert (roles["work"], small.plan.sm_share) == (WORK_BLOCKS, spec.topology.sm_share)


def test_a_plan_lowered_on_few_sms_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_signals", lambda role: True)
    emulation = emulate(ag_gemm(), FUSED)
    assert emulation.ok, emulation.report


def test_tiles_that_span_shards_do_so_in_the_stand_in() -> None:
    spec = ag_gemm((512, 10240, 8192), ranks=8)
    wide = replace(FUSED, chunk_rows=64, block_m=128, depth=1, num_comm_blocks=2)
    for schedule in (wide, replace(wide, overlap="none", chunk_rows=0)):
        found = scaled(spec, schedule)
        assert found.shrunk
        assert spanned(found.spec, found.schedule) == spanned(spec, schedule) > 1
