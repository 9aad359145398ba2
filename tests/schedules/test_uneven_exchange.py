"""Exchanges of sizes that the ranks do not divide: every rank has a grid of its own, the last ones less, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from mutations import changed
from support import exchange

from tilescale.runtime.emulate import emulate
from tilescale.runtime.scaled import scaled
from tilescale.schedules.exchanges import exchange_of
from tilescale.schedules.footprint import check_structure
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Copy, Plan, Step
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import FullRow, Shard

NONE = Schedule(overlap="none", compute="generated", num_comm_blocks=2)
PUSH = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4)
NAMES = ("columns", "heads", "sequence", "square", "elements")


def specs(ranks: int) -> list[Spec]:
    """Sizes one short of a multiple, as short as can be, fewer heads than ranks; also where the caller holds them."""
    few = [exchange(name, ranks, heads=max(1, ranks - 1)) for name in ("heads", "sequence")]
    return [*(exchange(name, ranks, less=less, inputs=inputs) for name in NAMES
              for less, inputs in ((1, "ordinary"), (ranks - 1, "symmetric"))), *few]


def structures(spec: Spec) -> list[Schedule]:
    """One schedule of each kind of plan."""
    found: dict[tuple[object, ...], Schedule] = {}
    for s in space(spec):
        found.setdefault((s.transport, s.direction, s.overlap, s.depth > 1, s.chunk_order), s)
    return list(found.values())


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
def test_every_kind_of_schedule_is_proved(ranks: int) -> None:
    for spec in specs(ranks):
        schedules = structures(spec)
        assert len(schedules) >= 6, spec.label
        for schedule in schedules:
            proof = verify(lower(spec, schedule), cache=None)
            assert proof.ok, f"{spec.label} {schedule.label}: {proof.counterexample}"


def test_pieces_have_the_sizes_of_both_ranks_shards() -> None:
    found = exchange_of(exchange("heads", 3, less=1))  # 2 x 20 heads x 239 x 16, by sequence before and by heads after
    assert [found.rows_of((source, target)) for source in range(3) for target in range(3)] == [
        80, 80, 80, 80, 80, 80, 79, 79, 79]
    assert found.operands == ((2, 20, 80 * 16 * 2), (2, 20, 80 * 16 * 2), (2, 20, 79 * 16 * 2))
    assert found.outputs == ((2, 7, 239 * 16 * 2), (2, 7, 239 * 16 * 2), (2, 6, 239 * 16 * 2))


def test_a_rank_without_a_shard_neither_sends_nor_lacks_anything() -> None:
    spec = redistribute(Tensor((8, 1, 4), "bfloat16", FullRow), Shard(1), exchange("heads", 4).topology)
    found = exchange_of(spec)
    assert {pair for pair, _ in found.pieces} == {(source, 0) for source in range(4)}
    assert verify(lower(spec, NONE), cache=None).ok
    assert emulate(spec, NONE).ok


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(("name", "less", "schedule"), [
    ("columns", 1, replace(PUSH, depth=1)), ("columns", 1, replace(NONE, direction="pull")), ("heads", 1, PUSH),
    ("heads", 1, replace(PUSH, transport="tma", direction="pull")), ("sequence", 1, replace(NONE, transport="tma")),
    ("square", 1, NONE),
], ids=lambda value: getattr(value, "label", str(value)))
def test_every_kind_is_right_and_conforms(name: str, less: int, schedule: Schedule, ranks: int) -> None:
    for lacking in {less, ranks - 1}:
        emulation = emulate(exchange(name, ranks, less=lacking), schedule, seed=ranks + len(name))
        assert emulation.ok, emulation.report


def _other_grid(plan: Plan) -> Plan:
    """The last rank's tensors are laid out as those of the others."""
    return replace(plan, buffers=tuple(replace(b, rank_grids=()) for b in plan.buffers))


def _shorter(step: Step) -> Step:
    """Rows of the last rank are taken at the pitch of the first's."""
    if not isinstance(step, Copy) or step.src.rank != 2 or not step.src.loops:
        return step
    pitch = step.src.loops[-1][1]
    return replace(step, src=replace(step.src, loops=(*step.src.loops[:-1], (step.src.loops[-1][0], pitch + 32))))


FAULTS: dict[str, Callable[[Plan], Plan]] = {
    "one grid for all ranks": _other_grid, "another rank's pitch": lambda plan: changed(plan, _shorter),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    plan = lower(exchange("heads", 3, less=1), NONE)
    assert verify(plan, cache=None).ok
    assert verify(FAULTS[name](plan), cache=None).counterexample is not None


def test_grids_of_ranks_fit_their_buffer() -> None:
    plan = lower(exchange("heads", 3, less=1), NONE)
    out = plan.buffer("out")
    for grids in (out.rank_grids[:2], (out.grid, out.grid, (*out.grid[:-1], out.grid[-1] + 2))):
        wrong = replace(plan, buffers=tuple(replace(b, rank_grids=grids) if b is out else b for b in plan.buffers))
        assert check_structure(wrong) is not None


@pytest.mark.parametrize("name", ["columns", "heads", "sequence"])
def test_stand_ins_stay_uneven_and_run_the_same_binaries(name: str) -> None:
    from tilescale.codegen.emit import emit

    spec = exchange(name, 4, scale=32, heads=64, less=3)
    for schedule in structures(spec)[::3]:
        small = scaled(spec, schedule)
        assert small.spec.inputs[0].sizes != spec.inputs[0].sizes or not small.shrunk
        assert len({small.spec.inputs[0].local_shape(rank, 4) for rank in range(4)}) == 2
        assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, schedule).binary_digest
