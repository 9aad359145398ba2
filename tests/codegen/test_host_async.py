"""Asynchronous copies, mbarriers and signals on the host: right kernels pass, wrong twins are found."""

from __future__ import annotations

import struct

import pytest
from host_kernels import arguments, counters, library

from tilescale.runtime.emulator import ADVERSARIES, Machine, Range, RunReport, Signalled, Waited

DATA = struct.pack("<512I", *range(512))


def run_put(bug: int, adversary: str, seed: int = 0, stale: bool = False) -> tuple[RunReport, bytes]:
    machine = Machine(seed, adversary)
    source = machine.register_memory(0, "source", 2048, data=DATA)
    inbox = machine.register_memory(1, "inbox", 2048, initialised=stale)
    output = machine.register_memory(1, "output", 2048)
    flags = [counters(machine, rank).address for rank in (0, 1)]
    put, slots = library("put", bug), [source.address, inbox.address, output.address]
    nodes = [
        machine.add_kernel(rank, f"put{rank}", put, "put", arguments(slots, flags, rank=rank, n=1), b"", 1, 32, 4104)
        for rank in (0, 1)
    ]
    read = machine.add_caller_read(1, output.address, 2048, nodes)
    report = machine.run()
    return report, report.seen.get(read, b"")


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("seed", range(4))
def test_a_right_put_arrives(adversary: str, seed: int) -> None:
    report, seen = run_put(0, adversary, seed)
    assert report.ok, report.error
    assert seen == DATA


def test_the_log_of_a_put() -> None:
    report, _ = run_put(0, "lazy")
    assert report.step(0, 0, 1).reads == (Range(0, "source", 0, 2048),)
    assert report.step(0, 0, 1).writes == (Range(1, "inbox", 0, 2048),)
    assert report.step(0, 0, 2).signals == (Signalled(1, 3, 1),)
    assert report.step(0, 1, 3).waits == (Waited(3, 1, 1),)
    assert report.step(0, 1, 4).reads == (Range(1, "inbox", 0, 2048),)


@pytest.mark.parametrize("bug", [1, 2, 4])
def test_a_signal_before_the_bytes_is_found(bug: int) -> None:
    """.read before the signal, no wait, signal first: rank 1 reads what nobody has written yet."""
    for seed in range(4):
        report, _ = run_put(bug, "lazy", seed)
        assert report.fault is not None
        assert report.fault.kind in ("uninitialised", "in_flight")
        report, seen = run_put(bug, "lazy", seed, stale=True)
        assert not report.ok or seen != DATA


def test_a_count_too_high_says_who_waits_for_what() -> None:
    report, _ = run_put(3, "random")
    assert report.fault is not None
    assert report.fault.kind == "deadlock"
    assert "rank 1 put1 block 0 thread 0 step 3 waits for counter 3: found 1, wanted 2" in report.deadlock
    assert "rank 1 put1 block 0 threads 1-31 step 3 waits for barrier 0: 31 of 32 threads" in report.deadlock


@pytest.mark.parametrize(
    ("bug", "text"), [(5, "after the phase|more than expected"), (6, "that no copy brings"), (7, "more than 1 times")]
)
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_mismatched_mbarriers_are_errors(bug: int, text: str, adversary: str) -> None:
    report, _ = run_put(bug, adversary)
    assert report.fault is not None
    assert report.fault.kind == "mbarrier"
    assert any(part in report.error for part in text.split("|"))


def test_a_block_may_not_exit_with_its_shared_memory_in_use() -> None:
    report, _ = run_put(8, "lazy", stale=True)
    assert report.fault is not None
    assert report.fault.kind == "in_flight"


def run_staging(bug: int, adversary: str, seed: int) -> bool:
    machine = Machine(seed, adversary)
    out = machine.register_memory(0, "out", 1024)
    node = machine.add_kernel(
        0, "staging", library("staging", bug), "staging", arguments([out.address]), b"", 1, 32, 1024
    )
    read = machine.add_caller_read(0, out.address, 1024, [node])
    report = machine.run()
    assert report.ok, report.error
    return report.seen[read] == struct.pack("<256I", *range(256))


def test_shared_memory_reused_before_it_was_read_is_found() -> None:
    for adversary in ADVERSARIES:
        assert all(run_staging(0, adversary, seed) for seed in range(4))
    assert not any(run_staging(1, "lazy", seed) for seed in range(4))
    assert run_staging(1, "eager", 0)  # the adversary matters: nothing is late here
