"""Every kernel family: compiles to a cubin without spills, and is emulated right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support import CONTRACTIONS, ag_gemm, all_gather, contraction, gemm_rs, in_blocks, reduction, routed

from tilescale.codegen.cache import Binary
from tilescale.codegen.compile import Compiler, Source
from tilescale.codegen.emit import emit
from tilescale.codegen.program import Kernel
from tilescale.runtime.emulate import emulate
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullRow

SPECS = {
    "ag_gemm": ag_gemm(), "ag_gemm_row": ag_gemm(order="row"), "ag_gemm_fp16": ag_gemm(dtype="float16", ranks=2),
    "ag_gemm_fp32_out": ag_gemm(out_dtype="float32", ranks=2), "all_gather": all_gather(),
    "gemm_rs": gemm_rs(ranks=8), "gemm_ar of odd sizes": gemm_rs((1, 57, 256), 2, out="Replicate", order="col"),
    **{name: contraction(name, ranks=2) for name in CONTRACTIONS}, "summa": in_blocks(4, (1024, 1024, 1024)),
    "all_reduce": reduction(ranks=3), "reduce_scatter of odd sizes": reduction((67, 33), 2, to=FullRow, dtype="float16"),
    "dispatch": routed("dispatch", 8, hidden=7168, experts=256, top_k=8),
    "dispatch of odd sizes": routed("dispatch", 2, hidden=77, experts=64, top_k=6, dtype="float16"),
    "dispatch before products": routed("dispatch_gemm", 8, hidden=7168, experts=256, top_k=8, columns=4096),
    "dispatch before products, fp16": routed("dispatch_gemm", 2, experts=8, dtype="float16", out_dtype="float32"),
    "dispatch before products, then bias and swiglu": routed(
        "dispatch_gemm", 8, hidden=7168, experts=256, top_k=8, columns=4096, then=("bias", "swiglu")),
    "products before combine": routed("gemm_combine", 8, hidden=2048, experts=256, top_k=8, columns=7168),
    "rounded products before combine": routed("gemm_combine", 2, experts=8, partial_dtype="bfloat16"),
    "combine": routed("combine", 8, hidden=7168, experts=256, top_k=8),
    "combine of odd sizes": routed("combine", 2, hidden=77, experts=64, top_k=6, dtype="float16"),
    "combine of floats": routed("combine", 4, experts=64, top_k=6, dtype="float32"),
}


def all_kernels() -> Iterator[Kernel]:
    seen = set()
    for spec in SPECS.values():
        structures = {}
        for schedule in space(spec):
            key = (schedule.transport, schedule.overlap, schedule.compute, schedule.block_m, schedule.block_n,
                   schedule.num_stages)
            structures.setdefault(key, schedule)
        for schedule in structures.values():
            for kernel in emit(spec, schedule).kernels:
                if kernel.digest not in seen:
                    seen.add(kernel.digest)
                    yield kernel


def test_every_kernel_compiles_for_sm_90a_without_spills() -> None:
    kernels = list(all_kernels())
    assert {kernel.entry for kernel in kernels} == {
        "tilescale_copy", "tilescale_fused", "tilescale_gemm", "tilescale_grouped", "tilescale_grouped_fused",
        "tilescale_moe", "tilescale_signal", "tilescale_sum"}
    with Compiler(workers=2) as compiler:
        found = compiler.compile([Source(kernel.text, kernel.entry, kernel.arch) for kernel in kernels])
    for kernel, binary in zip(kernels, found, strict=True):
        assert isinstance(binary, Binary), f"{binary}\n{kernel.text}"
        assert binary.cubin[:4] == b"\x7fELF"
        assert binary.spill_bytes == 0
        assert binary.registers <= 65536 // 256


BASE = Schedule(overlap="fused", compute="generated", chunk_rows=256, depth=2, num_comm_blocks=4, block_m=64,
                block_n=128, block_k=64, num_stages=3, raster_group=8)
LARGE = {"block_m": 128, "block_n": 256}
COPY = Schedule(overlap="fused", compute="generated", chunk_rows=256, depth=2, num_comm_blocks=4)
FAMILIES: dict[str, tuple[Spec, Schedule]] = {
    "copy peer_copy push": (all_gather(), COPY),
    "copy tma pull": (all_gather(), replace(COPY, transport="tma", direction="pull")),
    "copy engine push chunked": (all_gather(), replace(COPY, transport="copy_engine", overlap="chunked",
                                                       num_comm_blocks=0)),
    "copy of odd bytes": (all_gather((4096, 3)), COPY),
    "copy of int32": (all_gather((4096, 64), dtype="int32"), COPY),
    "gemm": (ag_gemm(), replace(BASE, overlap="none", chunk_rows=0, depth=1)),
    "gemm large tile": (ag_gemm(), replace(BASE, overlap="chunked", **LARGE)),
    "gemm B row-major": (ag_gemm(order="row"), replace(BASE, overlap="none", chunk_rows=0, depth=1, **LARGE)),
    "gemm fp16 to fp32": (ag_gemm(dtype="float16", out_dtype="float32"), replace(BASE, overlap="none", chunk_rows=0,
                                                                                 depth=1)),
    "fused peer_copy push": (ag_gemm(), BASE),
    "fused peer_copy pull": (ag_gemm(), replace(BASE, direction="pull", chunk_order="chunk_major")),
    "fused tma push row": (ag_gemm(order="row"), replace(BASE, transport="tma", **LARGE)),
    "fused tma pull symmetric": (ag_gemm(inputs="symmetric"), replace(BASE, transport="tma", direction="pull")),
    "fused copy engine push": (ag_gemm(), replace(BASE, transport="copy_engine", num_comm_blocks=0)),
    "fused copy engine pull": (ag_gemm(), replace(BASE, transport="copy_engine", num_comm_blocks=0, direction="pull")),
    "library chunked": (ag_gemm(), replace(BASE, overlap="chunked", compute="library", block_m=0, block_n=0, block_k=0,
                                           num_stages=0, raster_group=0)),
    "gemm_rs push": (gemm_rs(), replace(BASE, **LARGE)),
    "gemm_rs tma push": (gemm_rs(order="col"), replace(BASE, transport="tma")),
    "gemm_rs scatter": (gemm_rs(), replace(BASE, algorithm="scatter", depth=1, num_comm_blocks=0)),
    "gemm_rs pull": (gemm_rs(), replace(BASE, direction="pull", depth=1, num_comm_blocks=0)),
    "gemm_ar two_shot of odd sizes": (
        gemm_rs((5, 57, 192), 2, out="Replicate", order="col"),
        replace(BASE, algorithm="two_shot", overlap="none", chunk_rows=0, depth=1, num_comm_blocks=2)),
    "gemm_ar one_shot pull": (
        gemm_rs((17, 64, 256), out="Replicate"),
        replace(BASE, algorithm="one_shot", direction="pull", depth=1, num_comm_blocks=0)),
    "all_reduce one launch": (
        reduction((12, 40)), replace(COPY, algorithm="one_shot", overlap="none", chunk_rows=0, depth=1)),
    "all_reduce in place, many blocks": (
        reduction((12, 16), 5, inputs="symmetric"),
        replace(COPY, algorithm="two_shot", direction="pull", chunk_rows=64, depth=4, num_comm_blocks=16)),
    "all_reduce handed out in small copies": (  # of ten ranks, of which one has fewer bytes
        reduction((39, 48), 10, on=Topology.shared_gpu(ranks=10)), replace(
            COPY, algorithm="two_shot", direction="pull", overlap="none", chunk_rows=0, depth=1, num_comm_blocks=2)),
    "all_gather of small copies in the scale model": (
        all_gather((36, 200), 4), replace(COPY, overlap="none", chunk_rows=0, depth=1)),
    "reduce_scatter uneven": (reduction((67, 33), 3, to=FullRow, dtype="float16"), replace(COPY, chunk_rows=64)),
}


@pytest.mark.parametrize("adversary", ["lazy", "eager"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_emulated_right(name: str, adversary: str) -> None:
    spec, schedule = FAMILIES[name]
    emulation = emulate(spec, schedule, seed=1, adversary=adversary)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("direction", ["push", "pull"])
def test_other_worlds_are_emulated_right(ranks: int, direction: str) -> None:
    emulation = emulate(ag_gemm((96 * ranks, 128 * ranks, 128), ranks), replace(BASE, direction=direction,
                        chunk_rows=64, num_comm_blocks=2), seed=2)
    assert emulation.ok, emulation.report
