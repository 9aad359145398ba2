from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import ag_gemm, all_gather, gemm_rs, reduction

from tilescale.codegen.host import build
from tilescale.errors import MissingDependency
from tilescale.runtime import emulate as emulating
from tilescale.runtime.check import from_bits, to_bits
from tilescale.runtime.conformance import deviations
from tilescale.runtime.emulate import CALLS, Conditions, Run, emulate
from tilescale.runtime.emulator import run_isolated
from tilescale.runtime.scaled import scaled
from tilescale.schedules.plan import Copy, Gemm, Signal, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.spec.op import Spec
from tilescale.spec.views import FullCol, FullRow

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


def bare_run(spec: Spec) -> Run:
    """A run without plan and memories: what draws inputs and judges outputs."""
    run = Run.__new__(Run)
    run.spec, run.world, run.rng, run.conditions = spec, spec.world, np.random.default_rng(0), Conditions()
    return run


def rounded(values: np.ndarray[Any, Any], dtype: str) -> bytes:
    return to_bits(values.astype(np.float32).astype(np.float64), dtype).tobytes()


@pytest.mark.parametrize("spec", [
    gemm_rs((9, 24, 64)), gemm_rs((1, 24, 64), ranks=8, order="col", dtype="float16"),
    gemm_rs((9, 24, 64), out="Replicate", out_dtype="float32"), gemm_rs((8, 24, 64), out="Partial"),
    reduction((9, 24), ranks=8), reduction((9, 24), to=FullRow), reduction((4, 6, 24), to=FullCol, dtype="float16"),
], ids=lambda s: f"{s.label} {s.output.view.label}")
def test_sums_are_right_when_they_are_rounded_once(monkeypatch: pytest.MonkeyPatch, spec: Spec) -> None:
    monkeypatch.setattr(emulating, "deviations", lambda *given: ())
    run = bare_run(spec)
    for exact in (True, False):
        inputs, wanted = run._values(exact)
        addends = []
        for memory in inputs:
            a, *rest = (
                from_bits(memory[name], tensor.dtype).reshape(shape if tensor.order == "row" else shape[::-1])
                for name, tensor in zip("ab", spec.inputs, strict=False)
                for shape in [tensor.local_shape(0, spec.world)])
            addends.append(a @ (rest[0] if spec.inputs[1].order == "row" else rest[0].T) if rest else a)
        seen = {}
        for rank in range(spec.world):
            whole = addends[rank] if spec.local else sum(addends)
            offset, shape = (at(rank, spec.world) for at in (spec.output.local_offset, spec.output.local_shape))
            part = whole[tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))]
            seen[rank] = rounded(part, spec.output.dtype) + b"beyond"
        run.reads = [(rank, rank, 0, wanted[rank]) for rank in range(spec.world)]
        run.plan = run.program = SimpleNamespace()  # type: ignore[assignment]
        assert run.judge(SimpleNamespace(seen=seen)) == []  # type: ignore[arg-type]
        seen[0] = bytes([seen[0][0], seen[0][1] ^ 0x40]) + seen[0][2:]
        if spec.output.itemsize == 4:
            seen[0] = seen[0][:3] + bytes([seen[0][3] ^ 0x40]) + seen[0][4:]
        (line,) = run.judge(SimpleNamespace(seen=seen))  # type: ignore[arg-type]
        assert line.startswith("call 0 rank 0: out[0")


def test_partials_may_be_rounded_where_the_spec_says_so() -> None:
    for integers in (True, False):
        _, strict = bare_run(gemm_rs((8, 24, 64)))._values(integers)
        _, loose = bare_run(gemm_rs((8, 24, 64), partial_dtype="bfloat16"))._values(integers)
        for mine, theirs in zip(strict, loose, strict=True):
            assert np.array_equal(mine.value, theirs.value)
            assert theirs.allowed is not None
            assert (mine.allowed is None) == integers
            if mine.allowed is not None:
                assert (theirs.allowed > mine.allowed).all()
