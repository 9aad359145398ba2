"""One rank of test_gpu.py: `python gpu_rank.py CASE BUNDLE INIT_FILE RANK WORLD`. Prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings

import torch
import torch.distributed as dist

from tilescale.deploy.launch import OperationFailed
from tilescale.deploy.load import load
from tilescale.deploy.tensors import local_inputs
from tilescale.errors import BundleError

CALLS = 5


def spec_of(operation):
    return operation._servings[0].variant.spec


def inputs_of(spec, rank, call):
    """Small integers, exact in bfloat16 sums; every rank can make those of any rank."""
    made = []
    for index, local in enumerate(local_inputs(spec, rank)):
        generator = torch.Generator().manual_seed(1000 * call + 10 * rank + index)
        value = torch.randint(-2, 3, local.shape, generator=generator).to(torch.bfloat16)
        weight = value.t().contiguous().t() if local.strides != (local.shape[1], 1) else value
        made.append(weight.cuda())
    return made


def expected(spec, rank, call):
    whole = torch.cat([inputs_of(spec, r, call)[0] for r in range(spec.world)])
    if len(spec.inputs) == 1:
        return whole
    return torch.mm(whole.float(), inputs_of(spec, rank, call)[1].float()).to(getattr(torch, spec.output.dtype))


def poisoned(spec, rank):
    shape = spec.output.local_shape(rank, spec.world)
    return torch.full(shape, float("nan"), dtype=getattr(torch, spec.output.dtype), device="cuda")


def all_operations(bundle, rank, world):
    """Each operation, several calls in flight with different inputs; then the same bits from a compiled call."""
    ops = load(bundle)
    wrong, count, began = [], 0, time.time()
    for name in ops:
        operation = ops[name]
        spec = spec_of(operation)
        symmetric = operation._servings[0].prepared.operand("a") is not None
        results = []
        for call in range(CALLS):
            inputs = inputs_of(spec, rank, call)
            if symmetric:
                torch.cuda.synchronize()
                inputs[0] = operation.symmetric_input().copy_(inputs[0])
                torch.cuda.synchronize()
            out = poisoned(spec, rank)
            assert operation(*inputs, out=out) is out
            results.append((call, inputs, out))
        operation.check()
        for call, _, out in results:
            if not torch.equal(out, expected(spec, rank, call)):
                wrong.append(f"{name} call {call}")
        count += 1
    took = time.time() - began
    ops.close()
    return {"wrong": wrong, "count": count, "seconds": took}


def graphs(bundle, rank, world):
    """E5: the first call of a tuned shape inside a capture; a refused one leaves the capture and the stream usable."""
    ops = load(bundle)
    found = {}
    for name in ("fused", "alternating"):
        operation = ops[name]
        spec = spec_of(operation)
        inputs, out = inputs_of(spec, rank, 0), poisoned(spec, rank)
        other = poisoned(spec, rank)
        torch.cuda.synchronize()
        graph, mark = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
        with operation.recording(), torch.cuda.graph(graph):
            operation(*inputs, out=out)
            if name == "alternating":
                operation(*inputs, out=other)
            mark += 1
        right = True
        for call in range(1, CALLS):
            for value, fresh in zip(inputs, inputs_of(spec, rank, call), strict=True):
                value.copy_(fresh)
            out.fill_(float("nan"))
            torch.cuda.synchronize()
            graph.replay()
            operation.check()
            right = right and torch.equal(out, expected(spec, rank, call))
        found[name] = right and mark.item() == CALLS - 1
    found["untuned"], found["alone"] = refused_in_capture(ops["fused"], 3), refused_in_capture(ops["late"], None)
    ops.close()
    return found


def refused_in_capture(operation, rows):
    spec = spec_of(operation)
    inputs = inputs_of(spec, operation.rank, 0)
    inputs[0] = inputs[0] if rows is None else inputs[0][:rows]
    graph, mark = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
    message = ""
    with torch.cuda.graph(graph):
        mark += 1
        try:
            operation(*inputs, out=None if rows else poisoned_late(spec, operation.rank))
        except BundleError as error:
            message = str(error)
        mark += 1
    graph.replay()
    torch.cuda.synchronize()
    return message if mark.item() == 2 else f"the capture was spoilt: {message}"


def poisoned_late(spec, rank):
    return torch.empty(spec.output.local_shape(rank, spec.world), dtype=getattr(torch, spec.output.dtype), device="cuda")


def failures(bundle, rank, world):
    """A peer that never comes: the kernel drains, the failure is told, and a new workspace works."""
    ops = load(bundle, time_limit_s=0.3)
    operation = ops.fused
    spec = spec_of(operation)
    found = {}
    dist.barrier()
    if rank == 0:
        operation(*inputs_of(spec, rank, 0))
        try:
            operation.check()
        except OperationFailed as error:
            found = {"message": str(error), "rank": error.failure.rank}
        try:
            operation(*inputs_of(spec, rank, 0))
        except OperationFailed:
            found["again"] = True
    dist.barrier()
    operation.renew()
    out = operation(*inputs_of(spec, rank, 1))
    operation.check()
    found["renewed"] = torch.equal(out, expected(spec, rank, 1))
    ops.close()
    return found


def compiled(bundle, rank, world):
    ops = load(bundle)
    spec = spec_of(ops.fused)
    inputs = inputs_of(spec, rank, 0)

    def model(x, w):
        return torch.nn.functional.gelu(ops.fused(x * 1, w))

    with torch.no_grad():
        fast = torch.compile(model, fullgraph=True, backend="aot_eager")(*inputs)
        slow = model(*inputs)
    ops.check()
    right = torch.equal(fast, slow) and torch.equal(slow, torch.nn.functional.gelu(expected(spec, rank, 0)))
    ops.close()
    return {"right": right}


def main():
    case, bundle, init, rank, world = sys.argv[1:]
    warnings.simplefilter("error", UserWarning)
    torch.cuda.set_device(int(rank) % torch.cuda.device_count())
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=int(rank), world_size=int(world))
    print(json.dumps(globals()[case](bundle, int(rank), int(world))), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads now and then abort a process that takes its groups apart


if __name__ == "__main__":
    main()
