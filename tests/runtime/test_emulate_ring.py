"""Rings are emulated right and do what their plans declare; sums are those of float32, rounded once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import ag_gemm, all_gather, gemm_rs, reduction
from support import scaled as with_scales

from tilescale.codegen.emit import emit
from tilescale.codegen.rules import check_kernels
from tilescale.runtime.emulate import Conditions, emulate
from tilescale.runtime.scaled import scaled
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullRow

RING = Schedule(algorithm="ring", overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4)
NONE = replace(RING, overlap="none", chunk_rows=0, depth=1)
TILE = {"block_m": 64, "block_n": 128, "block_k": 64, "num_stages": 3, "raster_group": 8}
BYTES = {"order": "col", "dtype": "float8_e4m3fn", "out_dtype": "bfloat16"}
ENGINE = {"transport": "copy_engine", "num_comm_blocks": 0}


def cases(ranks: int) -> dict[str, tuple[Spec, Schedule]]:
    on = Topology.shared_gpu(ranks=ranks)
    return {
        "all_gather": (all_gather((150 * ranks, 24), ranks), RING),
        "all_gather by tma": (
            all_gather((150 * ranks, 24), ranks), replace(RING, transport="tma", chunk_order="chunk_major")),
        "all_gather by engine": (all_gather((150 * ranks, 24), ranks), replace(RING, overlap="chunked", **ENGINE)),
        "ag_gemm": (ag_gemm((72 * ranks, 136 * ranks, 72), ranks, on=on), replace(RING, num_comm_blocks=2, **TILE)),
        "ag_gemm by engine": (
            ag_gemm((72 * ranks, 136 * ranks, 72), ranks), replace(RING, compute="library", overlap="chunked", **ENGINE)),
        "reduce_scatter uneven": (reduction((20 * ranks - 1, 24), ranks, to=FullRow), NONE),
        "reduce_scatter of floats": (reduction((9, 20), ranks, to=FullRow, dtype="float32", on=on), NONE),
        "all_reduce": (reduction((64, 100), ranks), RING),
        "all_reduce chunk by chunk": (reduction((64, 100), ranks), replace(RING, depth=1, chunk_order="chunk_major")),
        "all_reduce of odd sizes": (reduction((7, 3), ranks), NONE),
        "gemm_rs": (gemm_rs((30 * ranks + 1, 136, 72 * ranks), ranks), replace(NONE, **TILE)),
        "gemm_ar of halves": (
            gemm_rs((33, 136, 72 * ranks), ranks, out="Replicate", partial_dtype="bfloat16"),
            replace(NONE, compute="library")),
        "reduce_scatter, then bias and addend": (
            reduction((20 * ranks - 1, 24), ranks, to=FullRow, then=("bias", "accumulate")), NONE),
        "all_reduce, then addend and bias": (reduction((64, 100), ranks, then=("accumulate", "bias")), RING),
        "all_reduce of odd sizes, then silu": (reduction((7, 3), ranks, then=("bias", "silu")), NONE),
        "gemm_rs, then gelu": (gemm_rs((30 * ranks + 1, 136, 72 * ranks), ranks, then=("bias", "gelu")),
                               replace(NONE, **TILE)),
        "gemm_ar of halves, then addend": (
            gemm_rs((33, 136, 72 * ranks), ranks, out="Replicate", partial_dtype="bfloat16", then=("accumulate",)),
            replace(NONE, compute="library")),
        "gemm_rs scaled, then bias": (
            with_scales(gemm_rs((24 * ranks, 128, 128 * ranks), ranks, then=("bias",), **BYTES), "rowcol"),
            replace(NONE, **{**TILE, "block_k": 128})),
        "gemm_ar scaled by blocks": (
            with_scales(gemm_rs((24 * ranks, 128, 128 * ranks), ranks, out="Replicate", **BYTES), "block"),
            replace(NONE, **{**TILE, "block_k": 128})),
    }


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", cases(2))
def test_every_kind_is_right_and_conforms(name: str, ranks: int) -> None:
    spec, schedule = cases(ranks)[name]
    assert check_kernels(emit(spec, schedule).kernels) == ()
    emulation = emulate(spec, schedule, seed=ranks + len(name))
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("late", [0, 2])
def test_a_late_rank_and_counters_that_wrap_change_nothing(late: int) -> None:
    for spec in (all_gather((390, 24), 3), reduction((100, 24), 3, to=FullRow), reduction((100, 24), 3)):
        found = emulate(spec, NONE, adversary="eager", conditions=Conditions(5, 2**32 - 2, late))
        assert found.ok, found.report


@pytest.mark.parametrize("spec", [reduction(), reduction(to=FullRow, ranks=8), all_gather(), reduction((4099, 4097), 3)],
                         ids=lambda spec: spec.label)
def test_stand_ins_run_the_same_binaries(spec: Spec) -> None:
    schedule = replace(RING, chunk_rows=256)
    small = scaled(spec, schedule)
    assert small.shrunk
    assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, schedule).binary_digest


def test_the_last_bytes_of_a_rank_are_charged_to_its_link() -> None:
    """Sums on their way name sender and receiver in their row of the table; those that stay have none to name."""
    from tilescale.codegen.table import KIND_SUM, STEP, SUM_COMPLETED

    program = emit(reduction((64, 100), 4), NONE)
    (launch,) = program.ranks[1]
    rows = [STEP.unpack_from(bytes.fromhex(launch.steps), at) for at in range(0, len(launch.steps) // 2, STEP.size)]
    sums = [(row[4], row[5], row[-1]) for row in rows if row[0] == KIND_SUM]
    assert sums[-2:] == [(1, 1, SUM_COMPLETED), (1, 2, SUM_COMPLETED)]
    assert {(sender, receiver) for sender, receiver, _ in sums[:-2]} == {(1, 2)}
