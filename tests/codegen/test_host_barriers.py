"""Barriers of threads on the host, and waits between blocks."""

from __future__ import annotations

import struct

import pytest
from host_kernels import arguments, counters, library

from tilescale.runtime.emulator import ADVERSARIES, Machine, RunReport


def run_barriers(bug: int, seed: int = 0, adversary: str = "lazy") -> tuple[RunReport, bool]:
    machine = Machine(seed, adversary)
    out = machine.register_memory(0, "out", 512, initialised=True)
    node = machine.add_kernel(
        0, "barriers", library("barriers", bug), "barriers", arguments([out.address]), b"", 1, 128, 1024
    )
    read = machine.add_caller_read(0, out.address, 512, [node])
    report = machine.run()
    found = struct.unpack("<128I", report.seen.get(read, bytes(512)))
    return report, all(found[t] == t // 64 * 64 + (t + 1) % 64 for t in range(128) if t % 64 != 63)


def test_barriers_order_threads_and_drop_those_that_exit() -> None:
    for adversary in ADVERSARIES:
        for seed in range(3):
            report, right = run_barriers(0, seed, adversary)
            assert report.ok, report.error
            assert right


def test_a_missing_barrier_is_found() -> None:
    assert not any(run_barriers(1, seed)[1] for seed in range(3))


def test_a_count_too_low_lets_threads_through_early() -> None:
    assert not all(run_barriers(2, seed)[1] for seed in range(6))


@pytest.mark.parametrize(("bug", "kind"), [(3, "barrier"), (4, "deadlock"), (5, "barrier")])
def test_misused_barriers_are_errors(bug: int, kind: str) -> None:
    report, _ = run_barriers(bug)
    assert report.fault is not None
    assert report.fault.kind == kind


def run_meet(bug: int, *, blocks: int = 4, target: int = 4, sm_share: int = 4, expire: bool = False) -> RunReport:
    machine = Machine(0, "random", sm_share, expire=expire)
    out = machine.register_memory(0, "out", 64)
    flags = counters(machine, 0)
    machine.add_kernel(
        0, "meet", library("meet", bug), "meet", arguments([out.address], [flags.address], n=target), b"", blocks, 32, 0
    )
    return machine.run()


@pytest.mark.parametrize("bug", [0, 1, 2])
def test_blocks_meet_when_all_are_resident(bug: int) -> None:
    assert run_meet(bug).ok


@pytest.mark.parametrize("bug", [0, 2])
def test_too_many_blocks_deadlock(bug: int) -> None:
    report = run_meet(bug, sm_share=3)
    assert report.fault is not None
    assert report.fault.kind == "deadlock"
    assert "rank 0 meet: 1 blocks from 3 not started, 3 of 3 places taken" in report.deadlock


def test_a_wait_that_never_ends_is_told_for_all_blocks_at_once() -> None:
    report = run_meet(0, target=5)
    assert report.deadlock == "rank 0 meet blocks 0-3 thread 0 step 9 waits for counter 0: found 4, wanted 5"


def test_waits_can_run_out_of_time() -> None:
    assert run_meet(1, target=5, expire=True).ok
    assert not run_meet(1, target=5).ok
