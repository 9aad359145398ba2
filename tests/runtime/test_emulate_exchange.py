"""Exchanges are emulated right, bit by bit, and do what their plans declare; stand-ins run the same binaries."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import exchange, topology

from tilescale.codegen.emit import emit, loops_of
from tilescale.codegen.program import Program
from tilescale.errors import PlanError
from tilescale.runtime.conformance import rows_of
from tilescale.runtime.emulate import Conditions, emulate
from tilescale.runtime.scaled import scaled
from tilescale.schedules.plan import Copy, Region
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.spec.op import Spec, redistribute, shift
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import FullCol, FullRow, Replicate, Shard

PUSH = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4)
PULL = replace(PUSH, direction="pull", chunk_order="chunk_major")
NONE = Schedule(overlap="none", compute="generated", num_comm_blocks=2)
ENGINE = replace(PUSH, transport="copy_engine", num_comm_blocks=0)
CASES: dict[str, tuple[str, Schedule]] = {
    "shift push": ("shift", replace(PUSH, depth=1)),
    "shift tma pull": ("shift", replace(PULL, transport="tma", chunk_order="peer_major", depth=1)),
    "shift engine": ("shift", replace(ENGINE, depth=1)),
    "shift back engine pull": ("shift back", replace(ENGINE, direction="pull", overlap="none", chunk_rows=0, depth=1)),
    "broadcast push": ("broadcast", PUSH),
    "broadcast pull": ("broadcast", replace(PULL, chunk_order="peer_major")),
    "broadcast engine": ("broadcast", replace(ENGINE, overlap="none", chunk_rows=0, depth=1)),
    "columns tma push": ("columns", replace(PUSH, transport="tma")),
    "columns none": ("columns", NONE),
    "heads push": ("heads", replace(PUSH, chunk_order="chunk_major")),
    "heads tma pull": ("heads", replace(PULL, transport="tma")),
    "sequence push": ("sequence", PUSH),
    "sequence tma none": ("sequence", replace(NONE, transport="tma", direction="pull")),
    "elements": ("elements", NONE),
    "square": ("square", NONE),
}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", CASES)
def test_every_kind_is_right_and_conforms(name: str, ranks: int) -> None:
    op, schedule = CASES[name]
    if op == "elements" and ranks > 3:
        pytest.skip("rows of one element take the emulator minutes on more ranks, and walk the same loops")
    inputs = "symmetric" if ranks == 3 and schedule.direction == "pull" else "ordinary"
    spec = exchange(op, ranks, inputs=inputs)
    if ranks == 2 and schedule.chunk_order == "chunk_major":
        schedule = replace(schedule, chunk_order="peer_major")
    emulation = emulate(spec, schedule, seed=ranks + len(name))
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("late", [0, 2])
def test_a_late_rank_and_counters_that_wrap_change_nothing(late: int) -> None:
    for name in ("broadcast", "shift", "sequence"):
        found = emulate(exchange(name, 3), NONE, adversary="eager", conditions=Conditions(5, 2**32 - 2, late))
        assert found.ok, found.report


def large(ranks: int) -> list[Spec]:
    top, turn = topology(ranks), (0, 2, 1, 3)
    attention = Tensor((1, 64, 8192, 128), "bfloat16", Shard(2))
    return [
        shift(Tensor((4096, 8192), "bfloat16", FullRow), 1, top),
        shift(Tensor((4096 * 4, 1001), "bfloat16", FullRow), 1, top),
        redistribute(Tensor((4096, 8192), "bfloat16", Replicate), Replicate, top, root=1),
        redistribute(Tensor((4096, 8192), "bfloat16", FullRow), FullCol, top), redistribute(attention, Shard(1), top),
        redistribute(attention.with_view(Shard(1)), Shard(1), top, transpose=turn),
        redistribute(Tensor((8192, 4096), "float32", FullRow), FullRow, top, transpose=(1, 0)),
    ]


@pytest.mark.parametrize("spec", large(4), ids=lambda spec: f"{spec.label} {spec.output.view.label}")
def test_a_stand_in_runs_the_same_binaries(spec: Spec) -> None:
    for schedule in space(spec).schedules[::37]:
        small = scaled(spec, schedule)
        assert small.shrunk
        assert small.spec.inputs[0].nbytes < spec.inputs[0].nbytes
        assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, schedule).binary_digest


@pytest.mark.parametrize("at", [4, 5])
def test_attention_of_a_model_is_emulated_by_its_stand_in(at: int) -> None:
    spec = large(4)[at]
    for schedule in (space(spec).schedules[0], space(spec).schedules[-1]):
        emulation = emulate(spec, schedule, seed=1)
        assert emulation.ok, emulation.report
        assert "in place of" in emulation.report


def test_loops_that_go_on_are_one_and_five_are_too_many() -> None:
    row = Copy(Region("a", 0, 0, 64, ((2, 32), (2, 16))), Region("out", 0, 0, 64, ((2, 32), (2, 16))))
    assert loops_of(row) == ()
    pitched = Copy(Region("a", 0, 0, 64, ((2, 64), (2, 32))), Region("out", 0, 0, 64, ((2, 128), (2, 64))))
    assert loops_of(pitched) == ((4, 32, 64),)
    deep = tuple((2, 4**at) for at in range(6, 1, -1))
    turned = tuple((2, 4**at * 2) for at in (2, 3, 4, 5, 6))
    with pytest.raises(PlanError, match="at most 4 loops"):
        loops_of(Copy(Region("a", 0, 0, 128, deep), Region("out", 0, 0, 128, turned)))


def test_conformance_lists_the_rows_of_a_box() -> None:
    rows = list(rows_of(Region("a", 1, 8, 24, ((2, 100), (3, 10)))))
    assert [(row.offset, row.size) for row in rows] == [(8, 4), (18, 4), (28, 4), (108, 4), (118, 4), (128, 4)]


def test_texts_without_pitches_have_no_constant_for_them() -> None:
    def texts(program: Program) -> str:
        return "".join(kernel.text for kernel in program.kernels)

    assert "copy_strided" not in texts(emit(exchange("shift"), NONE))
    assert "copy_strided = true" in texts(emit(exchange("heads"), NONE))
