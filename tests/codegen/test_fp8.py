"""Products of one-byte operands: every body compiles without spills and is emulated right, on every number of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import ag_gemm, gemm_rs, local_gemm, routed

from tilescale.codegen.cache import Binary
from tilescale.codegen.compile import Compiler, Source
from tilescale.codegen.emit import emit
from tilescale.codegen.rules import check_kernels
from tilescale.errors import ScheduleError, SpecError
from tilescale.runtime.emulate import emulate
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.spec.op import Spec

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
BASE = Schedule(compute="generated", block_m=128, block_n=128, block_k=128, num_stages=4, raster_group=8)
FEW = replace(BASE, block_m=16, block_n=64, num_stages=5, raster_group=4)
FUSED = replace(BASE, block_m=64, num_stages=3, overlap="fused", chunk_rows=64, depth=2, num_comm_blocks=4)
SCATTER = replace(FUSED, algorithm="scatter", depth=1, num_comm_blocks=0)
MAIN = (4096, 1280, 8192)
CASES: dict[str, tuple[Spec, Schedule]] = {
    "two warpgroups": (local_gemm(MAIN, dtype=E4M3), BASE),
    "as many sums as registers hold": (local_gemm(MAIN, dtype=E4M3), replace(BASE, block_n=192)),
    "one warpgroup": (local_gemm(MAIN, dtype=E5M2), replace(BASE, block_m=64, block_n=96, num_stages=7)),
    "float32 out": (local_gemm(MAIN, dtype=E4M3, out_dtype="float32"), BASE),
    "cluster of rows": (local_gemm(MAIN, dtype=E4M3), replace(BASE, cluster_m=2)),
    "contraction shared by 2": (local_gemm((512, 768, 4096), dtype=E4M3), replace(BASE, split_k=2, num_stages=5)),
    "few rows": (local_gemm((16, 3584, 4096), dtype=E4M3), FEW),
    "few rows, two sums a stage, parts": (
        local_gemm((16, 3584, 4096), dtype=E4M3), replace(FEW, block_k=256, num_stages=3, split_k=2)),
    "64 rows, four sums a stage": (
        local_gemm((64, 3584, 4096), dtype=E4M3), replace(FEW, block_m=64, block_n=128, block_k=512, num_stages=3)),
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


EXPERTS = replace(BASE, num_comm_blocks=4, num_stages=3, overlap="fused", depth=2)


def of_experts(op: str, kind: str | None, then: tuple[str, ...] = ()) -> tuple[Spec, Schedule]:
    """The largest tile that there is, in one kernel with what is sent."""
    spec = routed(op, 2, hidden=400, columns=400, experts=8, dtype=E4M3, order="col", scales=kind, then=then)
    return spec, replace(EXPERTS, block_n=128 if then or kind == "block" else 192)


def test_bodies_of_experts_compile_for_sm_90a_without_spills_and_break_no_rule() -> None:
    kinds = (None, "tensor", "rowcol", "block")
    cases = [of_experts(op, kind) for op in ("dispatch_gemm", "gemm_combine") for kind in kinds]
    cases += [of_experts("dispatch_gemm", kind, ("bias", "swiglu")) for kind in kinds[1:]]
    kernels = [kernel for case in cases for kernel in emit(*case).kernels]
    with Compiler(workers=2) as compiler:
        found = compiler.compile([Source(kernel.text, kernel.entry, kernel.arch) for kernel in kernels])
    for kernel, binary in zip(kernels, found, strict=True):
        assert isinstance(binary, Binary), f"{binary}\n{kernel.text}"
        assert binary.spill_bytes == 0
    assert check_kernels(kernels) == ()


def between_ranks(world: int) -> dict[str, tuple[Spec, Schedule]]:
    """Contractions with a tail on every rank."""
    summed = (128 * world, 256, 160 * world)
    return {
        "ag_gemm": (ag_gemm((128 * world, 128 * world, 272), world, dtype=E4M3), FUSED),
        "ag_gemm pulled by tma": (ag_gemm((128 * world, 128 * world, 272), world, dtype=E5M2),
                                  replace(FUSED, transport="tma", direction="pull")),
        "gemm_rs": (gemm_rs(summed, world, order="col", dtype=E4M3), FUSED),
        "gemm_rs scatter": (gemm_rs(summed, world, order="col", dtype=E4M3), SCATTER),
        "gemm_ar": (gemm_rs(summed, world, order="col", dtype=E4M3, out="Replicate"), replace(FUSED, algorithm="two_shot")),
    }


@pytest.mark.parametrize("world", [2, 3, 4, 8])
@pytest.mark.parametrize("name", between_ranks(2))
def test_between_ranks_products_are_emulated_right(name: str, world: int) -> None:
    emulation = emulate(*between_ranks(world)[name], seed=world)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("spec", [ag_gemm(dtype=E4M3), gemm_rs(dtype=E4M3, order="col"), local_gemm(MAIN, dtype=E4M3)],
                         ids=lambda spec: spec.op)
def test_spaces_hold_tiles_whose_sums_fit_twice(spec: Spec) -> None:
    found = space(spec).schedules
    assert found
    assert {s.compute for s in found} == {"generated"}
    assert {s.block_k for s in found} == {128}
    assert max(s.block_m * s.block_n for s in found) == 128 * 192


def test_a_row_major_b_is_refused_with_the_remedy() -> None:
    spec = gemm_rs(dtype=E4M3, order="row")
    found = space(spec)
    assert found.feasible == 0
    assert "break fp8_k_major (wgmma reads float8 operands along K: declare B with order='col'" in found.explain_empty()
    with pytest.raises(ScheduleError, match=r'along K.*B is .*declare B with order="col"'):
        lower(spec, FUSED)


def test_stages_of_other_depths_and_two_types_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"every 128 of K; got: block_k=64; set block_k=128"):
        lower(local_gemm(MAIN, dtype=E4M3), replace(BASE, block_k=64))
    with pytest.raises(ScheduleError, match=r"block_k=256; set block_k=128"):
        lower(local_gemm(MAIN, dtype=E4M3), replace(BASE, block_k=256))
    with pytest.raises(SpecError, match="can be multiplied"):
        local_gemm(MAIN, dtype="uint8")
