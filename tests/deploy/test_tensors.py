"""What a call accepts, on CPU tensors: nothing here is launched."""

from __future__ import annotations

import pytest
import torch
from deploy.fakes import ag_gemm, all_gather

import tilescale as ts
from tilescale.deploy import tensors
from tilescale.errors import BundleError

SPEC = ag_gemm(2, rows=128, n=96, k=64)


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype)


def test_a_column_major_b_is_taken_as_declared_and_as_a_linear_weight():
    a, b = tensors.local_inputs(SPEC, 0)
    assert (a.shape, a.strides) == ((128, 64), (64, 1))
    assert (b.shape, b.strides) == ((64, 96), (1, 64))
    weight = empty(96, 64)
    for given in (weight, weight.t()):
        taken = tensors.as_declared(given, b)
        assert tuple(taken.shape) == (64, 96)
        assert taken.stride() == (1, 64)
        assert taken.data_ptr() == weight.data_ptr()


def test_a_square_weight_is_told_by_its_strides():
    _, b = tensors.local_inputs(ag_gemm(2, n=64, k=64), 0)
    assert tensors.as_declared(empty(64, 64).t(), b).stride() == (1, 64)
    with pytest.raises(BundleError, match=r"column-major.*w.t\(\)"):
        tensors.as_declared(empty(64, 64), b)


def test_matrices_of_experts_are_taken_as_declared_and_as_weights_of_linears():
    topology = ts.Topology.named("8xH200-NVSwitch", ranks=2)
    spec = ts.moe_dispatch_gemm(ts.Tensor((16, 64), "bfloat16", ts.FullRow),
                                ts.Tensor((4, 64, 96), "bfloat16", ts.FullRow, "col"), 2, topology)
    b = tensors.local_inputs(spec, 0)[1]
    assert (b.shape, b.strides) == ((2, 64, 96), (64 * 96, 1, 64))
    weights = empty(2, 96, 64)
    for given in (weights, weights.mT):
        taken = tensors.as_declared(given, b)
        assert (tuple(taken.shape), taken.stride()) == (b.shape, b.strides)
        assert taken.data_ptr() == weights.data_ptr()
    with pytest.raises(BundleError, match=r"column-major.*w.mT"):
        tensors.as_declared(empty(2, 64, 96), b)


@pytest.mark.parametrize(("value", "says"), [
    (empty(128, 64, dtype=torch.float16), "a is bfloat16; got: float16"),
    (empty(64, 128), r"\(128, 64\); got: \(64, 128\)"),
    (empty(130, 64), r"got: \(130, 64\)"),
    (empty(64, 128).t(), r"row-major.*got: \(1, 128\).*contiguous"),
    (empty(128, 128)[:, ::2], r"got: \(128, 2\)"),
])
def test_other_operands_are_refused(value, says):
    with pytest.raises(BundleError, match=says):
        tensors.as_declared(value, tensors.local_inputs(SPEC, 0)[0])


def test_a_row_major_b_is_not_transposed():
    _, b = tensors.local_inputs(ag_gemm(2, n=96, k=64, order="row"), 0)
    assert tensors.as_declared(empty(64, 96), b).stride() == (96, 1)
    with pytest.raises(BundleError, match="shape"):
        tensors.as_declared(empty(96, 64), b)


def test_strides_of_single_rows_do_not_matter():
    local = tensors.local_outputs(all_gather(2, rows=1, columns=8), 0)[0]
    assert local.shape == (2, 8)
    one = tensors.Local("a", (1, 8), (8, 1), "bfloat16")
    assert tensors.as_declared(empty(4, 8)[::4], one) is not None


def test_addresses_are_on_a_gpu():
    with pytest.raises(BundleError, match=r"a is on the GPU; got: cpu"):
        tensors.address_of(empty(2, 2), "a")


def test_gradients_are_refused_unless_off():
    weight = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(BundleError, match="no backward"):
        tensors.check_no_gradient(torch, [weight])
    with torch.no_grad():
        tensors.check_no_gradient(torch, [weight])
