"""Global memory on the host: bounds, uninitialised bytes, alignment, the log."""

from __future__ import annotations

import pytest
from host_kernels import arguments, library

from tilescale.runtime.emulator import ADVERSARIES, Machine, Range, RunReport


def run_copy(
    bug: int = 0, *, adversary: str = "lazy", source: bytes = bytes(range(256)) * 16, size: int = 4096
) -> RunReport:
    machine = Machine(0, adversary)
    a = machine.register_memory(0, "a", 4096, data=source)
    b = machine.register_memory(1, "b", 8192)
    machine.add_kernel(
        0, "copy", library("copy", bug), "copy", arguments([a.address, b.address + 1024], n=size), b"", 2, 64, 0, call=1
    )
    return machine.run()


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_the_log_of_a_copy_is_its_ranges(adversary: str) -> None:
    report = run_copy(adversary=adversary, size=2048)
    step = report.step(1, 0, 7)
    assert report.ok, report.error
    assert step.reads == (Range(0, "a", 0, 2048),)
    assert step.writes == (Range(1, "b", 1024, 3072),)
    assert [s.step for s in report.log if s.reads or s.writes] == [7]


def test_an_access_past_the_end_has_a_place() -> None:
    report = run_copy(bug=1)
    fault = report.fault
    assert fault is not None
    assert (fault.kind, fault.rank, fault.launch, fault.step, fault.offset) == ("out_of_bounds", 0, "copy", 7, 4096)
    assert fault.buffer == "a of rank 0 (4096 bytes)"


def test_an_uninitialised_read_names_the_first_byte() -> None:
    report = run_copy(source=bytes(4088))
    fault = report.fault
    assert fault is not None
    assert (fault.kind, fault.offset) == ("uninitialised", 4088)


@pytest.mark.parametrize(
    ("bug", "kind"), [(1, "memory_fault"), (2, "memory_fault"), (5, "misaligned"), (6, "mbarrier"), (7, "misaligned")]
)
def test_broken_accesses_are_faults_of_the_run(bug: int, kind: str) -> None:
    machine = Machine()
    a = machine.register_memory(0, "a", 4096, initialised=True)
    machine.add_kernel(0, "broken", library("broken", bug), "broken", arguments([a.address, 0]), b"", 1, 32, 4096)
    fault = machine.run().fault
    assert fault is not None
    assert (fault.kind, fault.rank, fault.launch, fault.block, fault.step) == (kind, 0, "broken", 0, 2)
