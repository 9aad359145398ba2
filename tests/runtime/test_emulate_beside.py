"""Sums beside products in the emulator: any number of ranks, even and uneven shards, every way that parts travel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import gemm_rs

from tilescale.runtime.emulate import Conditions, emulate
from tilescale.schedules.schedule import Schedule

SCATTER = Schedule(algorithm="scatter", overlap="fused", compute="generated", chunk_rows=64, chunk_order="chunk_major",
                   sum_blocks=2, block_m=64, block_n=128, block_k=64, num_stages=3, raster_group=8)
SUMS = {"scatter": SCATTER, "two_shot": replace(SCATTER, algorithm="two_shot", direction="pull"),
        "one_shot": replace(SCATTER, algorithm="one_shot", direction="pull")}
OWNERS = {"scatter": SCATTER, "direct": replace(SCATTER, algorithm="direct", direction="pull")}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", SUMS)
def test_whole_sums_are_right_and_conform(name: str, ranks: int) -> None:
    for rows in (128 * ranks, 100 * ranks - 3):
        spec = gemm_rs((rows, 72, 64 * ranks), ranks, out="Replicate")
        run = emulate(spec, SUMS[name], conditions=Conditions(late_rank=1))
        assert run.ok, run.report


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", OWNERS)
def test_sums_of_owners_are_right_and_conform(name: str, ranks: int) -> None:
    for rows in (128 * ranks, 100 * ranks - 3):
        run = emulate(gemm_rs((rows, 72, 64 * ranks), ranks), OWNERS[name], conditions=Conditions(late_rank=0))
        assert run.ok, run.report


def test_epilogues_follow_sums_beside() -> None:
    for then in (("bias", "gelu"), ("add_rmsnorm",)):
        run = emulate(gemm_rs((400, 136, 256), 4, out="Replicate", then=then), SCATTER)
        assert run.ok, run.report
