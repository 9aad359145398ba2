"""Kernels that exchange packets: emulated right with every adversary, compiled for Hopper, their row, their failures."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support import reduction

from tilescale import canon
from tilescale.codegen.cache import Binary
from tilescale.codegen.compile import Compiler, Source
from tilescale.codegen.emit import emit
from tilescale.codegen.host.build import INCLUDE
from tilescale.codegen.program import Program
from tilescale.codegen.rules import check_kernels
from tilescale.codegen.table import KIND_PACKETS, STEP
from tilescale.errors import PlanError
from tilescale.runtime.emulate import Conditions, emulate, prepare
from tilescale.runtime.emulator import run_isolated
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

LL = Schedule(algorithm="one_shot", compute="generated", num_comm_blocks=2, protocol="ll")
TWO = replace(LL, algorithm="two_shot")
ADVERSARIES = ("lazy", "random", "eager")


def summed(shape: tuple[int, ...], ranks: int, **more: object) -> Spec:
    return reduction(shape, ranks, on=Topology.shared_gpu(ranks), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_sums_are_right_and_conform(ranks: int, adversary: str) -> None:
    for seed, blocks in enumerate((2, 4)):
        emulation = emulate(summed((3, 1028), ranks), replace(LL, num_comm_blocks=blocks), seed, adversary)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_two_shots_are_right_and_conform(ranks: int, adversary: str) -> None:
    for seed, blocks in enumerate((2, 4)):
        emulation = emulate(summed((4, 1032 * ranks), ranks), replace(TWO, num_comm_blocks=blocks), seed, adversary)
        assert emulation.ok, emulation.report


TWICE: dict[str, Spec] = {
    "floats": summed((5, 36), 3, dtype="float32"), "several packets a thread": summed((96, 128), 2),
    "fewer packets than blocks": summed((3, 8), 3), "then bias and addend": summed((6, 20), 3, then=("bias", "accumulate")),
    "many ranks": summed((2, 40), 10), "operands in place": summed((4, 64), 2, inputs="symmetric"),
}


@pytest.mark.parametrize("name", TWICE)
def test_types_sizes_and_epilogues_of_two_shots(name: str) -> None:
    for seed, adversary in enumerate(ADVERSARIES):
        emulation = emulate(TWICE[name], TWO, seed + len(name), adversary)
        assert emulation.ok, emulation.report


CASES: dict[str, Spec] = {
    "floats": summed((5, 1030), 3, dtype="float32"), "halves": summed((5, 1028), 4, dtype="float16"),
    "several packets a thread": summed((40, 520), 2), "one packet": summed((4,), 2),
    "fewer packets than blocks": summed((8,), 3), "operands in place": summed((3, 64), 2, inputs="symmetric"),
    "then bias and addend": summed((7, 20), 3, then=("bias", "accumulate")), "many ranks": summed((2, 36), 12),
    "then silu of floats": summed((6, 36), 2, dtype="float32", then=("silu",)),
}


@pytest.mark.parametrize("name", CASES)
def test_types_sizes_and_epilogues(name: str) -> None:
    for seed, adversary in enumerate(ADVERSARIES):
        emulation = emulate(CASES[name], LL, seed + len(name), adversary)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize("first_call", [1, 2**32 - 2, 2**32 - 1])
def test_more_calls_late_ranks_and_an_epoch_that_wraps(first_call: int) -> None:
    for late, adversary in enumerate(ADVERSARIES):
        conditions = Conditions(calls=5, first_call=first_call, late_rank=late)
        for schedule in (LL, TWO):
            emulation = emulate(summed((3, 260), 3), schedule, first_call % 7 + late, adversary, conditions=conditions)
            assert emulation.ok, emulation.report


def test_large_parts_are_emulated_as_they_are() -> None:
    emulation = emulate(summed((32, 4096), 2), replace(LL, num_comm_blocks=16), 1)
    assert emulation.ok, emulation.report
    assert "in place of" not in emulation.report


def test_kernels_compile_without_spills_and_break_no_rule(tmp_path: Path) -> None:
    on = [*(Topology.shared_gpu(ranks) for ranks in (2, 8)), Topology.scale_model("8xH200-NVSwitch", ranks=4)]
    specs = [reduction((4, 4096), topology.ranks, on=topology, dtype=dtype, then=then) for topology in on
             for dtype in ("bfloat16", "float32") for then in ((), ("bias",))]
    kernels = [kernel for spec in specs for schedule in (LL, TWO) for kernel in emit(spec, schedule).kernels]
    assert {kernel.entry for kernel in kernels} == {"tilescale_packets"}
    assert check_kernels(kernels) == ()
    assert ["link_clock = true" in kernel.text for kernel in kernels] == [False] * 16 + [True] * 8
    with Compiler(1, cache_dir=tmp_path) as compiler:
        made = compiler.compile([Source(kernel.text, kernel.entry, kernel.arch) for kernel in kernels])
    for kernel, binary in zip(kernels, made, strict=True):
        assert isinstance(binary, Binary), f"{kernel.text}\n{binary}"
        assert (binary.spill_bytes, binary.registers <= 120) == (0, True)


def test_all_that_a_launch_does_comes_with_its_arguments() -> None:
    spec = summed((3, 1028), 4)
    program = emit(spec, replace(LL, num_comm_blocks=16))
    for rank, (launch,) in enumerate(program.ranks):
        assert launch.first_rows == bytes.fromhex(launch.steps)
        kind, number, source, target, counter, _, _, rows, _, _, size, _, _ = STEP.unpack(launch.first_rows)
        assert (kind, number, size, rows) == (KIND_PACKETS, 0, 3 * 1028 * 2, -(-3 * 1028 * 2 // 8 // 16))
        assert [program.slots[at].buffer for at in (source, target)] == ["a", "out"]
        assert [(s.buffer, s.rank) for s in program.slots[counter : counter + 4]] == [("inbox", r) for r in range(4)], rank
    assert canon.loads(Program, canon.dumps(program)) == program
    two = emit(summed((3, 1024), 4), replace(TWO, num_comm_blocks=16))
    _, _, _, _, inbox, _, result, rows, _, _, size, _, _ = STEP.unpack(two.launches[0].first_rows)
    assert (size, rows) == (3 * 1024 * 2 // 4, -(-3 * 1024 * 2 // 4 // 8 // 16))
    assert [(two.slots[at + 3].buffer, two.slots[at + 3].rank) for at in (inbox, result)] == [("inbox", 3), ("result", 3)]


def test_tables_and_binaries_hold_twice_the_bytes_and_nothing_else_changes() -> None:
    spec = summed((3, 1028), 4)
    packets, plain = emit(spec, LL), emit(spec, replace(LL, protocol="simple"))
    strides = [next(p.stride for p in program.placed if p.buffer == "inbox") for program in (packets, plain)]
    assert strides == [2 * 4 * 3 * 1028 * 2 // 1024 * 1024 + 1024, 4 * 3 * 1028 * 2 // 1024 * 1024 + 1024]
    assert not any("packets" in kernel.text for kernel in plain.kernels)


def test_steps_that_a_row_cannot_say_are_refused() -> None:
    spec = summed((3, 1028), 3)
    plan = lower(spec, LL)
    launch = plan.ranks[0][0]
    put, total = launch.roles[0].steps
    for steps in ((put,), (total, put), (replace(put, others=()), total), (put, replace(total, others=put.targets))):
        other = replace(launch, roles=(replace(launch.roles[0], steps=steps),))
        with pytest.raises(PlanError, match="goes from every rank to every other, and adds up one part of each"):
            emit(spec, LL, replace(plan, ranks=((other,), *plan.ranks[1:])))


@pytest.mark.parametrize("schedule", [LL, TWO], ids=lambda schedule: schedule.algorithm)
def test_packets_that_never_come_are_reported_and_the_kernel_drains(schedule: Schedule, tmp_path: Path) -> None:
    include = tmp_path / "include"
    shutil.copytree(INCLUDE, include)
    header = include / "tilescale" / "packets.cuh"
    role = "template <class C> TS_DEV void packet_role(const Arguments& args) {"
    text = header.read_text()
    assert text.count(role) == 1
    header.write_text(text.replace(role, f"{role}\n  if (args.rank == 1u) return;"))
    run = prepare(summed((1, 64), 2), schedule, 0, "random", [include, include / "tilescale"], Conditions(calls=1))
    stuck, expired = run_isolated([run.job, replace(run.job, expire=True)])
    assert stuck.fault is not None
    assert stuck.fault.kind == "deadlock"
    assert "found 0, wanted 2147483648" in stuck.deadlock  # the mark of the first call
    assert expired.ok, expired.error
    seen = {rank: expired.seen[node] for node, rank, *_ in run.reads}
    assert seen[0] != b"\xff" * len(seen[0])  # rank 0 has added up its own part alone, and drained
