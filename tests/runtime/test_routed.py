"""Dispatch and combine on the CPU: right for every routing, on every world, and back again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import routed

from tilescale.runtime.emulate import Conditions, Run, emulate
from tilescale.runtime.emulator import run_isolated
from tilescale.runtime.emulator_report import Range
from tilescale.runtime.routed import counts_of
from tilescale.runtime.routed import routed as values
from tilescale.runtime.scaled import Scaled
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Ragged, Signal, Step
from tilescale.schedules.ragged import ragged_geometry
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

PUSH = Schedule(compute="generated", num_comm_blocks=2)
PULL = replace(PUSH, direction="pull")
KINDS = [("dispatch", "ordinary", PUSH), ("dispatch", "ordinary", PULL), ("dispatch", "symmetric", PULL),
         ("combine", "ordinary", PUSH), ("combine", "symmetric", PULL)]
BESIDE = [(op, inputs, replace(schedule, overlap="fused")) for op, inputs, schedule in KINDS]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(("op", "inputs", "schedule"), KINDS, ids=lambda value: getattr(value, "direction", value))
def test_every_routing_is_right_on_every_world(op: str, inputs: str, schedule: Schedule, ranks: int) -> None:
    for seed in range(2):  # three of the four turns each
        emulation = emulate(routed(op, ranks, inputs=inputs), schedule, 3 * seed + ranks)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("op", "inputs", "schedule"), BESIDE, ids=lambda value: getattr(value, "direction", value))
def test_one_gang_gives_and_another_takes(op: str, inputs: str, schedule: Schedule, ranks: int) -> None:
    spec = routed(op, ranks, tokens=8192, hidden=1032, inputs=inputs)
    emulation = emulate(spec, schedule, ranks)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("op", ["dispatch", "combine"])
@pytest.mark.parametrize(("dtype", "hidden"), [("float16", 77), ("float32", 33), ("bfloat16", 8)])
def test_rows_of_any_type_and_alignment_are_right(op: str, dtype: str, hidden: int) -> None:
    emulation = emulate(routed(op, 2, dtype=dtype, hidden=hidden, top_k=3, experts=6), PUSH, 1)
    assert emulation.ok, emulation.report


@pytest.mark.parametrize("op", ["dispatch", "combine"])
@pytest.mark.parametrize("tokens", [1, 5, 9])
def test_uneven_shards_and_ranks_without_tokens_are_right(op: str, tokens: int) -> None:
    for seed in range(2):
        emulation = emulate(routed(op, 4, tokens=tokens, hidden=24), PUSH, seed)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize("op", ["dispatch", "combine"])
def test_skews_are_right_and_large_ones_are_emulated_with_the_same_binaries(op: str) -> None:
    spec = routed(op, 4, tokens=8192, hidden=4096, experts=8, routing="histogram:9,4,2,2,1,1,1,0")
    emulation = emulate(spec, replace(PUSH, num_comm_blocks=16), 0)
    assert emulation.ok, emulation.report
    assert "same binaries, smaller tables" in emulation.report


@pytest.mark.parametrize("op", ["dispatch", "combine"])
def test_counters_that_wrap_and_a_late_rank_change_nothing(op: str) -> None:
    spec = routed(op, 3, hidden=24)
    run = Run(Scaled(spec, PUSH, lower(spec, PUSH), False), 0, "random", (),
              Conditions(first_call=2**32 - 1, late_rank=1))
    report = run_isolated([run.job])[0]
    assert report.ok, report.error
    assert run.judge(report) == []


def outputs(spec: Spec, indices: list[np.ndarray], seed: int, given: list[dict[str, bytes]]) -> list[dict[str, bytes]]:
    """What every rank finds after one emulated call with the operands `given`."""

    class Given(Run):
        def _routed(self, exact: bool):  # type: ignore[no-untyped-def]
            made = values(self.spec, indices, np.random.default_rng(seed), True)
            return given, super()._wanted_of(made)

    run = Given(Scaled(spec, PUSH, lower(spec, PUSH), False), seed, "random", (), Conditions(calls=1))
    report = run_isolated([run.job])[0]
    assert report.ok, report.error
    return [{name: report.seen[at] for name, at in run.beside[node].items()} for node, *_ in run.reads]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_what_is_dispatched_and_combined_is_weighted_by_all_its_weights(ranks: int) -> None:
    on, rng = Topology.shared_gpu(ranks=ranks), np.random.default_rng(ranks)
    out, back = (routed(op, ranks, hidden=16, dtype="float32", top_k=3, experts=2 * ranks, on=on)
                 for op in ("dispatch", "combine"))
    indices = [rng.integers(-1, 2 * ranks, (8, 3)).astype(np.int32) for _ in range(ranks)]
    tokens = [rng.integers(-4, 5, (8, 16)).astype(np.float32) for _ in range(ranks)]
    weights = [rng.integers(1, 4, (8, 3)).astype(np.float32) for _ in range(ranks)]
    passed = [{"a": t.tobytes(), "indices": i.tobytes()} for t, i in zip(tokens, indices, strict=True)]
    sent = outputs(out, indices, 1, passed)
    given = [{"a": sent[r]["out"], "counts": sent[r]["counts"], "indices": indices[r].tobytes(),
              "weights": weights[r].tobytes()} for r in range(ranks)]
    for rank, found in enumerate(outputs(back, indices, 2, given)):
        wanted = tokens[rank] * (weights[rank] * (indices[rank] >= 0)).sum(axis=1, keepdims=True)
        assert np.array_equal(np.frombuffer(found["out"], np.float32).reshape(8, 16), wanted)


def test_counts_say_how_many_rows_come_from_whom() -> None:
    geo = ragged_geometry(routed("dispatch", 2, experts=4), "push", 2)
    indices = [np.array([[0, 3], [3, -1]], np.int32), np.array([[9, 2]], np.int32)]
    assert counts_of(geo, indices).tolist() == [[1, 0, 0, 2], [0, 0, 1, 0]]


def test_a_wrong_row_or_a_row_too_many_is_told() -> None:
    spec = routed("dispatch", 2, hidden=24)
    run = Run(Scaled(spec, PUSH, lower(spec, PUSH), False), 0, "lazy", ())
    report = run_isolated([run.job])[0]
    assert run.judge(report) == []
    node = run.beside[run.reads[0][0]]["out"]
    seen = bytearray(report.seen[node])
    seen[-1] ^= 1  # behind all rows, where nobody may write
    spoiled = replace(report, seen={**report.seen, node: bytes(seen)})
    assert run.judge(spoiled) == [f"call 0 rank 0: byte {len(seen) - 1} of out is wrong"]


@pytest.mark.parametrize("op", ["dispatch", "combine"])
def test_kernels_whose_wait_fails_drain_and_go_by_no_number_that_is_not_there(op: str) -> None:
    spec = routed(op, 3, hidden=24)
    plan = lower(spec, PUSH)

    def silent(step: Step) -> bool:
        return isinstance(step, Signal) and (step.rank, step.counter) == (0, 1)

    launch = plan.ranks[1][0]
    role = replace(launch.roles[0], steps=tuple(step for step in launch.roles[0].steps if not silent(step)))
    mute = replace(plan, ranks=(plan.ranks[0], (replace(launch, roles=(role,)),), plan.ranks[2]))
    run = Run(Scaled(spec, PUSH, mute, False), 0, "random", (), Conditions(calls=1))
    report = run_isolated([replace(run.job, expire=True)])[0]
    assert report.ok, report.error
    seen = {rank: report.seen[node] for node, rank, *_ in run.reads}
    assert seen[0] == b"\xff" * len(seen[0])  # nothing was placed or summed
    assert seen[1] != b"\xff" * len(seen[1])


def test_what_a_step_touches_outside_of_its_bounds_is_told() -> None:
    spec = routed("dispatch", 2, hidden=24)
    run = Run(Scaled(spec, PUSH, lower(spec, PUSH), False), 0, "lazy", ())
    report = run_isolated([run.job])[0]
    assert run.judge(report) == []
    number = next(n for n, _, _, step in run.plan.steps_of(0) if isinstance(step, Ragged) and step.task == "place")
    at = next(i for i, log in enumerate(report.log) if (log.call, log.rank, log.step) == (1, 0, number))
    outside = replace(report.log[at], writes=(*report.log[at].writes, Range(1, "inbox", 0, 16)))
    spoiled = replace(report, log=(*report.log[:at], outside, *report.log[at + 1:]))
    (line,) = run.judge(spoiled)
    assert line.startswith(f"call 1 rank 0 launch all step {number} (Ragged) writes: declared")
