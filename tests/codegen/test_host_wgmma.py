"""TMA tensor loads and wgmma on the host: both orders of B, all types, a tail, and planted faults."""

from __future__ import annotations

import numpy as np
import pytest
from host_kernels import arguments, library

from tilescale.runtime.check import to_bits
from tilescale.runtime.emulator import ADVERSARIES, Machine, Range, RunReport, tensor_map

K = 384
ROWS = 50  # of A; the tile has 64


FP8 = {"E4m3": "float8_e4m3fn", "E5m2": "float8_e5m2"}


def bits(values: np.ndarray, element: str) -> bytes:
    if element in FP8:
        return to_bits(values, FP8[element]).tobytes()
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
    report, found = multiply(a, b, bug, transposed=transposed, element=element, adversary=adversary, seed=seed)
    return report, found is not None and np.array_equal(found[:ROWS], a @ b) and not found[ROWS:].any()


def multiply(
    a: np.ndarray,
    b: np.ndarray,
    bug: int = 0,
    *,
    transposed: bool = False,
    element: str = "Bf16",
    adversary: str = "lazy",
    seed: int = 0,
) -> tuple[RunReport, np.ndarray | None]:
    """The report, and the 64 rows of the product where it ended."""
    n, size = b.shape[1], 1 if element in FP8 else 2
    depth = 128 // size
    machine = Machine(seed, adversary)
    memory_a = machine.register_memory(0, "a", ROWS * K * size, data=bits(a, element))
    memory_b = machine.register_memory(0, "b", K * n * size, data=bits(b if transposed else b.T.copy(), element))
    out = machine.register_memory(0, "out", 64 * n * 4)
    maps = tensor_map(memory_a.address, (K, ROWS, 1), (K * size, K * size * ROWS), (depth, 64, 1), size)
    if transposed:
        maps += tensor_map(memory_b.address, (n, K), (n * 2,), (64, 64), 2)
    else:
        maps += tensor_map(memory_b.address, (K, n), (K * size,), (depth, n), size)
    kernel = library("gemm", bug, WIDTH=n, TRANSPOSED=str(transposed).lower(), ELEMENT=element, DEPTH=depth)
    node = machine.add_kernel(
        0, "gemm", kernel, "gemm", arguments([out.address], k=K), maps, 1, 256, 2 * (64 * 128 + n * 128) + 32
    )
    read = machine.add_caller_read(0, out.address, 64 * n * 4, [node])
    report = machine.run()
    return report, np.frombuffer(report.seen[read], np.float32).reshape(64, n) if read in report.seen else None


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("element", ["Bf16", "Fp16"])
def test_products_are_exact(adversary: str, transposed: bool, element: str) -> None:
    report, right = run_gemm(transposed=transposed, element=element, adversary=adversary)
    assert report.ok, report.error
    assert right


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("element", FP8)
def test_products_of_bytes_are_exact_on_small_integers(adversary: str, element: str) -> None:
    report, right = run_gemm(element=element, adversary=adversary)
    assert report.ok, report.error
    assert right


def test_sums_of_bytes_keep_13_bits_below_the_largest_addend() -> None:
    """256 = 2^8 leaves nothing below 2^-5 of what is added in the same instruction or after it; above, everything stays."""
    a, b = np.zeros((ROWS, K), np.float32), np.ones((K, 8), np.float32)
    a[:, 0] = 256
    a[0, 1:] = 2.0**-6
    a[1, 1:] = -(2.0**-6)
    a[2, 1:] = 2.0**-5
    a[3, 1:64] = 2.0**-6
    a[3, 0] = 0
    _, found = multiply(a, b, element="E4m3")
    assert found is not None
    assert found[:4, 0].tolist() == [256, 256, 256 + (K - 1) / 32, 63 / 64]


@pytest.mark.parametrize("n", [8, 24, 64, 256])
@pytest.mark.parametrize("element", ["Bf16", "E4m3"])
def test_widths(n: int, element: str) -> None:
    assert run_gemm(n=n, element=element)[1]


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
