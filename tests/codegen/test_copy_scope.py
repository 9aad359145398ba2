"""Who copies neighbouring bytes together: the block, a warpgroup, a warp."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import ag_gemm, all_gather, exchange, reduction

from tilescale.codegen.emit import emit
from tilescale.codegen.rules import check_kernels
from tilescale.errors import ScheduleError
from tilescale.runtime.emulate import emulate
from tilescale.schedules.knob import BY_NAME, canonical
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullRow

PUSH = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4)
NONE = Schedule(overlap="none", compute="generated", num_comm_blocks=2)
SHARED = Topology.shared_gpu(ranks=2)
CASES: dict[str, tuple[Spec, Schedule]] = {
    "gather": (all_gather((200, 24), 2), PUSH), "ring": (all_gather((300, 77), 3), replace(PUSH, algorithm="ring")),
    "rows at pitches": (exchange("heads", 2, on=SHARED), NONE),
    "uneven rows at pitches": (exchange("sequence", 3, less=1), replace(NONE, direction="pull")),
    "parts of sums": (reduction((75, 77), 2, to=FullRow, on=SHARED), replace(PUSH, depth=1)),
    "sums handed out": (reduction((75, 40), 3), replace(PUSH, algorithm="two_shot", direction="pull")),
}


@pytest.mark.parametrize("scope", ["warpgroup", "warp"])
@pytest.mark.parametrize("name", CASES)
def test_every_scope_is_right_and_conforms(name: str, scope: str) -> None:
    spec, schedule = CASES[name]
    schedule = replace(schedule, copy_scope=scope)
    program = emit(spec, schedule)
    assert any(f"copy_group = {32 if scope == 'warp' else 128};" in kernel.text for kernel in program.kernels)
    assert check_kernels(program.kernels) == ()
    emulation = emulate(spec, schedule, seed=len(name))
    assert emulation.ok, emulation.report


def test_the_scope_changes_texts_and_neither_plans_nor_tables() -> None:
    spec, schedule = CASES["gather"]
    warps = replace(schedule, copy_scope="warp")
    assert lower(spec, warps) == lower(spec, schedule)
    assert emit(spec, warps).table_digest == emit(spec, schedule).table_digest
    assert emit(spec, warps).binary_digest != emit(spec, schedule).binary_digest
    assert not any("copy_group" in kernel.text for kernel in emit(spec, schedule).kernels)


def test_schedules_from_before_keep_their_digest_and_label() -> None:
    values = NONE.as_dict()
    del values["copy_scope"]
    assert Schedule.from_dict(values).digest == NONE.digest
    assert replace(NONE, copy_scope="warp").digest != NONE.digest
    assert "block" not in NONE.label
    assert replace(NONE, copy_scope="warp").label.endswith("by_warp")


def test_a_scope_is_chosen_where_threads_copy_and_nothing_multiplies_beside_them() -> None:
    for spec, wanted in ((all_gather(), True), (ag_gemm(), False), (exchange("columns"), True),
                         (reduction(inputs="symmetric", to=FullRow), True)):
        scoped = [s for s in space(spec) if s.copy_scope != "block"]
        assert bool(scoped) == wanted
        assert {s.transport for s in scoped} <= {"peer_copy"}
    in_place = space(reduction(inputs="symmetric", to=FullRow), {"direction": ["pull"]})
    assert {s.copy_scope for s in in_place} == {"block"}  # nothing is copied: sums read their peers
    assert canonical(all_gather(), replace(NONE, transport="tma", copy_scope="warp")).copy_scope == "block"
    assert BY_NAME["copy_scope"].domain == ("block", "warpgroup", "warp")


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"copy_scope is one of block, warpgroup, warp; got: 'cluster'"):
        lower(all_gather(), replace(NONE, copy_scope="cluster"))
