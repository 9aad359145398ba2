"""Products whose contraction is gathered, emulated: right, with exact integers, and conforming to what was proved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import CONTRACTIONS, contraction

from tilescale.codegen.emit import emit
from tilescale.runtime.emulate import emulate
from tilescale.runtime.scaled import scaled
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space

FUSED = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=1, num_comm_blocks=2, block_m=64, block_n=128,
                 block_k=64, num_stages=3, raster_group=8)
LARGE = {"block_m": 128, "block_n": 256}
AFTER = {"overlap": "none", "chunk_rows": 0}
ENGINE = {"transport": "copy_engine", "num_comm_blocks": 0}
TILELESS = {"block_m": 0, "block_n": 0, "block_k": 0, "num_stages": 0, "raster_group": 0}
SCHEDULES = {
    "fused push": FUSED, "fused pull": replace(FUSED, direction="pull", chunk_order="chunk_major"),
    "fused tma": replace(FUSED, transport="tma", **LARGE), "fused engine": replace(FUSED, **ENGINE),
    "fused engine pull": replace(FUSED, direction="pull", **ENGINE), "chunked": replace(FUSED, overlap="chunked"),
    "chunked pull": replace(FUSED, overlap="chunked", direction="pull", **LARGE), "after": replace(FUSED, **AFTER),
    "library": replace(FUSED, compute="library", **AFTER, **TILELESS),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_every_kind_of_schedule_is_right_on_two_ranks(name: str, schedule: str) -> None:
    """With tails in every dimension: of rows, of columns, and of every shard of the contraction."""
    chosen, whole = SCHEDULES[schedule], name in ("weights col", "gradients row")
    if whole and chosen.compute == "library":
        pytest.skip("what is sent in whole shards is no matrix where it arrives")
    if whole and chosen.chunk_rows:
        chosen = replace(chosen, chunk_rows=256)
    found = emulate(contraction(name, (176, 304, 304), 2), chosen, seed=len(schedule))
    assert found.ok, found.report


@pytest.mark.parametrize("ranks", [3, 4, 8])
@pytest.mark.parametrize("name", ["weights", "gradients"])
def test_more_ranks(name: str, ranks: int) -> None:
    spec = contraction(name, (24 * ranks, 24 * ranks, 72 * ranks), ranks, out_dtype="float32")
    for seed, schedule in enumerate((FUSED, SCHEDULES["fused pull"], SCHEDULES["library"])):
        found = emulate(spec, schedule, seed=seed)
        assert found.ok, found.report


def test_symmetric_operands_are_read_in_place() -> None:
    for name in ("weights", "gradients"):
        spec = contraction(name, (144, 144, 272), 2, inputs="symmetric", dtype="float16")
        for schedule in (SCHEDULES["fused pull"], SCHEDULES["chunked pull"]):
            found = emulate(spec, replace(schedule, chunk_order="peer_major"), seed=1)
            assert found.ok, found.report


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_large_ones_are_scaled_with_their_binaries_unchanged(name: str) -> None:
    spec = contraction(name)
    for schedule in Space(spec, {"num_stages": [4]}).schedules[::29]:
        small = scaled(spec, schedule)
        assert small.shrunk
        assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, schedule).binary_digest


def test_a_large_one_is_emulated_at_a_smaller_size() -> None:
    found = emulate(contraction("gradients"), replace(FUSED, chunk_rows=256, depth=2, num_comm_blocks=4))
    assert found.ok, found.report
    assert "in place of" in found.report
