"""Products before sm_90, by mma.sync behind cp.async: every body compiles for sm_80 without spills, is emulated right on
one rank and several, breaks no static rule; spaces say what is not to be had there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import ag_gemm, contraction, gemm_rs

from tilescale.codegen.cache import Binary
from tilescale.codegen.compile import Compiler, Source
from tilescale.codegen.emit import emit
from tilescale.codegen.rules import check_kernels
from tilescale.errors import ScheduleError
from tilescale.runtime.emulate import emulate
from tilescale.schedules import tile
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec, matmul
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import Replicate

MACHINE = Topology.named("4xA100-NVLink")


def alone(shape: tuple[int, int, int], order: str = "col", dtype: str = "bfloat16", out_dtype: str | None = None,
          then: tuple[str, ...] = ()) -> Spec:
    m, n, k = shape
    return matmul(Tensor((m, k), dtype, Replicate), Tensor((k, n), dtype, Replicate, order=order), out=Replicate,
                  topology=MACHINE.with_ranks(1), out_dtype=out_dtype, then=then)


BASE = Schedule(compute="generated", block_m=128, block_n=128, block_k=64, num_stages=4, raster_group=8)
FUSED = replace(BASE, overlap="fused", chunk_rows=256, depth=2, num_comm_blocks=4)
LARGE = {"block_n": 256, "num_stages": 3}
MAIN = (4096, 1280, 8192)
LOCAL: dict[str, tuple[Spec, Schedule]] = {
    "eight warps": (alone(MAIN), BASE),
    "eight warps, row-major B": (alone(MAIN, order="row"), replace(BASE, **LARGE)),
    "four by two warps": (alone(MAIN), replace(BASE, block_m=256, num_stages=3)),
    "four warps, float16 to float32": (alone(MAIN, dtype="float16", out_dtype="float32"),
                                       replace(BASE, block_m=64, block_n=96)),
    "48 columns a warp, row-major B": (alone(MAIN, order="row"), replace(BASE, block_m=64, block_n=192, num_stages=3)),
    "slabs of 64 columns, row-major B": (alone(MAIN, order="row"), replace(BASE, block_n=96)),
    "odd columns": (alone((4096, 1281, 8192)), BASE),
    "few rows": (alone((5, 1280, 8192)), replace(BASE, block_m=64, block_n=64)),
    "then bias and swiglu": (alone(MAIN, then=("bias", "swiglu")), BASE),
    "then bias and gelu": (alone(MAIN, then=("bias", "gelu")), replace(BASE, block_m=64)),
}
FEW: dict[str, Schedule] = {
    "peer_copy push": FUSED,
    "peer_copy pull": replace(FUSED, direction="pull", chunk_order="chunk_major"),
    "copy_engine push": replace(FUSED, transport="copy_engine", num_comm_blocks=0),
    "copies, then products": replace(FUSED, overlap="none", chunk_rows=0, depth=1),
    "on streams": replace(FUSED, overlap="chunked"),
}
SUMS: dict[str, tuple[str, Schedule]] = {
    "scatter": ("FullRow", replace(FUSED, algorithm="scatter", depth=1, num_comm_blocks=0)),
    "parts": ("FullRow", FUSED),
    "two_shot": ("Replicate", replace(FUSED, algorithm="two_shot")),
}


def test_every_body_compiles_for_sm_80_without_spills_and_breaks_no_rule() -> None:
    gathers = [(ag_gemm(on=MACHINE), schedule) for schedule in FEW.values()]
    sums = [(gemm_rs(out=out, on=MACHINE), schedule) for out, schedule in SUMS.values()]
    cases = (*LOCAL.values(), *gathers, *sums, (gathers[0][0], replace(FUSED, **LARGE)))
    kernels = list(dict.fromkeys(kernel for case in cases for kernel in emit(*case).kernels))
    assert {kernel.arch for kernel in kernels} == {"sm_80"}
    with Compiler(workers=2) as compiler:
        found = compiler.compile([Source(kernel.text, kernel.entry, kernel.arch) for kernel in kernels])
    for kernel, binary in zip(kernels, found, strict=True):
        assert isinstance(binary, Binary), f"{binary}\n{kernel.text}"
        assert binary.spill_bytes == 0
    assert check_kernels(kernels) == ()


@pytest.mark.parametrize("adversary", ["lazy", "random", "eager"])
@pytest.mark.parametrize("name", LOCAL)
def test_every_body_is_emulated_right(name: str, adversary: str) -> None:
    emulation = emulate(*LOCAL[name], seed=1, adversary=adversary)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", FEW)
def test_products_wait_for_what_is_gathered(name: str, ranks: int) -> None:
    spec = ag_gemm((256 * ranks, 128 * ranks, 152), ranks, on=MACHINE.with_ranks(ranks))
    schedule = replace(FEW[name], block_m=64, block_n=64, chunk_rows=FEW[name].chunk_rows and 64)
    assert verify(lower(spec, schedule)).ok
    emulation = emulate(spec, schedule, seed=ranks)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", SUMS)
def test_products_are_summed_over_ranks(name: str, ranks: int) -> None:
    out, schedule = SUMS[name]
    spec = gemm_rs((128 * ranks, 128, 72 * ranks), ranks, out=out, on=MACHINE.with_ranks(ranks))
    schedule = replace(schedule, block_m=64, block_n=64, chunk_rows=64)
    assert verify(lower(spec, schedule)).ok
    emulation = emulate(spec, schedule, seed=ranks)
    assert emulation.ok, emulation.report


def test_on_eight_ranks_of_one_gpu() -> None:
    topology = Topology.named("8xH200-NVSwitch")
    topology = replace(topology, gpu=replace(topology.gpu, arch="sm_80", smem_bytes=MACHINE.gpu.smem_bytes))
    spec = ag_gemm((1024, 512, 72), 8, on=topology)
    emulation = emulate(spec, replace(FUSED, block_m=64, block_n=64, chunk_rows=64), seed=3)
    assert emulation.ok, emulation.report


def test_spaces_hold_what_the_gpu_can_do() -> None:
    spec = ag_gemm(on=MACHINE)
    found = space(spec)
    generated = [s for s in found if s.compute == "generated"]
    assert {s.transport for s in generated} == {"peer_copy", "copy_engine"}
    assert {s.overlap for s in generated} == {"none", "chunked", "fused"}
    assert found.rejected["transport_arch"] > 0
    assert all(tile.shared_bytes(spec, s) <= 166912 for s in generated)
    local = [s for s in space(alone(MAIN)) if s.compute == "generated"]
    assert {s.block_m for s in local} == {64, 128, 256}
    assert {(s.cluster_m, s.split_k, s.stream_k) for s in local} == {(1, 1, 0)}
    assert all(tile.accumulators(alone(MAIN), s) <= 128 for s in local)


def test_what_only_wgmma_multiplies_is_refused_with_a_reason() -> None:
    topology = MACHINE.with_ranks(2)
    spec = contraction("weights", (192, 192, 384), 2)
    spec = replace(spec, topology=topology)
    assert not [s for s in space(spec) if s.compute == "generated"]
    with pytest.raises(ScheduleError, match="gathered are multiplied by wgmma"):
        lower(spec, replace(FUSED, block_m=64, chunk_rows=64))
    with pytest.raises(ScheduleError, match="cluster_m=2"):
        lower(alone(MAIN), replace(BASE, cluster_m=2))
    with pytest.raises(ScheduleError, match="warps share tiles"):
        lower(alone(MAIN), replace(BASE, block_n=80))
