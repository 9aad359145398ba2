"""Gathers of uneven and empty shards are emulated right and do what their plans declare."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import ag_gemm, all_gather

from tilescale.codegen.emit import emit
from tilescale.runtime.emulate import emulate
from tilescale.runtime.scaled import scaled
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

PUSH = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4)
PULL = replace(PUSH, direction="pull")
NONE = Schedule(overlap="none", compute="generated", num_comm_blocks=2)
LIBRARY = replace(PUSH, overlap="chunked", compute="library")
ENGINE = {"transport": "copy_engine", "num_comm_blocks": 0}


def cases(ranks: int) -> dict[str, tuple[Spec, Schedule]]:
    rows, in_place = (100 * ranks - 70, 24), all_gather((ranks + 1, 24), ranks, inputs="symmetric")
    return {
        "push": (all_gather(rows, ranks), PUSH), "pull by tma": (all_gather(rows, ranks), replace(PULL, transport="tma")),
        "ring": (all_gather(rows, ranks), replace(PUSH, algorithm="ring")),
        "engine": (all_gather(rows, ranks), replace(PUSH, overlap="chunked", **ENGINE)),
        "engine that pulls": (all_gather(rows, ranks), replace(PULL, overlap="chunked", **ENGINE)),
        "empty shards": (all_gather((1, 3), ranks), NONE), "empty shards of bytes": (
            all_gather((ranks - 1,), ranks, dtype="int8"), replace(NONE, direction="pull")),
        "empty shards in place": (in_place, replace(NONE, direction="pull")),
        "product": (ag_gemm((100 * ranks - 70, 24 * ranks, 40), ranks), LIBRARY),
        "product of pulled rows": (ag_gemm((ranks + 1, 24 * ranks, 40), ranks), replace(LIBRARY, direction="pull")),
        "product behind a ring": (
            ag_gemm((ranks + 1, 24 * ranks, 40), ranks), replace(NONE, algorithm="ring", compute="library")),
    }


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", cases(2))
def test_every_kind_is_right_and_conforms(name: str, ranks: int) -> None:
    spec, schedule = cases(ranks)[name]
    emulation = emulate(spec, schedule, seed=ranks + len(name))
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("schedule", [PUSH, replace(PULL, transport="tma")], ids=lambda s: s.label)
def test_stand_ins_stay_uneven_and_run_the_same_binaries(schedule: Schedule) -> None:
    spec, large = all_gather((8191, 4096), 8), replace(schedule, chunk_rows=256)
    small = scaled(spec, large)
    assert small.shrunk
    assert small.spec.inputs[0].sizes[0] % 8
    assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, large).binary_digest
