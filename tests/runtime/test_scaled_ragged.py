"""The small dispatch or combine in place of a large one has its binaries, two turns of numbering, and tails."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import pytest
from support import routed

from tilescale.codegen.emit import emit
from tilescale.runtime.scaled import scaled
from tilescale.schedules.ragged import THREADS, ragged_geometry
from tilescale.schedules.schedule import Schedule

SCHEDULE = Schedule(compute="generated", num_comm_blocks=16)


@pytest.mark.parametrize("op", ["dispatch", "combine"])
@pytest.mark.parametrize(("hidden", "top_k", "dtype"), [(7168, 8, "bfloat16"), (4096, 2, "float16"), (1001, 6, "float32")])
def test_binaries_are_those_of_the_large_one(op: str, hidden: int, top_k: int, dtype: str) -> None:
    spec = routed(op, 4, tokens=16384, hidden=hidden, experts=64, top_k=top_k, dtype=dtype)
    small = scaled(spec, SCHEDULE)
    assert small.shrunk
    assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, SCHEDULE).binary_digest
    geo = ragged_geometry(small.spec, "push", 2)
    assert THREADS < geo.entries / geo.blocks < 2 * THREADS
    assert gcd(geo.row_bytes, 16) == gcd(hidden * spec.output.itemsize, 16)


@pytest.mark.parametrize("overlap", ["none", "fused"])
def test_experts_multiply_in_the_small_one_as_in_the_large_one(overlap: str) -> None:
    schedule = replace(SCHEDULE, overlap=overlap, depth=4 if overlap == "fused" else 1, block_m=128, block_n=256,
                       block_k=64, num_stages=3, raster_group=8)
    spec = routed("dispatch_gemm", 4, tokens=16384, hidden=4096, experts=64, top_k=8, columns=4096)
    small = scaled(spec, schedule)
    assert small.shrunk
    assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, schedule).binary_digest
    assert small.spec.mnk[1:] == (256 + 24, 2 * 64 + 24)  # two columns of tiles, and blocks of the contraction, with tails
    assert small.spec.output.sizes[0] == 4 * small.spec.mnk[0] * 8


def test_uneven_shards_stay_uneven_and_small_ones_stay_themselves() -> None:
    uneven = scaled(routed("dispatch", 4, tokens=16382, hidden=4096, experts=8), SCHEDULE)
    assert len(set(ragged_geometry(uneven.spec, "push", 2).tokens)) == 2
    spec = routed("dispatch", 4)
    assert scaled(spec, SCHEDULE).spec == spec
