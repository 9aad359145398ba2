"""Products of several owners that are walked as one: which they are, and that they are emulated right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import ag_gemm, gemm_rs, scaled

from tilescale.codegen.emit import emit
from tilescale.codegen.table import KIND_GEMM, STEP
from tilescale.codegen.together import SHIFT, runs
from tilescale.runtime.emulate import emulate
from tilescale.runtime.scaled import scaled as small
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

TILE = {"block_m": 64, "block_n": 128, "block_k": 64, "num_stages": 3, "raster_group": 8}
BEHIND = Schedule(algorithm="scatter", compute="generated", **TILE)
BY_CHUNK = replace(BEHIND, overlap="fused", chunk_rows=64, chunk_order="chunk_major")
GATHERED = Schedule(compute="generated", num_comm_blocks=2, **TILE)
TALL = {"block_m": 128}


def walked(spec: Spec, schedule: Schedule, rank: int = 0) -> list[int]:
    """How many products are walked as one, in the order of the table of the launch that multiplies."""
    launch = next(each for each in emit(spec, schedule).ranks[rank] if each.name in ("work", "fused"))
    table = bytes.fromhex(launch.steps)
    rows = [STEP.unpack(table[at : at + STEP.size]) for at in range(0, len(table), STEP.size)]
    return [row[5] >> SHIFT for row in rows if row[0] == KIND_GEMM and row[5] >> SHIFT]


@pytest.mark.parametrize(("spec", "schedule", "wanted"), [
    (gemm_rs((384, 256, 384), 3), BEHIND, [3]),
    (gemm_rs((384, 256, 384), 3), BY_CHUNK, [2, 2, 2]),  # two chunks of both peers, the own two
    (gemm_rs((384, 256, 384), 3), replace(BY_CHUNK, chunk_order="peer_major"), []),
    (gemm_rs((768, 256, 384), 3), replace(BY_CHUNK, chunk_order="peer_major"), []),  # own chunks follow each other
    (gemm_rs((300, 256, 384), 3), BEHIND, [3]),
    (gemm_rs((299, 256, 384), 3), BEHIND, []),  # the owner in the middle has a row less
    (ag_gemm((384, 384, 128), 3), GATHERED, [3]),
    (ag_gemm((384, 384, 128), 3), replace(GATHERED, overlap="fused", chunk_rows=64), []),
    (gemm_rs((384, 256, 384), 3, on=Topology.named("4xA100-NVLink", ranks=3)), BEHIND, []),
], ids=lambda value: getattr(value, "label", str(value)))
def test_products_that_follow_each_other_are_walked_as_one(spec: Spec, schedule: Schedule, wanted: list[int]) -> None:
    assert walked(spec, schedule) == wanted


def test_ranks_walk_what_is_as_large_for_them() -> None:
    assert walked(gemm_rs((299, 256, 384), 3), BEHIND, rank=2) == [2, 1]


def test_own_products_stay_apart_where_they_hide_what_is_sent() -> None:
    spec = gemm_rs((192, 256, 384), 3)
    steps = list(next(launch for launch in lower(spec, BY_CHUNK).ranks[0] if launch.name == "work").steps)
    assert runs(BY_CHUNK, steps) == {0: 2, 2: 1}
    assert runs(BEHIND, steps[:3]) == {0: 3}


CASES = {
    "behind": (lambda ranks: gemm_rs((80 * ranks, 264, 64 * ranks), ranks), BEHIND),
    "behind, uneven": (lambda ranks: gemm_rs((80 * ranks - 1, 264, 64 * ranks), ranks, out="Replicate"), BEHIND),
    "two owners a tile": (lambda ranks: gemm_rs((64 * ranks, 264, 64 * ranks), ranks), replace(BEHIND, **TALL)),
    "two owners a tile, for all": (
        lambda ranks: gemm_rs((64 * ranks, 264, 64 * ranks), ranks, out="Replicate"), replace(BEHIND, **TALL)),
    "by chunk": (lambda ranks: gemm_rs((80 * ranks, 264, 64 * ranks), ranks), BY_CHUNK),
    "gathered": (lambda ranks: ag_gemm((80 * ranks, 256 * ranks, 128), ranks), GATHERED),
    "gathered, pulled": (lambda ranks: ag_gemm((80 * ranks, 256 * ranks, 128), ranks), replace(GATHERED, direction="pull")),
    "of float8, two owners a tile": (
        lambda ranks: scaled(gemm_rs((64 * ranks, 192, 256 * ranks), ranks, order="col", dtype="float8_e4m3fn"), "block"),
        replace(BEHIND, block_k=128, **TALL)),
}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", CASES)
def test_they_are_proved_and_emulated_right(name: str, ranks: int) -> None:
    declare, schedule = CASES[name]
    spec = declare(ranks)
    assert verify(lower(spec, schedule), cache=None).ok
    emulation = emulate(spec, schedule, seed=ranks)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("order", ["peer_major", "chunk_major"])
@pytest.mark.parametrize("chunk_rows", [64, 512])
def test_stand_ins_of_many_chunks_run_the_same_binaries(order: str, chunk_rows: int) -> None:
    spec, schedule = gemm_rs((8192, 8192, 28672), 4), replace(BY_CHUNK, chunk_order=order, chunk_rows=chunk_rows)
    found = small(spec, schedule)
    assert emit(found.spec, found.schedule, found.plan).binary_digest == emit(spec, schedule).binary_digest


def test_stand_ins_keep_owners_of_as_few_rows() -> None:
    spec, schedule = gemm_rs((512, 8192, 8192), 8), replace(BEHIND, block_n=256, num_stages=4, **TALL)
    found = small(spec, schedule)
    assert found.shrunk
    assert found.spec.inputs[0].sizes[0] == 512
    assert emit(found.spec, found.schedule, found.plan).binary_digest == emit(spec, schedule).binary_digest
