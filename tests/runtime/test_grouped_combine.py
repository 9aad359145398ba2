"""Products of experts before a combine on the CPU: right for every routing, on every world, and behind a dispatch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import routed

from tilescale.codegen.emit import emit
from tilescale.runtime.emulate import Conditions, Run, emulate
from tilescale.runtime.emulator import run_isolated
from tilescale.runtime.routed import routed as values
from tilescale.runtime.scaled import Scaled, scaled
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

BEHIND = Schedule(compute="generated", num_comm_blocks=4, block_m=64, block_n=128, block_k=64, num_stages=3, raster_group=8)


BESIDE = replace(BEHIND, overlap="fused")
ALL = (BEHIND, BESIDE, replace(BESIDE, depth=4))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.label)
def test_every_routing_is_right_on_every_world(ranks: int, schedule: Schedule) -> None:
    for seed, partial in enumerate((None, "bfloat16")):  # three of the four turns each: skews, and a rank without tokens
        spec = routed("gemm_combine", ranks, experts=4 * ranks, partial_dtype=partial)
        emulation = emulate(spec, schedule, 3 * seed + ranks)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.label)
def test_uneven_shards_and_ranks_without_tokens_are_right(tokens: int, schedule: Schedule) -> None:
    emulation = emulate(routed("gemm_combine", 4, tokens=tokens, experts=16), schedule, tokens)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize(("dtype", "out_dtype", "partial", "columns"), [
    ("float16", "float32", None, 152), ("bfloat16", "float16", "float16", 8), ("float16", None, "bfloat16", 264)])
def test_types_are_right(dtype: str, out_dtype: str | None, partial: str | None, columns: int) -> None:
    spec = routed("gemm_combine", 2, tokens=40, experts=8, top_k=3, dtype=dtype, out_dtype=out_dtype, columns=columns,
                  partial_dtype=partial)
    emulation = emulate(spec, replace(BESIDE, depth=2, block_m=128), 1)
    assert emulation.ok, emulation.report


BYTES = replace(BEHIND, block_k=128)
OF_BYTES = (BYTES, replace(BYTES, overlap="fused", depth=4))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", [None, "tensor", "rowcol", "block"])
def test_scaled_bytes_are_right_on_every_world(kind: str | None, ranks: int) -> None:
    for seed, schedule in enumerate(OF_BYTES):
        spec = routed("gemm_combine", ranks, experts=4 * ranks, hidden=272, columns=264, dtype="float8_e4m3fn", order="col",
                      scales=kind, partial_dtype="bfloat16" if seed else None)
        emulation = emulate(spec, schedule, 3 * seed + ranks)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize("kind", ["tensor", "rowcol", "block"])
def test_scaled_bytes_of_ranks_without_tokens_and_large_ones_are_right(kind: str) -> None:
    for tokens, sizes in ((1, {"hidden": 144}), (9, {"hidden": 272}), (8192, {"hidden": 4096, "columns": 4096})):
        spec = routed("gemm_combine", 4, tokens=tokens, experts=16, dtype="float8_e5m2", order="col", scales=kind,
                      **sizes)  # type: ignore[arg-type]
        small = scaled(spec, OF_BYTES[1])
        assert small.shrunk == (tokens > 9)
        assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, OF_BYTES[1]).binary_digest
        emulation = emulate(spec, OF_BYTES[1], tokens)
        assert emulation.ok, emulation.report


def test_matrices_as_a_linear_holds_them_are_right() -> None:
    spec = routed("gemm_combine", 2, tokens=40, experts=8, top_k=3, columns=264, order="col")
    emulation = emulate(spec, replace(BESIDE, depth=2, block_m=128), 1)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.label)
def test_large_ones_are_emulated_with_the_same_binaries(schedule: Schedule) -> None:
    spec = routed("gemm_combine", 2, tokens=8192, hidden=4096, columns=4096, experts=8, routing="histogram:9,4,2,2,1,1,1,0")
    small = scaled(spec, schedule)
    assert small.shrunk
    assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, schedule).binary_digest
    emulation = emulate(spec, schedule, 0)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.label)
def test_counters_that_wrap_and_a_late_rank_change_nothing(schedule: Schedule) -> None:
    spec = routed("gemm_combine", 2, experts=8)
    run = Run(Scaled(spec, schedule, lower(spec, schedule), False), 0, "random", (),
              Conditions(first_call=2**32 - 1, late_rank=1))
    report = run_isolated([run.job])[0]
    assert report.ok, report.error
    assert run.judge(report) == []


def _outputs(spec: Spec, schedule: Schedule, indices: list[np.ndarray], given: list[dict[str, bytes]]
             ) -> list[dict[str, bytes]]:
    """What every rank finds after one emulated call with the operands `given`."""

    class Given(Run):
        def _routed(self, exact: bool):  # type: ignore[no-untyped-def]
            return given, super()._wanted_of(values(self.spec, indices, np.random.default_rng(1), True))

    run = Given(Scaled(spec, schedule, lower(spec, schedule), False), 1, "random", (), Conditions(calls=1))
    report = run_isolated([run.job])[0]
    assert report.ok, report.error
    return [{name: report.seen[at] for name, at in run.beside[node].items()} for node, *_ in run.reads]


@pytest.mark.parametrize("overlap", ["none", "fused"])
def test_a_layer_of_experts_is_what_its_tokens_make_of_it(overlap: str) -> None:
    ranks, experts, rng = 2, 8, np.random.default_rng(3)
    schedule = replace(BEHIND, overlap=overlap, depth=4 if overlap == "fused" else 1)
    sizes = {"experts": experts, "top_k": 3, "dtype": "float16", "out_dtype": "float16"}
    up = routed("dispatch_gemm", ranks, hidden=16, columns=24, **sizes)  # type: ignore[arg-type]
    down = routed("gemm_combine", ranks, hidden=24, columns=8, **sizes)  # type: ignore[arg-type]
    indices = [rng.integers(-1, experts, (8, 3)).astype(np.int32) for _ in range(ranks)]
    tokens = [rng.integers(-2, 3, (8, 16)).astype(np.float16) for _ in range(ranks)]
    first, last = (rng.integers(-1, 2, (ranks, experts // ranks, *shape)).astype(np.float16)
                   for shape in ((16, 24), (24, 8)))
    weights = [rng.integers(1, 3, (8, 3)).astype(np.float32) for _ in range(ranks)]
    sent = _outputs(up, schedule, indices, [
        {"a": tokens[r].tobytes(), "b": first[r].tobytes(), "indices": indices[r].tobytes()} for r in range(ranks)])
    back = _outputs(down, schedule, indices, [
        {"a": sent[r]["out"], "b": last[r].tobytes(), "counts": sent[r]["counts"], "indices": indices[r].tobytes(),
         "weights": weights[r].tobytes()} for r in range(ranks)])
    matrices = (first.astype(np.float64) @ last.astype(np.float64)).reshape(experts, 16, 8)
    for rank, found in enumerate(back):
        wanted = np.zeros((8, 8))
        for token, k in zip(*np.nonzero(indices[rank] >= 0), strict=True):
            wanted[token] += weights[rank][token, k] * (tokens[rank][token] @ matrices[indices[rank][token, k]])
        assert np.array_equal(np.frombuffer(found["out"], np.float16).reshape(8, 8), wanted.astype(np.float16))
