"""ag_gemm that returns what it gathers, emulated: both outputs of every rank, conforming to what was proved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import ag_gemm
from support import scaled as with_scales

from tilescale.runtime.emulate import Run, emulate
from tilescale.runtime.emulator import run_isolated
from tilescale.runtime.scaled import scaled
from tilescale.schedules.schedule import Schedule

FUSED = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=1, num_comm_blocks=2, block_m=64, block_n=128,
                 block_k=64, num_stages=3, raster_group=8)
ENGINE = {"transport": "copy_engine", "num_comm_blocks": 0}
LIBRARY = {"compute": "library", "block_m": 0, "block_n": 0, "block_k": 0, "num_stages": 0, "raster_group": 0}
SCHEDULES = {
    "fused": FUSED, "fused pull": replace(FUSED, direction="pull"), "fused tma": replace(FUSED, transport="tma"),
    "fused engine": replace(FUSED, **ENGINE), "fused engine pull": replace(FUSED, direction="pull", **ENGINE),
    "chunked": replace(FUSED, overlap="chunked"), "chunked pull": replace(FUSED, overlap="chunked", direction="pull"),
    "chunked library engine": replace(FUSED, overlap="chunked", **ENGINE, **LIBRARY),
    "library": replace(FUSED, overlap="none", chunk_rows=0, **LIBRARY),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_both_outputs_are_right_on_two_ranks(name: str) -> None:
    found = emulate(ag_gemm((208, 304, 88), 2, gathered=True), SCHEDULES[name], seed=len(name))
    assert found.ok, found.report


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_more_ranks(ranks: int) -> None:
    spec = ag_gemm((72 * ranks, 24 * ranks, 72), ranks, gathered=True)
    for seed, name in enumerate(("fused", "fused pull", "library")):
        found = emulate(spec, SCHEDULES[name], seed=seed)
        assert found.ok, found.report


@pytest.mark.parametrize("kind", ["tensor", "rowcol", "block"])
def test_what_is_gathered_is_not_scaled(kind: str) -> None:
    spec = with_scales(ag_gemm((128, 256, 128), 2, gathered=True, dtype="float8_e4m3fn", out_dtype="bfloat16"), kind)
    found = emulate(spec, replace(FUSED, block_k=128), seed=len(kind))
    assert found.ok, found.report


def test_a_wrong_element_of_the_second_output_is_named() -> None:
    spec = ag_gemm((208, 304, 88), 2, gathered=True)
    run = Run(scaled(spec, FUSED), 0, "lazy", ())
    report = run_isolated([run.job])[0]
    assert run.judge(report) == []
    node = next(node for node, rank, call, wanted in run.reads if wanted.name == "gathered" and (rank, call) == (1, 2))
    report.seen[node] = report.seen[node][:2] + b"\x7f\x7f" + report.seen[node][4:]
    lines = run.judge(report)
    assert len(lines) == 1
    assert lines[0].startswith("call 2 rank 1: gathered[0, 1] is ")
