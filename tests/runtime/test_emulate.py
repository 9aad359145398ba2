from __future__ import annotations

from dataclasses import replace

import pytest
from support import ag_gemm, all_gather

from tilescale.codegen.host import build
from tilescale.errors import MissingDependency
from tilescale.runtime.conformance import deviations
from tilescale.runtime.emulate import CALLS, Run, emulate
from tilescale.runtime.emulator import run_isolated
from tilescale.runtime.scaled import scaled
from tilescale.schedules.plan import Copy, Gemm, Signal, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space

FUSED = Schedule(overlap="fused", compute="generated", chunk_rows=256, depth=2, num_comm_blocks=4, block_m=64,
                 block_n=128, block_k=64, num_stages=3, raster_group=8)


def test_a_small_spec_is_emulated_as_it_is() -> None:
    spec = ag_gemm((256, 256, 128))
    schedule = replace(FUSED, chunk_rows=64, depth=1, num_comm_blocks=2)
    assert schedule in space(spec)
    emulation = emulate(spec, schedule)
    assert emulation.ok, emulation.report
    assert emulation.label == spec.label
    assert "in place of" not in emulation.report


def test_a_large_spec_is_emulated_with_the_same_binaries_at_a_smaller_size() -> None:
    from tilescale.codegen.emit import emit

    spec = ag_gemm()
    small = scaled(spec, FUSED)
    assert small.shrunk
    large, reduced = emit(spec, FUSED), emit(small.spec, small.schedule, small.plan)
    assert reduced.binary_digest == large.binary_digest
    assert reduced.table_digest != large.table_digest
    kinds = {type(step) for _, _, _, step in small.plan.steps_of(0)}
    assert kinds == {Copy, Signal, Wait, Gemm}
    assert small.plan.ranks[0][0].roles[-1].blocks > 1


@pytest.mark.parametrize("spec", [ag_gemm(), all_gather(), ag_gemm(inputs="symmetric", ranks=2), all_gather(ranks=8)],
                         ids=lambda s: f"{s.label} {s.placement}")
def test_every_schedule_can_be_scaled_with_its_binaries_unchanged(spec: object) -> None:
    from tilescale.codegen.emit import emit
    from tilescale.spec.op import Spec

    assert isinstance(spec, Spec)
    for schedule in space(spec).schedules[::173]:
        small = scaled(spec, schedule)
        assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, schedule).binary_digest


def test_the_same_seed_gives_the_same_emulation() -> None:
    spec = all_gather((1024, 64))
    schedule = Schedule(transport="tma", overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=2)
    one, two = emulate(spec, schedule, seed=4), emulate(spec, schedule, seed=4)
    assert one == two
    assert emulate(spec, schedule, seed=7).steps != one.steps


def test_a_step_that_does_other_things_than_its_plan_declares_is_named() -> None:
    """The tables are those of another chunk order: what is carried out is right, but it is not what was proved."""
    spec = ag_gemm()
    small = scaled(spec, FUSED)
    setup = Run(small, 0, "lazy", ())
    report = run_isolated([setup.job])[0]
    assert report.ok
    assert not list(deviations(setup.plan, setup.program, report, CALLS))
    other = scaled(spec, replace(FUSED, chunk_order="chunk_major")).plan
    lines = list(deviations(other, setup.program, report, CALLS))
    assert lines
    assert "declared" in lines[0]
    assert "rank" in lines[0]


def test_without_a_compiler_the_message_says_what_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    build.compiler.cache_clear()
    monkeypatch.setenv("PATH", "/nonexistent")
    try:
        with pytest.raises(MissingDependency, match="space, verify, emit and compile still work"):
            emulate(ag_gemm((256, 256, 128)), replace(FUSED, chunk_rows=64, depth=1, num_comm_blocks=2))
    finally:
        build.compiler.cache_clear()
