"""Operations without rows: nothing moves, and ranks meet in them as in any other call."""

from __future__ import annotations

import pytest
from support import ag_gemm, all_gather, contraction, exchange, gemm_rs, in_blocks, local_gemm, reduction, topology

from tilescale.errors import SpecError
from tilescale.runtime.emulate import Conditions, emulate
from tilescale.schedules.footprint import accesses
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Signal, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import FullRow, Shard


def specs(ranks: int) -> list[Spec]:
    return [
        all_gather((0, 24), ranks), all_gather((0, 24), ranks, inputs="symmetric"), ag_gemm((0, 64 * ranks, 64), ranks),
        reduction((0, 24), ranks), reduction((0, 24), ranks, to=FullRow), gemm_rs((0, 64, 64 * ranks), ranks),
        gemm_rs((0, 64, 64 * ranks), ranks, out="Replicate"),
    ]


def structures(spec: Spec) -> list[Schedule]:
    """One schedule of each kind of plan."""
    found: dict[tuple[object, ...], Schedule] = {}
    for s in space(spec):
        found.setdefault((s.transport, s.direction, s.algorithm, s.overlap, s.compute), s)
    return list(found.values())


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_every_kind_of_schedule_is_proved_and_meets_all_ranks(ranks: int) -> None:
    for spec in specs(ranks):
        assert (spec.flops, spec.link_bytes) == (0, 0)
        schedules = structures(spec)
        assert schedules, spec.label
        for schedule in schedules:
            plan = lower(spec, schedule)
            assert verify(plan, cache=None).ok, f"{spec.label} {schedule.label}"
            steps = [step for rank in range(ranks) for *_, step in plan.steps_of(rank)]
            assert not any(accesses(step) for step in steps)
            assert any(isinstance(step, Wait) for step in steps)
            told = {step.rank for *_, step in plan.steps_of(0) if isinstance(step, Signal)} - {0}
            assert told == ({1} if schedule.algorithm == "ring" else set(range(1, ranks)))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_calls_without_rows_end_on_the_emulator_and_conform(ranks: int) -> None:
    for spec in specs(ranks):
        for schedule in structures(spec)[::3]:
            emulation = emulate(spec, schedule, conditions=Conditions(late_rank=1))
            assert emulation.ok, emulation.report


def test_products_of_no_rows_are_not_generated() -> None:
    found = space(ag_gemm((0, 128, 64), 2))
    assert {s.compute for s in found} == {"library"}
    assert found.rejected["rows_to_multiply"] > 0


@pytest.mark.parametrize("spec", [
    redistribute(Tensor((4, 0, 8), "bfloat16", FullRow), Shard(1), topology(4)), ag_gemm((64, 0, 64)),
    gemm_rs((64, 64, 0)), local_gemm((0, 64, 64)), all_gather((64, 0)),
    ag_gemm((0, 128, 64), then=("bias",)), ag_gemm((0, 128, 64), dtype="float8_e4m3fn"),
    gemm_rs((0, 64, 64), order="col", dtype="float8_e4m3fn"), contraction("weight_gather_gemm", (0, 64, 64)),
    contraction("ag_gemm_k", (0, 64, 64)), in_blocks(4, (0, 64, 64)),
], ids=lambda spec: spec.label)
def test_what_holds_nothing_else_has_no_kernels(spec: Spec) -> None:
    assert spec.link_bytes >= 0
    with pytest.raises(SpecError, match="skip the call, and fill an output with zeros"):
        lower(spec, Schedule(num_comm_blocks=2))


def test_zeros_are_finished_where_there_are_epilogues() -> None:
    spec = gemm_rs((64, 64, 0), out="Replicate", then=("bias",))
    assert "zeros and apply bias to them with torch if only a contraction is empty" in spec.without_kernels


def test_uneven_rows_before_an_epilogue_are_refused_with_a_remedy() -> None:
    assert "declare rows that the ranks divide" in ag_gemm((100, 192, 64), 3, then=("bias",)).without_kernels
    assert ag_gemm((102, 192, 64), 3, then=("bias",)).kernels
    assert ag_gemm((100, 192, 64), 3).kernels


def test_sizes_are_not_negative_and_exchanges_of_something_have_kernels() -> None:
    with pytest.raises(SpecError, match="from 0 up or a Dim; got: -1"):
        Tensor((-1, 8), "bfloat16")
    assert exchange("columns").kernels
