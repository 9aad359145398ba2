"""What a tuned operation accepts: nothing is launched before everything is checked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support import gemm_rs, reduction

import tilescale as ts
from tilescale.deploy import tensors
from tilescale.deploy.manifest import OperationEntry
from tilescale.deploy.operation import Operation, Serving
from tilescale.errors import BundleError


class Recorder:
    """A prepared operation that only remembers that it was called."""

    def __init__(self):
        self.calls = []

    def __call__(self, operands, stream):
        self.calls.append(operands)


def tuned(spec, rank=0):
    prepared = Recorder()
    variant = SimpleNamespace(spec=spec, schedule_digest="0")
    entry = OperationEntry("it", spec.op, (variant,))
    return Operation(torch, entry, [Serving(variant, prepared)], rank, spec.world, None, "error"), prepared


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype)


X = empty(512, 4096)


@pytest.mark.parametrize("to", [ts.Replicate, ts.FullRow], ids=["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize(("value", "strides"), [(X[:, ::2], "(4096, 2)"), (X.t(), "(1, 4096)")], ids=["step", "t"])
def test_a6_strided_inputs_are_refused_before_a_launch(to, value, strides):
    operation, prepared = tuned(reduction(tuple(value.shape), to=to))
    with pytest.raises(BundleError) as caught:
        operation(value)
    assert f"a is row-major: strides ({value.shape[1]}, 1)" in str(caught.value)
    assert f"got: {strides}" in str(caught.value)
    assert caught.value.remedy == "pass .contiguous()"
    with pytest.raises(BundleError, match="a is on the GPU; got: cpu"):  # the next check: the copy passed this one
        operation(value.contiguous())
    assert prepared.calls == []


@pytest.mark.parametrize(("spec", "inputs", "outputs"), [
    (gemm_rs((17, 48, 64), ranks=8), [(17, 8), (8, 48)], [(3, 48)] * 5 + [(2, 48)] + [(0, 48)] * 2),
    (gemm_rs((17, 48, 64), ranks=8, out="Replicate"), [(17, 8), (8, 48)], [(17, 48)] * 8),
    (gemm_rs((17, 48, 64), ranks=2, out="Partial"), [(17, 32), (32, 48)], [(17, 48)] * 2),
    (reduction((1, 48), ranks=4, to=ts.FullRow), [(1, 48)], [(1, 48)] + [(0, 48)] * 3),
    (reduction((3, 5, 7), ranks=4, to=ts.Shard(1)), [(3, 5, 7)], [(3, 2, 7), (3, 2, 7), (3, 1, 7), (3, 0, 7)]),
    (reduction((9,), ranks=2), [(9,)], [(9,)] * 2),
], ids=lambda value: f"{value.label} {value.output.view.label}" if isinstance(value, ts.Spec) else "")
def test_partial_inputs_are_whole_on_every_rank_and_outputs_are_shards(spec, inputs, outputs):
    assert [local.shape for local in tensors.local_inputs(spec, spec.world - 1)] == inputs
    found = [tensors.local_outputs(spec, rank)[0] for rank in range(spec.world)]
    assert [local.shape for local in found] == outputs
    for rank in (0, spec.world - 1):
        operation, prepared = tuned(spec, rank)
        assert operation.shapes == (tuple(inputs),)
        given = [empty(*shape) for shape in inputs]
        assert tuple(operation.empty_output(given).shape) == outputs[rank]
        with pytest.raises(BundleError, match="a is on the GPU; got: cpu"):
            operation(*given)
        with pytest.raises(BundleError, match=r"a is bfloat16; got: float16"):
            operation(given[0].half(), *given[1:])
        with pytest.raises(BundleError, match="tuned for local shapes"):
            operation(empty(*(size + 1 for size in inputs[0])), *given[1:])
        assert prepared.calls == []


def test_out_is_the_shard_of_the_rank(monkeypatch):
    monkeypatch.setattr(tensors, "address_of", lambda value, name: value.data_ptr())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    operation, prepared = tuned(reduction((9, 48), ranks=4, to=ts.FullRow), rank=3)
    x, out = empty(9, 48), empty(0, 48)
    assert operation(x, out=out) is out
    assert tuple(operation(x).shape) == (0, 48)
    assert [call["a"] for call in prepared.calls] == [x.data_ptr()] * 2
    with pytest.raises(BundleError, match=r"out has the shape it was tuned for: \(0, 48\)"):
        operation(x, out=empty(3, 48))
    assert len(prepared.calls) == 2


def test_what_an_epilogue_hands_out_besides_is_returned_behind_the_result(monkeypatch):
    monkeypatch.setattr(tensors, "address_of", lambda value, name: value.data_ptr())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    operation, prepared = tuned(reduction((9, 48), ranks=4, to=ts.FullRow, then=("add_rmsnorm",)), rank=2)
    assert operation.names == ("a", "residual", "gamma")
    given = [empty(9, 48), empty(3, 48), empty(48)]
    out, added = operation(*given)
    assert [tuple(each.shape) for each in (out, added)] == [(3, 48)] * 2
    assert [prepared.calls[0][name] for name in ("out", "added")] == [out.data_ptr(), added.data_ptr()]
    into = (empty(3, 48), empty(3, 48))
    assert operation(given[0], residual=given[1], gamma=given[2], out=into) is into
    assert [prepared.calls[1][name] for name in ("out", "added")] == [each.data_ptr() for each in into]
    assert [tuple(each.shape) for each in operation.empty_outputs([value.to("meta") for value in given])] == [(3, 48)] * 2
    with pytest.raises(BundleError, match="out is out, added; got: 1 tensors; pass them all"):
        operation(*given, out=into[0])
    with pytest.raises(BundleError, match=r"added has the shape it was tuned for: \(3, 48\)"):
        operation(*given, out=(into[0], empty(9, 48)))


def test_operands_beside_the_inputs_follow_them_or_come_by_name():
    operation, _ = tuned(reduction((16, 24), then=("bias", "accumulate")))
    assert operation.names == ("a", "bias", "addend")
    x, bias = empty(16, 24), empty(24)
    with pytest.raises(BundleError, match="it takes 3 tensors: a, bias, addend; got: 1"):
        operation(x)
    with pytest.raises(BundleError, match="it takes a, bias, addend; got: 1 in order, and bias; pass each once"):
        operation(x, bias=bias)
    with pytest.raises(BundleError, match="got: 2 in order, and bias"):
        operation(x, bias, bias=bias)
    with pytest.raises(BundleError, match=r"\(24,\) \(16, 24\); got: local shapes .* \(16, 25\) were not tuned"):
        operation(x, addend=empty(16, 25), bias=bias)
    with pytest.raises(BundleError, match="a is on the GPU"):  # the next check
        operation(x, addend=x, bias=bias)
