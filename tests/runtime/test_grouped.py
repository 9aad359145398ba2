"""A dispatch with products of experts on the CPU: right for every routing, on every world."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import routed

from tilescale.codegen.emit import emit
from tilescale.runtime.check import from_bits
from tilescale.runtime.emulate import Conditions, Run, emulate
from tilescale.runtime.emulator import run_isolated
from tilescale.runtime.routed import routed as values
from tilescale.runtime.routing import TURNS, routing_of
from tilescale.runtime.scaled import Scaled, scaled
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Grouped, Signal, Step
from tilescale.schedules.schedule import Schedule

BEHIND = Schedule(compute="generated", num_comm_blocks=4, block_m=64, block_n=128, block_k=64, num_stages=3, raster_group=8)
BESIDE = replace(BEHIND, overlap="fused")
ALL = (BEHIND, BESIDE, replace(BESIDE, depth=4))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.label)
def test_every_routing_is_right_on_every_world(schedule: Schedule, ranks: int) -> None:
    for seed in range(2):  # three of the four turns each: skewed ones, and a rank without tokens
        emulation = emulate(routed("dispatch_gemm", ranks, experts=4 * ranks), schedule, 3 * seed + ranks)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.label)
@pytest.mark.parametrize("tokens", [1, 5, 9])
def test_uneven_shards_and_ranks_without_tokens_are_right(schedule: Schedule, tokens: int) -> None:
    for seed in range(2):
        emulation = emulate(routed("dispatch_gemm", 4, tokens=tokens, experts=16), schedule, seed)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize(("dtype", "out_dtype", "columns"), [
    ("float16", "float32", 152), ("bfloat16", "float16", 8), ("float16", None, 264)])
@pytest.mark.parametrize("block_m", [64, 128])
def test_types_and_tiles_are_right(dtype: str, out_dtype: str | None, columns: int, block_m: int) -> None:
    spec = routed("dispatch_gemm", 2, tokens=90, experts=8, top_k=3, dtype=dtype, out_dtype=out_dtype, columns=columns)
    emulation = emulate(spec, replace(BESIDE, depth=2, block_m=block_m), 1)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.label)
def test_epilogues_are_right_on_every_world(schedule: Schedule, ranks: int) -> None:
    for seed, then in enumerate((("silu",), ("bias", "gelu"), ("swiglu",), ("bias", "swiglu"))):  # all four turns
        spec = routed("dispatch_gemm", ranks, experts=4 * ranks, columns=160, then=then)
        emulation = emulate(spec, schedule, 3 * seed + ranks)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize("tokens", [1, 9])
def test_epilogues_of_ranks_without_tokens_are_right(tokens: int) -> None:
    for seed, schedule in enumerate(ALL):
        spec = routed("dispatch_gemm", 4, tokens=tokens, experts=16, columns=160, then=("bias", "swiglu"))
        emulation = emulate(spec, schedule, seed)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize(("dtype", "out_dtype", "columns", "then", "block_m"), [
    ("float16", "float32", 152, ("bias", "silu"), 128), ("bfloat16", "float16", 16, ("bias", "swiglu"), 64),
    ("float16", "float32", 272, ("bias", "swiglu"), 128), ("bfloat16", None, 264, ("gelu", "bias"), 64)])
def test_types_and_tiles_with_epilogues_are_right(dtype: str, out_dtype: str | None, columns: int, then: tuple[str, ...],
                                                  block_m: int) -> None:
    spec = routed("dispatch_gemm", 2, tokens=90, experts=8, top_k=3, dtype=dtype, out_dtype=out_dtype, columns=columns,
                  then=then)
    emulation = emulate(spec, replace(BESIDE, depth=2, block_m=block_m), 1)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("then", [("bias", "silu"), ("bias", "swiglu")])
def test_large_ones_with_epilogues_are_emulated_with_the_same_binaries(then: tuple[str, ...]) -> None:
    spec = routed("dispatch_gemm", 2, tokens=8192, hidden=4096, columns=4096, experts=8, then=then)
    for schedule in ALL:
        small = scaled(spec, schedule)
        assert small.shrunk
        assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, schedule).binary_digest
    emulation = emulate(spec, replace(BESIDE, depth=2), 0)
    assert emulation.ok, emulation.report


def test_references_with_epilogues_are_those_of_every_expert() -> None:
    spec = routed("dispatch_gemm", 2, tokens=6, hidden=8, experts=4, columns=32, then=("bias", "swiglu"))
    rng = np.random.default_rng(0)
    indices = routing_of(spec, rng, TURNS[0])
    made = values(spec, indices, rng, False)
    for rank, (given, exact) in enumerate(zip(made.inputs, made.exact, strict=True)):
        rows = np.frombuffer(exact["counts"], np.int32).reshape(2, 2).sum(axis=0)
        bias = from_bits(given["bias"], "bfloat16").reshape(2, 32)
        matrices = from_bits(given["b"], "bfloat16").reshape(2, 8, 32)
        tokens = np.concatenate([from_bits(each["a"], "bfloat16").reshape(3, 8) for each in made.inputs])
        chosen = np.concatenate(indices)
        sent = [token for expert in range(2) for token, row in enumerate(chosen) if 2 * rank + expert in row]
        expert = np.repeat(np.arange(2), rows)
        total = np.stack([tokens[token] @ matrices[e] + bias[e] for token, e in zip(sent, expert, strict=True)])
        gate = total.reshape(-1, 2, 2, 8)[:, :, 0].reshape(-1, 16)
        up = total.reshape(-1, 2, 2, 8)[:, :, 1].reshape(-1, 16)
        assert np.allclose(made.value[rank], gate / (1 + np.exp(-gate)) * up)
        assert (made.allowed[rank] > 0).all()
        assert (made.allowed[rank] < 0.02 * np.abs(made.value[rank]) + 1e-3).all()


BYTES = replace(BEHIND, block_k=128)
OF_BYTES = (BYTES, replace(BYTES, overlap="fused", depth=4))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", [None, "tensor", "rowcol", "block"])
def test_scaled_bytes_are_right_on_every_world(kind: str | None, ranks: int) -> None:
    for seed, schedule in enumerate(OF_BYTES):  # three of the four turns each
        spec = routed("dispatch_gemm", ranks, experts=4 * ranks, hidden=272, columns=264, dtype="float8_e4m3fn",
                      order="col", scales=kind)
        emulation = emulate(spec, schedule, 3 * seed + ranks)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize("kind", ["tensor", "rowcol", "block"])
@pytest.mark.parametrize("tokens", [1, 9])
def test_scaled_bytes_of_ranks_without_tokens_are_right(kind: str, tokens: int) -> None:
    for seed, schedule in enumerate(OF_BYTES):
        spec = routed("dispatch_gemm", 4, tokens=tokens, experts=16, hidden=144, columns=160, dtype="float8_e5m2",
                      order="col", scales=kind, then=("bias", "swiglu"))
        emulation = emulate(spec, schedule, seed + tokens)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize(("kind", "block_m", "block_n", "out_dtype"), [
    ("rowcol", 128, 192, None), ("block", 128, 128, "float32"), ("block", 64, 64, "float16"), ("tensor", 128, 96, None)])
def test_tiles_of_scaled_bytes_are_right(kind: str, block_m: int, block_n: int, out_dtype: str | None) -> None:
    spec = routed("dispatch_gemm", 2, tokens=300, experts=4, top_k=2, hidden=400, columns=400, dtype="float8_e4m3fn",
                  order="col", scales=kind, out_dtype=out_dtype)
    emulation = emulate(spec, replace(OF_BYTES[1], depth=2, block_m=block_m, block_n=block_n), 1)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("block_m", [64, 128])
def test_matrices_as_a_linear_holds_them_are_right(block_m: int) -> None:
    spec = routed("dispatch_gemm", 2, tokens=90, experts=8, top_k=3, columns=264, order="col")
    emulation = emulate(spec, replace(BESIDE, depth=2, block_m=block_m), 1)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("kind", ["tensor", "rowcol", "block"])
def test_large_ones_of_bytes_are_emulated_with_the_same_binaries(kind: str) -> None:
    spec = routed("dispatch_gemm", 2, tokens=8192, hidden=4096, columns=4096, experts=8, dtype="float8_e4m3fn", order="col",
                  scales=kind, then=("swiglu",))
    for schedule in OF_BYTES:
        small = scaled(spec, schedule)
        assert small.shrunk
        assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, schedule).binary_digest
    emulation = emulate(spec, OF_BYTES[1], 0)
    assert emulation.ok, emulation.report


def test_references_of_scaled_bytes_are_those_of_tokens_and_experts() -> None:
    spec = routed("dispatch_gemm", 2, tokens=6, hidden=144, experts=4, columns=136, dtype="float8_e4m3fn", order="col",
                  scales="block")
    rng = np.random.default_rng(0)
    indices = routing_of(spec, rng, TURNS[0])
    made = values(spec, indices, rng, False)
    tokens = np.concatenate([from_bits(each["a"], "float8_e4m3fn").reshape(3, 144) for each in made.inputs])
    of_tokens = np.concatenate([np.frombuffer(each["scale_a"], np.float32).reshape(3, 2) for each in made.inputs])
    chosen = np.concatenate(indices)
    for rank, given in enumerate(made.inputs):
        matrices = from_bits(given["b"], "float8_e4m3fn").reshape(2, 136, 144)  # as a Linear holds them
        of_experts = np.frombuffer(given["scale_b"], np.float32).reshape(2, 2, 2)
        sent = [(token, expert) for expert in range(2) for token, row in enumerate(chosen) if 2 * rank + expert in row]
        for at, (token, expert) in enumerate(sent):
            wanted = np.zeros(136)
            for k in range(144):
                wanted += (tokens[token, k] * of_tokens[token, k // 128] * matrices[expert, :, k]
                           * of_experts[expert, k // 128, np.arange(136) // 128])
            assert np.allclose(made.value[rank][at], wanted)
        assert len(made.value[rank]) == len(sent)


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.label)
def test_skews_are_right_and_large_ones_are_emulated_with_the_same_binaries(schedule: Schedule) -> None:
    routing = "histogram:9,4,2,2,1,1,1,0"
    spec = routed("dispatch_gemm", 2, tokens=8192, hidden=4096, columns=4096, experts=8, routing=routing)
    emulation = emulate(spec, replace(schedule, num_comm_blocks=16), 0)
    assert emulation.ok, emulation.report
    assert "same binaries, smaller tables" in emulation.report


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.label)
def test_counters_that_wrap_and_a_late_rank_change_nothing(schedule: Schedule) -> None:
    spec = routed("dispatch_gemm", 2, experts=8)
    run = Run(Scaled(spec, schedule, lower(spec, schedule), False), 0, "random", (),
              Conditions(first_call=2**32 - 1, late_rank=1))
    report = run_isolated([run.job])[0]
    assert report.ok, report.error
    assert run.judge(report) == []


def test_references_are_products_of_the_rows_of_a_dispatch() -> None:
    spec = routed("dispatch_gemm", 2, tokens=6, hidden=8, experts=4, columns=16)
    rng = np.random.default_rng(0)
    indices = routing_of(spec, rng, TURNS[0])
    made = values(spec, indices, rng, True)
    assert made.partly
    counts = [np.frombuffer(each["counts"], np.int32).reshape(2, 2) for each in made.exact]
    assert [len(value) for value in made.value] == [int(table.sum()) for table in counts]
    assert sum(len(value) for value in made.value) == 6 * 2
    assert all(value.shape[1] == 16 for value in made.value)
    assert all((allowed >= 0).all() for allowed in made.allowed)


def test_a_wrong_product_a_wrong_count_and_a_row_too_many_are_told() -> None:
    spec = routed("dispatch_gemm", 2, experts=4)
    run = Run(Scaled(spec, BEHIND, lower(spec, BEHIND), False), 0, "lazy", ())
    report = run_isolated([run.job])[0]
    assert run.judge(report) == []
    node, _, _, wanted = run.reads[0]
    end = wanted.value.size * 2
    for name, at, says in (("out", 1, "out[0, 0] is"), ("out", end, f"out is written behind byte {end}"),
                           ("counts", 0, "byte 0 of counts is wrong")):
        which = run.beside[node][name]
        seen = bytearray(report.seen[which])
        seen[at] ^= 0x40
        (line,) = run.judge(replace(report, seen={**report.seen, which: bytes(seen)}))
        assert line.startswith(f"call 0 rank 0: {says}")


def test_kernels_whose_wait_fails_drain_and_multiply_nothing() -> None:
    spec = routed("dispatch_gemm", 2, experts=8)
    plan = lower(spec, ALL[2])

    def silent(step: Step) -> bool:
        return isinstance(step, Signal) and step.rank == 0

    launch = plan.ranks[1][0]
    comm = replace(launch.roles[0], steps=tuple(step for step in launch.roles[0].steps if not silent(step)))
    mute = replace(plan, ranks=(plan.ranks[0], (replace(launch, roles=(comm, launch.roles[1])),)))
    run = Run(Scaled(spec, ALL[2], mute, False), 0, "random", (), Conditions(calls=1))
    report = run_isolated([replace(run.job, expire=True)])[0]
    assert report.ok, report.error
    seen = {rank: report.seen[node] for node, rank, *_ in run.reads}
    assert seen[0] == b"\xff" * len(seen[0])
    assert seen[1] != b"\xff" * len(seen[1])


def test_what_two_groups_touch_alike_is_told() -> None:
    spec = routed("dispatch_gemm", 2, experts=8)
    run = Run(Scaled(spec, ALL[2], lower(spec, ALL[2]), False), 0, "lazy", ())
    report = run_isolated([run.job])[0]
    assert run.judge(report) == []
    placed = [n for n, *_, step in run.plan.steps_of(0) if isinstance(step, Grouped) and step.task == "place_group"]
    logs = {(log.call, log.rank, log.step): i for i, log in enumerate(report.log)}
    first, second = (logs[0, 0, number] for number in placed[:2])
    log = list(report.log)
    log[second] = replace(log[second], writes=tuple(sorted((*log[second].writes, log[first].writes[-1]))))
    lines = run.judge(replace(report, log=tuple(log)))
    assert lines
    assert all("touch byte" in line and line.endswith("as of different parts") for line in lines)
