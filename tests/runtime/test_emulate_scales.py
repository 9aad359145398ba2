"""Scaled products of float8 in the emulator: every kind of scale, kernel and number of ranks; A7, small."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import ag_gemm, gemm_rs, local_gemm, scaled

from tilescale.codegen.cache import Binary
from tilescale.codegen.compile import Compiler, Source
from tilescale.codegen.emit import emit
from tilescale.codegen.rules import check_kernels
from tilescale.errors import ScheduleError
from tilescale.runtime.emulate import emulate
from tilescale.runtime.reference import NumpyArrays, scaled_load
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec
from tilescale.spec.result import Factor
from tilescale.spec.scales import KINDS

FP8 = "float8_e4m3fn"
BASE = Schedule(compute="generated", block_m=128, block_n=128, block_k=128, num_stages=4, raster_group=8)
FEW = replace(BASE, block_m=16, block_n=64, num_stages=5, raster_group=4)
FUSED = replace(BASE, block_m=64, num_stages=3, overlap="fused", chunk_rows=64, depth=2, num_comm_blocks=4)
SCATTER = replace(FUSED, algorithm="scatter", depth=1, num_comm_blocks=0)
MAIN = (4096, 1280, 8192)
LOCAL: dict[str, tuple[Spec, Schedule]] = {
    "tiles": (local_gemm(MAIN, dtype=FP8), BASE),
    "cluster of rows": (local_gemm(MAIN, dtype=FP8), replace(BASE, cluster_m=2)),
    "contraction shared by 2": (local_gemm((512, 768, 4096), dtype=FP8), replace(BASE, split_k=2, num_stages=5)),
    "few rows": (local_gemm((16, 3584, 4096), dtype=FP8), FEW),
    "few rows, parts": (local_gemm((16, 3584, 4096), dtype=FP8), replace(FEW, block_k=256, num_stages=3, split_k=2)),
}


def between_ranks(world: int) -> dict[str, tuple[Spec, Schedule]]:
    summed = (128 * world, 192, 256 * world)
    return {
        "ag_gemm": (ag_gemm((128 * world, 128 * world, 272), world, dtype=FP8), FUSED),
        "gemm_rs": (gemm_rs(summed, world, order="col", dtype=FP8), FUSED),
        "gemm_rs scatter": (gemm_rs(summed, world, order="col", dtype=FP8), SCATTER),
        "gemm_ar": (gemm_rs(summed, world, order="col", dtype=FP8, out="Replicate"), replace(FUSED, algorithm="two_shot")),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOCAL)
def test_scaled_products_are_emulated_right(name: str, kind: str) -> None:
    spec, schedule = LOCAL[name]
    emulation = emulate(scaled(spec, kind), schedule, seed=1)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("world", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", between_ranks(2))
def test_between_ranks_scaled_products_are_proved_and_emulated_right(name: str, kind: str, world: int) -> None:
    declared, schedule = between_ranks(world)[name]
    spec = scaled(declared, kind)
    proof = verify(lower(spec, schedule))
    assert proof.ok, proof.counterexample
    emulation = emulate(spec, schedule, seed=world)
    assert emulation.ok, emulation.report


def test_a7_small() -> None:
    """gemm_rs in fp8 on 8 ranks with a scale a row of A and a column of B, and what follows the sum sees scaled numbers."""
    spec = scaled(gemm_rs((256, 256, 1024), 8, order="col", dtype=FP8), "rowcol")
    for then in ((), ("bias", "silu")):
        emulation = emulate(replace(spec, then=then), FUSED, seed=7)
        assert emulation.ok, emulation.report


def test_every_kind_compiles_for_sm_90a_without_spills_and_breaks_no_rule() -> None:
    cases = [(scaled(spec, kind), schedule) for spec, schedule in LOCAL.values() for kind in KINDS]
    cases += [(scaled(gemm_rs(order="col", dtype=FP8), kind), FUSED) for kind in KINDS]
    cases.append((scaled(local_gemm(MAIN, dtype=FP8), "rowcol"), replace(BASE, block_n=192)))
    kernels = [kernel for case in cases for kernel in emit(*case).kernels]
    with Compiler(workers=2) as compiler:
        found = compiler.compile([Source(kernel.text, kernel.entry, kernel.arch) for kernel in kernels])
    for kernel, binary in zip(kernels, found, strict=True):
        assert isinstance(binary, Binary), f"{binary}\n{kernel.text}"
        assert binary.spill_bytes == 0
    assert check_kernels(kernels) == ()


def test_tiles_lie_in_one_column_of_block_scales() -> None:
    spec = scaled(local_gemm(MAIN, dtype=FP8), "block")
    found = space(spec)
    assert {128 % schedule.block_n for schedule in found.schedules} == {0}
    assert found.rejected["scale_columns"] > 0
    with pytest.raises(ScheduleError, match=r"128 wide; got: block_n=192; set block_n=64 or 128"):
        lower(spec, replace(BASE, block_n=192))


def test_a_reference_multiplies_what_operands_stand_for() -> None:
    """Scale of every element of A (2, 300) and B (300, 260), by its place."""
    scales = {
        "tensor": (np.array([2.0]), np.array([4.0])),
        "rowcol": (np.array([[1.0], [2.0]]), np.arange(260.0)[None]),
        "block": (np.arange(6.0).reshape(2, 3), np.arange(9.0).reshape(3, 3)),
    }
    for kind, (scale_a, scale_b) in scales.items():
        spec = scaled(local_gemm((2, 260, 300), dtype=FP8), kind)
        held = [np.ones((2, 300)), np.ones((300, 260)), scale_a, scale_b]
        load = scaled_load(spec, lambda factor, held=held: held[factor.operand], NumpyArrays())
        a, b = load(Factor(0, (0,))), load(Factor(1, (0,)))
        for row, column in ((0, 0), (1, 127), (1, 128), (0, 299)):
            wanted = {"tensor": 2, "rowcol": row + 1, "block": 3 * row + column // 128}[kind]
            assert a[row, column] == wanted
        for row, column in ((0, 0), (127, 128), (128, 127), (299, 259)):
            wanted = {"tensor": 4, "rowcol": column, "block": row // 128 * 3 + column // 128}[kind]
            assert b[row, column] == wanted
