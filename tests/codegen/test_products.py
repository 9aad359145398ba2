"""Generated products without communication: every body and every way out of it compiles without spills, is emulated right
and breaks no static rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from product_support import between_two, there_and_back
from support import local_gemm, topology

from tilescale.codegen.cache import Binary
from tilescale.codegen.compile import Compiler, Source
from tilescale.codegen.emit import emit
from tilescale.codegen.rules import check_kernels
from tilescale.runtime.emulate import USUAL, Run, emulate
from tilescale.runtime.emulator import run_isolated
from tilescale.runtime.scaled import Scaled
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec, matmul
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import FullCol, FullRow, Partial, Replicate

BASE = Schedule(compute="generated", block_m=128, block_n=256, block_k=64, num_stages=4, raster_group=8)
SMALL = replace(BASE, block_m=16, block_n=64, block_k=128, num_stages=5, raster_group=4)
MAIN = (4096, 1280, 8192)
CASES: dict[str, tuple[Spec, Schedule]] = {
    "two warpgroups": (local_gemm(MAIN), BASE),
    "one warpgroup": (local_gemm(MAIN), replace(BASE, block_m=64, block_n=64, num_stages=7)),
    "128 rows a warpgroup": (local_gemm(MAIN), replace(BASE, block_m=256, block_n=192, num_stages=3)),
    "32-byte chunks": (local_gemm(MAIN), replace(BASE, block_n=112, num_stages=6)),
    "64-byte chunks, row-major B": (local_gemm(MAIN, order="row"), replace(BASE, block_n=96, num_stages=6)),
    "float32 out": (local_gemm(MAIN, dtype="float16", out_dtype="float32"), BASE),
    "rows not aligned to 16 bytes": (local_gemm((4096, 1284, 8192)), BASE),
    "odd columns": (local_gemm((4096, 1281, 8192)), BASE),
    "cluster of rows": (local_gemm(MAIN), replace(BASE, cluster_m=2)),
    "cluster of rows, row-major B": (local_gemm(MAIN, order="row"), replace(BASE, block_n=128, num_stages=6, cluster_m=2)),
    "contraction shared by 2": (local_gemm((512, 768, 4096)), replace(BASE, block_n=128, num_stages=6, split_k=2)),
    "contraction shared by 3, row-major B": (local_gemm((512, 768, 4096), order="row"),
                                             replace(BASE, block_m=64, block_n=144, num_stages=5, split_k=3)),
    "contraction shared by 8, float32 out": (local_gemm((512, 768, 4096), out_dtype="float32"),
                                             replace(BASE, block_m=64, block_n=64, num_stages=6, split_k=8)),
    "tiles shared by all": (local_gemm((512, 3696, 8192)), replace(BASE, block_n=128, num_stages=6, stream_k=1)),
    "two waves shared by all, row-major B": (local_gemm(MAIN, order="row"), replace(BASE, stream_k=2)),
    "tiles shared by clusters of rows": (local_gemm(MAIN), replace(BASE, cluster_m=2, stream_k=2)),
    "tiles of one warpgroup shared, float32 out": (
        local_gemm((4096, 1284, 4096), out_dtype="float32"),
        replace(BASE, block_m=64, block_n=96, num_stages=6, stream_k=2)),
    "256 rows shared, float32 out": (local_gemm(MAIN, out_dtype="float32"),
                                     replace(BASE, block_m=256, block_n=176, num_stages=3, stream_k=2)),
    "tiles shared, then bias and gelu": (local_gemm(MAIN, then=("bias", "gelu")), replace(BASE, stream_k=1)),
    "tiles of bytes shared": (local_gemm(MAIN, dtype="float8_e4m3fn", out_dtype="bfloat16"), replace(
        BASE, block_n=96, block_k=128, num_stages=4, stream_k=2)),
    "1 row": (local_gemm((1, 3584, 4096)), replace(SMALL, block_m=8)),
    "16 rows, parts": (local_gemm((16, 3584, 4096)), replace(SMALL, split_k=2)),
    "64 rows, two warpgroups": (local_gemm((64, 3584, 4096)), replace(SMALL, block_m=64, block_n=128, num_stages=3)),
    "few rows, float32 out, odd columns": (
        local_gemm((5, 3583, 4096), out_dtype="float32"), replace(SMALL, block_m=8, split_k=3)),
}


def test_every_body_compiles_for_sm_90a_without_spills_and_breaks_no_rule() -> None:
    kernels = [kernel for case in CASES.values() for kernel in emit(*case).kernels]
    with Compiler(workers=2) as compiler:
        found = compiler.compile([Source(kernel.text, kernel.entry, kernel.arch) for kernel in kernels])
    for kernel, binary in zip(kernels, found, strict=True):
        assert isinstance(binary, Binary), f"{binary}\n{kernel.text}"
        assert binary.spill_bytes == 0
    assert check_kernels(kernels) == ()


@pytest.mark.parametrize("adversary", ["lazy", "random", "eager"])
@pytest.mark.parametrize("name", CASES)
def test_every_body_is_emulated_right(name: str, adversary: str) -> None:
    emulation = emulate(*CASES[name], seed=1, adversary=adversary)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("views", [
    (FullRow, Replicate, FullRow), (Replicate, FullCol, FullCol), (FullCol, FullRow, Partial)])
def test_on_eight_ranks_each_multiplies_what_it_holds(views: tuple[object, object, object]) -> None:
    a, b, out = views
    spec = matmul(Tensor((1024, 4096), "bfloat16", a), Tensor((4096, 2048), "bfloat16", b, order="col"), out=out,
                  topology=topology(8))
    emulation = emulate(spec, replace(BASE, block_m=64, block_n=128, num_stages=6), seed=2)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("adversary", ["lazy", "random", "eager"])
def test_consumers_signal_once_a_block_after_all_their_stores(adversary: str) -> None:
    spec = between_two()
    plan = there_and_back(spec, BASE)
    for seed in range(4):
        run = Run(Scaled(spec, BASE, plan, False), seed, adversary, (), USUAL)
        report = run_isolated([run.job])[0]
        assert report.ok, f"{report.error} {report.deadlock}"
        assert run.judge(report) == []
    assert check_kernels(run.program.kernels) == ()
