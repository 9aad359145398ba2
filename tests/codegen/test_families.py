"""Every kernel family: compiles to a cubin without spills, and is emulated right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support import ag_gemm, all_gather

from tilescale.codegen.cache import Binary
from tilescale.codegen.compile import Compiler, Source
from tilescale.codegen.emit import emit
from tilescale.codegen.program import Kernel
from tilescale.runtime.emulate import emulate
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.spec.op import Spec

SPECS = {
    "ag_gemm": ag_gemm(), "ag_gemm_row": ag_gemm(order="row"), "ag_gemm_fp16": ag_gemm(dtype="float16", ranks=2),
    "ag_gemm_fp32_out": ag_gemm(out_dtype="float32", ranks=2), "all_gather": all_gather(),
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
        "tilescale_copy", "tilescale_fused", "tilescale_gemm", "tilescale_signal"}
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
