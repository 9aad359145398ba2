"""TMA tensor loads and wgmma on the host: both orders of B, both types, a tail, and planted faults."""

from __future__ import annotations

import numpy as np
import pytest
from host_kernels import arguments, library

from tilescale.runtime.emulator import ADVERSARIES, Machine, Range, RunReport, tensor_map

K = 320
ROWS = 50  # of A; the tile has 64


def bits(values: np.ndarray, element: str) -> bytes:
    if element == "Fp16":
        return values.astype(np.float16).tobytes()
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()


def run_gemm(
    bug: int = 0,
    *,
    n: int = 128,
    transposed: bool = False,
    element: str = "Bf16",
    adversary: str = "lazy",
    seed: int = 0,
) -> tuple[RunReport, bool]:
    random = np.random.default_rng(seed)
    a = random.integers(-4, 5, (ROWS, K)).astype(np.float32)
    b = random.integers(-4, 5, (K, n)).astype(np.float32)
    machine = Machine(seed, adversary)
    memory_a = machine.register_memory(0, "a", ROWS * K * 2, data=bits(a, element))
    memory_b = machine.register_memory(0, "b", K * n * 2, data=bits(b if transposed else b.T.copy(), element))
    out = machine.register_memory(0, "out", 64 * n * 4)
    maps = tensor_map(memory_a.address, (K, ROWS, 1), (K * 2, K * 2 * ROWS), (64, 64, 1), 2)
    if transposed:
        maps += tensor_map(memory_b.address, (n, K), (n * 2,), (64, 64), 2)
    else:
        maps += tensor_map(memory_b.address, (K, n), (K * 2,), (64, n), 2)
    kernel = library("gemm", bug, WIDTH=n, TRANSPOSED=str(transposed).lower(), ELEMENT=element)
    node = machine.add_kernel(
        0, "gemm", kernel, "gemm", arguments([out.address], k=K), maps, 1, 256, 2 * (64 * 128 + n * 128) + 32
    )
    read = machine.add_caller_read(0, out.address, 64 * n * 4, [node])
    report = machine.run()
    want = np.zeros((64, n), np.float32)
    want[:ROWS] = a @ b
    return report, read in report.seen and report.seen[read] == want.tobytes()


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("element", ["Bf16", "Fp16"])
def test_products_are_exact(adversary: str, transposed: bool, element: str) -> None:
    report, right = run_gemm(transposed=transposed, element=element, adversary=adversary)
    assert report.ok, report.error
    assert right


@pytest.mark.parametrize("n", [8, 24, 64, 256])
def test_widths(n: int) -> None:
    assert run_gemm(n=n)[1]


def test_tensor_loads_log_only_bytes_inside_the_tensor() -> None:
    step = run_gemm()[0].step(0, 0, 5)
    assert step.reads == (Range(0, "a", 0, ROWS * K * 2), Range(0, "b", 0, 128 * K * 2))


@pytest.mark.parametrize("bug", [1, 2, 3])
def test_planted_faults_of_the_pipeline_are_found(bug: int) -> None:
    """An early release, no wait for `empty`, results before the wait: wrong values or an error, when work is late."""
    for seed in range(3):
        report, right = run_gemm(bug, seed=seed)
        assert not (report.ok and right)


def test_a_stage_that_is_never_released_is_a_deadlock() -> None:
    report, _ = run_gemm(5)
    assert report.fault is not None
    assert report.fault.kind == "deadlock"
    assert "step 5 waits for mbarrier at shared offset" in report.deadlock
    assert "1 arrivals, 0 bytes missing" in report.deadlock


def test_warps_that_differ_are_an_error() -> None:
    report, _ = run_gemm(4)
    assert report.fault is not None
    assert report.fault.kind == "collective"
