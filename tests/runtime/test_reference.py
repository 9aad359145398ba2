"""reference: the sums of every operation, against plain products of whole matrices; numpy and torch alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import ag_gemm, all_gather, gemm_rs, reduction, topology

from tilescale.runtime import reference
from tilescale.runtime.check import first_wrong, from_bits, to_bits
from tilescale.runtime.gpu_check import TorchArrays
from tilescale.runtime.reference import NumpyArrays, Sums, add_up
from tilescale.spec.op import Spec, matmul
from tilescale.spec.result import Factor, deviation, result_of
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import FullCol, FullRow, PartialView, Replicate, ReplicateView, Shard

torch = pytest.importorskip("torch")


def product(a: object, b: object, out: object, shape: tuple[int, int, int] = (12, 20, 28)) -> Spec:
    m, n, k = shape
    return matmul(Tensor((m, k), "bfloat16", a), Tensor((k, n), "bfloat16", b), out, topology(4))  # type: ignore[arg-type]


SPECS = [
    ag_gemm((12, 20, 28)), all_gather((12, 20)), all_gather((9, 20)), gemm_rs((12, 20, 28)), gemm_rs((9, 20, 26)),
    gemm_rs((1, 20, 28), ranks=8), gemm_rs((13, 20, 28), out="Replicate"), reduction((12, 20)), reduction((3, 5, 7)),
    reduction((9, 20), to=FullRow), reduction((12, 18), to=FullCol), reduction((3, 9, 7), to=Shard(1)),
    reduction((2, 5), ranks=8, to=FullRow), product(FullRow, FullRow, FullRow), product(FullCol, FullCol, FullCol),
    product(Replicate, Replicate, Replicate), product(FullRow, Replicate, FullRow), product(Replicate, FullCol, FullCol),
]


def locals_of(spec: Spec, seed: int = 0) -> list[list[Any]]:
    """Local inputs by operand and rank; replicas are equal."""
    rng = np.random.default_rng(seed)
    found = []
    for tensor in spec.inputs:
        ranks = [rng.standard_normal(tensor.local_shape(rank, spec.world)) for rank in range(spec.world)]
        found.append(ranks[:1] * spec.world if isinstance(tensor.view, ReplicateView) else ranks)
    return found


def sums_of(spec: Spec, rank: int, inputs: list[list[Any]], arrays: Any = None) -> Sums:
    def load(factor: Factor) -> Any:
        parts = [inputs[factor.operand][source] for source in factor.ranks]
        return np.concatenate(parts, factor.dim) if arrays is None else torch.cat(parts, factor.dim)

    return add_up(result_of(spec, rank), load, arrays or NumpyArrays(), magnitude=True, spread=True)


def whole(tensor: Tensor, ranks: list[Any]) -> Any:
    """The global tensor."""
    if isinstance(tensor.view, PartialView):
        return sum(ranks)
    return ranks[0] if tensor.shard_dim is None else np.concatenate(ranks, tensor.shard_dim)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.label} {spec.output.view.label}")
def test_a_result_is_the_local_part_of_the_operation_on_whole_tensors(
    spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "ROWS_AT_ONCE", 5)
    inputs = locals_of(spec)
    tensors = [whole(tensor, ranks) for tensor, ranks in zip(spec.inputs, inputs, strict=True)]
    full = tensors[0] if len(tensors) == 1 else tensors[0] @ tensors[1]
    for rank in range(spec.world):
        offset, shape = spec.output.local_offset(rank, spec.world), spec.output.local_shape(rank, spec.world)
        part = full[tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))]
        found = sums_of(spec, rank, inputs)
        assert found.value.shape == shape
        np.testing.assert_allclose(found.value, part, rtol=1e-12, atol=1e-12)
        assert (found.magnitude >= np.abs(part) - 1e-9).all()
        assert (found.magnitude >= found.spread - 1e-9).all()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.label} {spec.output.view.label}")
def test_numpy_and_torch_give_the_same(spec: Spec) -> None:
    inputs = locals_of(spec)
    tensors = [[torch.from_numpy(value).bfloat16() for value in ranks] for ranks in inputs]
    rounded = [[value.double().numpy() for value in ranks] for ranks in tensors]
    for rank in (0, spec.world - 1):
        mine, theirs = sums_of(spec, rank, rounded), sums_of(spec, rank, tensors, TorchArrays(torch, "cpu"))
        np.testing.assert_allclose(theirs.value.numpy(), mine.value, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(theirs.magnitude.numpy(), mine.magnitude, rtol=1e-3)
        np.testing.assert_allclose(theirs.spread.numpy(), mine.spread, rtol=1e-3, atol=1e-6)
        allowed = deviation(spec, result_of(spec, rank))
        np.testing.assert_allclose(theirs.allowed(allowed).numpy(), mine.allowed(allowed), rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("out", ["FullRow", "Replicate"])
def test_a2_decode_sizes_have_every_row_once(out: str) -> None:
    for rows in range(1, 18):
        spec = gemm_rs((rows, 16, 64), ranks=8, out=out)
        inputs = locals_of(spec, rows)
        full = whole(spec.inputs[0], inputs[0]) @ whole(spec.inputs[1], inputs[1])
        found = [sums_of(spec, rank, inputs).value for rank in range(8)]
        if out == "FullRow":
            assert [len(part) for part in found] == list(Tensor.shard_sizes(rows, 8))
            found = [np.concatenate(found)]
        for part in found:
            np.testing.assert_allclose(part, full, rtol=1e-12, atol=1e-12)


def test_bf16_sums_over_8_ranks_equal_the_fp32_sum_rounded_once() -> None:
    """What kernels do passes, in any order; sums that are rounded as they run do not."""
    spec = reduction((64, 64), ranks=8)
    inputs = [[from_bits(to_bits(v, "bfloat16").tobytes(), "bfloat16").reshape(v.shape) for v in locals_of(spec)[0]]]
    sums = sums_of(spec, 3, inputs)
    allowed = sums.allowed(deviation(spec, result_of(spec, 3)))
    for order in (range(8), (5, 2, 7, 0, 1, 6, 3, 4)):
        found = np.zeros((64, 64), np.float32)
        for rank in order:
            found += inputs[0][rank].astype(np.float32)
        once = from_bits(to_bits(found, "bfloat16").tobytes(), "bfloat16").reshape(64, 64)
        assert first_wrong(once, sums.value, allowed) == -1
    running = np.zeros((64, 64))
    for rank in range(8):
        running = from_bits(to_bits(running + inputs[0][rank], "bfloat16").tobytes(), "bfloat16").reshape(64, 64)
    assert first_wrong(running, sums.value, allowed) >= 0
