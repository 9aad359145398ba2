"""The small dispatch or combine in place of a large one has its binaries, two turns of numbering, and tails."""

from __future__ import annotations

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


def test_uneven_shards_stay_uneven_and_small_ones_stay_themselves() -> None:
    uneven = scaled(routed("dispatch", 4, tokens=16382, hidden=4096, experts=8), SCHEDULE)
    assert len(set(ragged_geometry(uneven.spec, "push", 2).tokens)) == 2
    spec = routed("dispatch", 4)
    assert scaled(spec, SCHEDULE).spec == spec
