"""benchmarks/bodies.py: the kernels that tables measure are among those whose registers are listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import gemm_rs

from tilescale.schedules import tile
from tilescale.schedules.schedule import Schedule

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import bodies as script

    return script


def test_products_are_rounded_as_tables_round_them_and_have_two_owners_a_tile(bodies: Any) -> None:
    scattered = Schedule(algorithm="scatter", compute="generated", block_m=128, block_n=256, block_k=64, num_stages=4)
    specs = list(bodies.workloads())
    for op, dtype in bodies.beside.ROUNDED.items():
        mine = [spec for spec in specs if spec.op == op]
        assert {spec.attribute("partial_dtype") for spec in mine} == {None, dtype}
        assert {tile.owners(spec, scattered) for spec in mine} == {1, 2}


def test_products_walked_by_chunk_are_bodies_of_their_own(bodies: Any) -> None:
    found = bodies.first(gemm_rs((384, 256, 384), 3), 1)
    kinds = {(schedule.overlap, schedule.chunk_order) for schedule in found if schedule.algorithm == "scatter"}
    assert kinds == {("none", "peer_major"), ("fused", "peer_major"), ("fused", "chunk_major")}
