"""Epilogues in the emulator: emitted texts, on every family of kernels that has results, and wrong ones are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilescale.codegen.host.build import INCLUDE
from tilescale.runtime.emulate import Conditions, Run, emulate, steps_for
from tilescale.runtime.emulator import STEP_LIMIT, run_isolated
from tilescale.runtime.scaled import scaled
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec, matmul, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow, Partial, Replicate

TILE = {"block_m": 64, "block_n": 128, "block_k": 64, "num_stages": 3, "raster_group": 8}
FUSED = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=1, num_comm_blocks=2, **TILE)
LIBRARY = Schedule(overlap="none", compute="library", num_comm_blocks=2)
LOCAL = Schedule(compute="generated", **{**TILE, "raster_group": 4})
COPY = Schedule(overlap="none", compute="generated", num_comm_blocks=2)
VIEWS = {"gemm": (FullRow, Replicate, FullRow), "ag_gemm": (FullRow, FullCol, FullCol),
         "gemm_rs": (FullCol, FullRow, FullRow), "gemm_ar": (FullCol, FullRow, Replicate)}


def product(op: str, *then: str, ranks: int = 2, rows: int = 80, columns: int = 72, **other: str) -> Spec:
    """Rows and columns of a rank; the contraction is short."""
    a, b, out = VIEWS[op]
    m, n = rows * ranks, columns * ranks
    return matmul(Tensor((m, 64 * ranks), "bfloat16", a), Tensor((64 * ranks, n), "bfloat16", b, "col"), out,
                  Topology.named("8xH200-NVSwitch", ranks=ranks), then=then, **other)


def summed(to: object, *then: str, ranks: int = 2, shape: tuple[int, ...] = (37, 20)) -> Spec:
    return redistribute(Tensor(shape, "bfloat16", Partial), to, Topology.named("8xH200-NVSwitch", ranks=ranks), then=then)


CASES: dict[str, tuple[Spec, Schedule]] = {
    "product": (product("gemm", "bias", "silu"), LOCAL),
    "product with odd columns": (product("gemm", "bias", "gelu", columns=68), LOCAL),
    "product with a shared contraction": (product("gemm", "bias", "gelu"), replace(LOCAL, split_k=2)),
    "product of few rows": (product("gemm", "gelu", "bias", rows=13),
                            replace(LOCAL, block_m=16, block_n=64, block_k=128)),
    "product accumulated in float32": (product("gemm", "accumulate", out_dtype="float32"), LOCAL),
    "ag_gemm": (product("ag_gemm", "bias", "silu"), FUSED),
    "ag_gemm accumulated": (product("ag_gemm", "accumulate", ranks=3), replace(FUSED, direction="pull")),
    "gemm_rs": (product("gemm_rs", "bias", "silu"), FUSED),
    "gemm_rs accumulated": (product("gemm_rs", "accumulate", ranks=3), replace(FUSED, algorithm="scatter",
                                                                               num_comm_blocks=0)),
    "gemm_rs behind the library": (product("gemm_rs", "bias", "gelu"), LIBRARY),
    "gemm_ar one_shot": (product("gemm_ar", "bias", "accumulate"), replace(FUSED, algorithm="one_shot")),
    "gemm_ar two_shot": (product("gemm_ar", "accumulate", "bias", ranks=3), replace(FUSED, algorithm="two_shot")),
    "all_reduce one_shot": (summed(Replicate, "bias", "silu"), replace(COPY, algorithm="one_shot")),
    "all_reduce two_shot": (summed(Replicate, "accumulate", "bias", ranks=3), replace(COPY, algorithm="two_shot")),
    "swiglu": (product("gemm", "swiglu", columns=80), LOCAL),
    "swiglu with a shared contraction": (product("gemm", "bias", "swiglu", columns=80), replace(LOCAL, split_k=2)),
    "swiglu of few rows": (product("gemm", "bias", "swiglu", rows=13, columns=80),
                           replace(LOCAL, block_m=16, block_n=64, block_k=128)),
    "swiglu in float32": (product("ag_gemm", "swiglu", columns=80, out_dtype="float32"), FUSED),
    "swiglu on three ranks": (product("ag_gemm", "bias", "swiglu", ranks=3, columns=80), replace(FUSED, direction="pull")),
    "gemm_ar normalised": (product("gemm_ar", "residual_rmsnorm", ranks=3), replace(FUSED, algorithm="two_shot")),
    "gemm_ar normalised everywhere": (product("gemm_ar", "residual_rmsnorm"), replace(FUSED, algorithm="one_shot")),
    "gemm_rs normalised": (product("gemm_rs", "residual_rmsnorm", ranks=3), replace(FUSED, direction="pull",
                                                                                   num_comm_blocks=0)),
    "gemm_rs normalised behind the library": (product("gemm_rs", "residual_rmsnorm"), LIBRARY),
    "all_reduce normalised": (summed(Replicate, "residual_rmsnorm", ranks=3), replace(COPY, algorithm="two_shot")),
    "all_reduce normalised, odd columns": (summed(Replicate, "residual_rmsnorm", shape=(5, 77)),
                                           replace(COPY, algorithm="one_shot")),
    "reduce_scatter normalised": (summed(FullRow, "residual_rmsnorm", ranks=4), COPY),
    "reduce_scatter": (summed(FullRow, "bias", "accumulate", ranks=3), COPY),
    "gemm_ar, both": (product("gemm_ar", "add_rmsnorm", ranks=3), replace(FUSED, algorithm="two_shot")),
    "gemm_ar, both everywhere": (product("gemm_ar", "add_rmsnorm", out_dtype="float32"),
                                 replace(FUSED, algorithm="one_shot")),
    "gemm_ar, both on eight": (product("gemm_ar", "add_rmsnorm", ranks=8, rows=16, columns=16),
                               replace(FUSED, overlap="chunked", algorithm="two_shot")),
    "gemm_rs, both": (product("gemm_rs", "add_rmsnorm", ranks=3), replace(FUSED, direction="pull", num_comm_blocks=0)),
    "gemm_rs, both of scattered parts": (product("gemm_rs", "add_rmsnorm", ranks=4, rows=30), replace(
        FUSED, algorithm="scatter", num_comm_blocks=0)),
    "gemm_rs, both behind the library": (product("gemm_rs", "add_rmsnorm"), LIBRARY),
    "all_reduce, both": (summed(Replicate, "add_rmsnorm", ranks=3), replace(COPY, algorithm="two_shot")),
    "all_reduce, both pulled": (summed(Replicate, "add_rmsnorm", ranks=4), replace(
        COPY, algorithm="two_shot", direction="pull")),
    "all_reduce, both by copy engines": (summed(Replicate, "add_rmsnorm"), replace(
        COPY, algorithm="two_shot", transport="copy_engine", num_comm_blocks=0)),
    "all_reduce, both of odd columns": (summed(Replicate, "add_rmsnorm", shape=(5, 77)),
                                        replace(COPY, algorithm="one_shot")),
    "all_reduce of less than a row a rank": (summed(Replicate, "bias", "silu", ranks=3, shape=(2, 40)),
                                             replace(COPY, algorithm="two_shot")),
    "all_reduce round a ring, of less than a row a rank": (summed(Replicate, "bias", ranks=4, shape=(1, 33)),
                                                           replace(COPY, algorithm="ring")),
    "all_reduce in packets, of less than a row a rank": (summed(Replicate, "bias", shape=(1, 32)), replace(
        COPY, algorithm="two_shot", protocol="ll")),
    "all_reduce whose last chunks are less than a row": (summed(Replicate, "bias", "accumulate", ranks=3, shape=(10, 20)),
                                                         replace(COPY, algorithm="two_shot", overlap="fused",
                                                                 chunk_rows=2)),
    "reduce_scatter of a vector": (summed(FullRow, "bias", "gelu", ranks=3, shape=(50,)), COPY),
    "reduce_scatter, both": (summed(FullRow, "add_rmsnorm", ranks=4), COPY),
    "reduce_scatter, both on eight": (summed(FullRow, "add_rmsnorm", ranks=8, shape=(17, 24)), COPY),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_right_and_reads_are_declared(name: str) -> None:
    spec, schedule = CASES[name]
    proof = verify(lower(spec, schedule))
    assert proof.ok, proof.counterexample
    for seed in range(2):
        found = emulate(spec, schedule, seed=seed)
        assert found.ok, found.report


def test_a_wrong_sum_beside_the_norm_is_named() -> None:
    run = Run(scaled(*CASES["reduce_scatter, both"]), 0, "lazy", ())
    report = run_isolated([run.job])[0]
    assert run.judge(report) == []
    node = next(node for node, rank, call, wanted in run.reads if wanted.name == "added" and (rank, call) == (1, 2))
    report.seen[node] = report.seen[node][:2] + b"\x7f\x7f" + report.seen[node][4:]
    line, = run.judge(report)
    assert line.startswith("call 2 rank 1: added[0, 1] is ")


EDITS = {
    "gate and up exchanged": ("silu(acc[8 * j + e]) * acc[8 * j + 4 + e]", "silu(acc[8 * j + 4 + e]) * acc[8 * j + e]"),
    "a residual left out": ("Addend<kResidual, T>::template apply<kCount>(call, at, values);", ""),
    "gamma of the first columns": ("base[kGamma], column, (u32)kCount", "base[kGamma], 0u, (u32)kCount"),
    "a bias of the wrong column": ("at.column, at.live, added", "at.column + 1u, at.live, added"),
    "an addend of the first row": ("at.element, at.live, added", "at.column, at.live, added"),
    "no exponential": ("1.f + exponential(-x)", "1.f"),
    "a coarse error function": ("0.70710678f", "0.75f"),
    "columns of the sum": ("(u32)(first % results.columns)", "(u32)(element % results.columns)"),
}
FOUND_BY = {"gate and up exchanged": "swiglu", "a residual left out": "all_reduce normalised",
            "gamma of the first columns": "gemm_rs normalised behind the library",
            "a bias of the wrong column": "product", "an addend of the first row": "product accumulated in float32",
            "no exponential": "product", "a coarse error function": "product of few rows",
            "columns of the sum": "all_reduce two_shot"}


@pytest.mark.parametrize("name", EDITS)
def test_wrong_epilogues_are_found(name: str, tmp_path: Path) -> None:
    old, new = EDITS[name]
    text = (INCLUDE / "tilescale" / "epilogue.cuh").read_text()
    assert text.count(old) >= 1
    folder = tmp_path / "tilescale"
    folder.mkdir()
    for file in (INCLUDE / "tilescale").iterdir():
        (folder / file.name).write_text(text.replace(old, new) if file.name == "epilogue.cuh" else file.read_text())
    assert not emulate(*CASES[FOUND_BY[name]], seed=1, include_dirs=[tmp_path]).ok


def test_a_long_run_on_many_ranks_is_not_taken_for_one_that_never_ends() -> None:
    spec = product("gemm_ar", "residual_rmsnorm", ranks=8, rows=104, columns=19)
    schedule = Schedule(transport="copy_engine", algorithm="one_shot", overlap="none", compute="generated", **TILE)
    emulation = emulate(spec, schedule)
    assert emulation.ok, emulation.report
    assert emulation.steps > STEP_LIMIT


def test_calls_bytes_and_meetings_of_a_plan_say_how_long_it_may_run() -> None:
    ring = Schedule(algorithm="ring", overlap="fused", compute="generated", chunk_rows=64, num_comm_blocks=32)
    spec = summed(Replicate, ranks=8, shape=(8, 512))
    plan = lower(spec, ring)
    assert steps_for(plan, 5) == 5 * steps_for(plan, 1)
    taken = emulate(spec, ring, conditions=Conditions(calls=1)).steps
    assert taken > STEP_LIMIT / 6  # of few bytes
    assert 2 * taken < steps_for(plan, 1)
