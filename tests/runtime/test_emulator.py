"""The emulator's binding: the graph of launches, determinism, processes of its own, reports."""

from __future__ import annotations

import dataclasses
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from tilescale.codegen.table import pack_arguments
from tilescale.errors import EmulationError
from tilescale.runtime.emulator import ADVERSARIES, Machine, Range, build_candidate, run_isolated, run_job, tensor_map

DATA = Path(__file__).parent.parent / "data" / "host"


def library(name: str, bug: int = 0) -> Path:
    return build_candidate(f"#define BUG {bug}\n" + (DATA / f"{name}.cu").read_text(), [DATA])


def arguments(*slots: int, n: int = 0) -> bytes:
    return pack_arguments(
        slots, [0] * len(slots), [], state=0, steps=0, blocks=0, time_limit_ns=0, rank=0, last=0, n=n, k=0
    )


def copies(seed: int, adversary: str, ordered: bool = True) -> tuple[Machine, int]:
    """The caller writes a; a kernel copies a to b; a copy engine copies b to c of rank 1; the caller reads c."""
    machine = Machine(seed, adversary)
    a, b, c = (machine.register_memory(rank, name, 1024) for rank, name in ((0, "a"), (0, "b"), (1, "c")))
    write = machine.add_caller_write(0, a.address, bytes(range(256)) * 4)
    kernel = machine.add_kernel(
        0, "copy", library("copy"), "copy", arguments(a.address, b.address, n=1024), b"", 3, 64, 0, [write]
    )
    engine = machine.add_copy(0, "engine", c.address, b.address, 1024, step=8, after=[kernel] if ordered else [])
    return machine, machine.add_caller_read(1, c.address, 1024, [engine])


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_nodes_run_after_what_they_depend_on(adversary: str) -> None:
    for seed in range(5):
        machine, read = copies(seed, adversary)
        report = machine.run()
        assert report.ok, report.error
        assert report.seen == {read: bytes(range(256)) * 4}
        assert report.step(0, 0, 8).writes == (Range(1, "c", 0, 1024),)


def test_a_missing_dependency_is_found() -> None:
    machine, _ = copies(0, "eager", ordered=False)
    fault = machine.run().fault
    assert fault is not None
    assert (fault.kind, fault.launch, fault.step, fault.buffer) == (
        "uninitialised",
        "engine",
        8,
        "b of rank 0 (1024 bytes)",
    )


def test_a_seed_decides_the_whole_run() -> None:
    reports = [copies(seed, "random")[0].run() for seed in (1, 1, 2, 3)]
    assert reports[0] == reports[1]
    assert len({report.steps for report in reports}) > 1
    assert len({report.log for report in reports}) == 1  # what is done does not depend on when


def test_a_job_gives_the_same_report_in_another_process() -> None:
    jobs = [copies(seed, "random")[0].job() for seed in (4, 5)]
    assert pickle.loads(pickle.dumps(jobs)) == jobs
    assert run_isolated(jobs) == [run_job(job) for job in jobs]


@pytest.mark.parametrize(("bug", "message"), [(4, "status -4"), (3, "still running")])
def test_what_breaks_the_process_is_an_error_here(bug: int, message: str) -> None:
    machine = Machine()
    a = machine.register_memory(0, "a", 1024)
    machine.add_kernel(0, "broken", library("broken", bug), "broken", arguments(a.address, 0), b"", 1, 32, 1024)
    with pytest.raises(EmulationError, match=message):
        run_isolated([machine.job()], timeout_s=5 if bug == 3 else 60)


@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize(
    ("in_format", "out_format"), [("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float16")]
)
def test_a_library_product(b_transposed: bool, in_format: str, out_format: str) -> None:
    m, n, k = 5, 12, 7
    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    machine = Machine()
    memories = [
        machine.register_memory(0, name, 4 * values.size, data=encode(values, in_format))
        for name, values in (("a", a), ("b", b.T.copy() if b_transposed else b))
    ]
    out = machine.register_memory(0, "out", 4 * m * n)
    product = machine.add_library_gemm(
        0,
        "product",
        memories[0].address,
        memories[1].address,
        out.address,
        m,
        n,
        k,
        in_format=in_format,
        out_format=out_format,
        b_transposed=b_transposed,
        step=3,
    )
    want = encode(a @ b, out_format)
    read = machine.add_caller_read(0, out.address, len(want), [product])
    report = machine.run()
    assert report.seen[read] == want
    assert report.step(0, 0, 3).writes == (Range(0, "out", 0, len(want)),)


def encode(values: np.ndarray, name: str) -> bytes:
    if name == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(name).tobytes()


def test_a_run_has_a_step_limit() -> None:
    machine, _ = copies(0, "lazy")
    report = run_job(dataclasses.replace(machine.job(), step_limit=20))
    assert report.fault is not None
    assert report.fault.kind == "step_limit"
    assert run_job(machine.job()).ok


def test_plain_memory_that_was_not_written_is_poison() -> None:
    machine = Machine()
    a = machine.register_memory(0, "a", 64, data=b"\x01" * 16, initialised=True)
    read = machine.add_caller_read(0, a.address, 64)
    assert machine.run().seen[read] == b"\x01" * 16 + b"\xff" * 48


def test_mistakes_are_refused_when_they_are_made() -> None:
    machine = Machine()
    with pytest.raises(EmulationError, match="lazy, random, eager"):
        Machine(adversary="angry")
    with pytest.raises(EmulationError, match="its data fits"):
        machine.register_memory(0, "a", 4, data=bytes(5))
    with pytest.raises(EmulationError, match="added before it"):
        machine.add_copy(0, "copy", 0, 0, 0, step=0, after=[0])
    with pytest.raises(EmulationError, match="1 to 1024 threads"):
        machine.add_kernel(0, "copy", library("copy"), "copy", b"", b"", 1, 2048, 0)
    with pytest.raises(EmulationError, match="one stride fewer"):
        tensor_map(0, (64, 64), (), (64, 64), 2)
    machine.add_kernel(0, "copy", library("copy"), "no_such_entry", b"", b"", 1, 32, 0)
    with pytest.raises(EmulationError, match="no_such_entry"):
        machine.run()


def test_a_tensor_map_holds_its_sizes() -> None:
    values = struct.unpack("<6Q6I", tensor_map(4096, (320, 50), (640,), (64, 32), 2)[:72])
    assert values == (4096, 320, 50, 1, 640, 32000, 64, 32, 1, 2, 1, 0)
