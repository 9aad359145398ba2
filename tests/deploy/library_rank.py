"""One rank of test_library.py, in a process of its own: `python library_rank.py CASE INIT_FILE RANK WORLD`.

Prints one JSON object with what the case found.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import CONTRACTIONS, ag_gemm, ag_gemm_of_several, all_gather, contraction, gemm_rs, reduction

import tilescale as ts
from tilescale.deploy import tensors
from tilescale.deploy.manifest import OperationEntry
from tilescale.deploy.operation import Operation
from tilescale.errors import TilescaleError


def specs(world):
    """Even and uneven shards, empty ones, every view and type of output."""
    yield from (gemm_rs((rows, 24, 32 * world), world) for rows in (1, 2 * world, 2 * world + 1))
    yield gemm_rs((5, 24, 31), world, order="col", out_dtype="float32")  # uneven along the contraction
    yield gemm_rs((5, 24, 32 * world), world, out="Replicate", dtype="float16")
    yield gemm_rs((5, 24, 32 * world), world, out="Partial")
    yield from (reduction((rows, 24), world, to=ts.FullRow) for rows in (1, 2 * world, 2 * world + 1))
    yield from (reduction((4, columns, 6), world, to=ts.Shard(1)) for columns in (2 * world, 2 * world + 1))
    yield reduction((5, 24), world)
    yield reduction((77,), world, dtype="float32")
    yield reduction((4, 6), world, dtype="int32")
    yield ag_gemm((2 * world, 8 * world, 32), world)
    yield ag_gemm((2 * world, 8 * world, 24), world, gathered=True)
    yield ag_gemm_of_several((2 * world, 24), (8 * world, 4 * world), world)
    yield from (contraction(name, (4 * world, 8 * world, 16 * world), world) for name in CONTRACTIONS)
    yield ag_gemm((2 * world, 8 * world, 32), world, then=("bias", "accumulate"))
    yield gemm_rs((5, 24, 32 * world), world, then=("bias",))
    yield reduction((2 * world + 1, 24), world, to=ts.FullRow, then=("accumulate",))
    yield from (reduction((5, 24), world, to=to, then=("add_rmsnorm",)) for to in (ts.FullRow, ts.Replicate))
    yield gemm_rs((5, 24, 32 * world), world, out="Replicate", then=("add_rmsnorm",), out_dtype="float32")
    yield from (all_gather((rows, 24), world) for rows in (1, 2 * world, 2 * world + 1))
    yield ag_gemm((2 * world + 1, 8 * world, 24), world)
    yield from exchanges(world)


def exchanges(world):
    """Even and uneven shards, turned and not."""
    topology = ts.Topology.scale_model("8xH200-NVSwitch", ranks=world)
    x = ts.Tensor((2, 2 * world, 3 * world, 5), "bfloat16", ts.Shard(2))
    yield ts.redistribute(x, ts.Shard(1), topology)
    yield ts.redistribute(ts.Tensor(x.shape, "float16", ts.Shard(1)), ts.Shard(1), topology, transpose=(0, 2, 1, 3))
    yield ts.redistribute(x, ts.Shard(0), topology, transpose=(1, 3, 0, 2))
    for rows, columns in ((2 * world, 4 * world), (2 * world + 1, 4 * world - 1), (1, 2)):
        yield ts.redistribute(ts.Tensor((rows, columns), "int32", ts.FullRow), ts.FullCol, topology)
    yield ts.redistribute(ts.Tensor((5, 7), "bfloat16", ts.Replicate), ts.Replicate, topology, root=world - 1)
    yield ts.shift(ts.Tensor((2 * world, 3), "float16", ts.FullRow), 1, topology)
    yield ts.shift(ts.Tensor((2, 3 * world), "bfloat16", ts.FullCol), -1, topology)


def operation(spec, rank, world, servings=()):
    entry = OperationEntry("it", spec.op, (SimpleNamespace(spec=spec),))
    return Operation(torch, entry, servings, rank, world, None, "library")


def local_inputs(spec, rank):
    """The first addend is so large that the others vanish in bfloat16 unless sums are in fp32."""
    generator = torch.Generator().manual_seed(rank)
    found = []
    for local in tensors.local_inputs(spec, rank):
        values = torch.randint(-2, 3, local.shape, generator=generator)
        if spec.operation.compute == "copy" and not found and spec.op in ("all_reduce", "reduce_scatter"):
            values = torch.full(local.shape, 256 if rank == 0 else 1) + 2 * (values == 2)
        found.append(torch.empty_strided(local.shape, local.strides, dtype=getattr(torch, local.dtype)).copy_(values))
    return found


def expected(spec, rank, world):
    """The local part of the operation on whole tensors, in fp64, rounded once."""
    by_rank = [local_inputs(spec, each) for each in range(world)]
    if spec.op == "shift":
        return by_rank[(rank - spec.attribute("k")) % world][0]
    if spec.op == "broadcast":
        return by_rank[spec.attribute("root")][0]
    if spec.op == "all_to_all":
        whole = torch.cat([inputs[0] for inputs in by_rank], spec.inputs[0].shard_dim)
        order = spec.attribute("transpose")
        whole = whole.permute([int(dim) for dim in order.split(",")]) if order else whole
        offset, shape = (at(rank, world) for at in (spec.output.local_offset, spec.output.local_shape))
        return whole[tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))].contiguous()
    if spec.op in ("weight_gather_gemm", "ag_gemm_k"):
        (move,), factors = spec.operation.moves, list(by_rank[rank])
        factors[move.operand] = torch.cat([inputs[move.operand] for inputs in by_rank], move.dim)
        return (factors[0].double() @ factors[1].double()).to(getattr(torch, spec.output.dtype))
    if spec.op in ("ag_gemm", "all_gather"):
        first = torch.cat([inputs[0] for inputs in by_rank]).double()
        whole = first @ by_rank[rank][1].double() if spec.op == "ag_gemm" else first
        return added(spec, whole, by_rank[rank]).to(getattr(torch, spec.output.dtype))
    multiplies = spec.operation.compute == "gemm"
    addends = [inputs[0].double() @ inputs[1].double() if multiplies else inputs[0].double() for inputs in by_rank]
    whole = addends[rank] if spec.local else sum(addends)
    offset, shape = (at(rank, world) for at in (spec.output.local_offset, spec.output.local_shape))
    part = whole[tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))]
    if spec.aside:
        return normalised(spec, part, by_rank[rank])[0]
    return added(spec, part, by_rank[rank]).to(getattr(torch, spec.output.dtype))


def normalised(spec, value, inputs):
    """x + residual, normalised in fp32, and itself."""
    y = (value + inputs[-2].double()).float()
    dtype = getattr(torch, spec.output.dtype)
    by = 1.0 / torch.sqrt((y * y).mean(-1, keepdim=True) + 2.0**-20)
    return (y * by * inputs[-1].float()).to(dtype), y.to(dtype)


def added(spec, value, inputs):
    """Behind epilogues that only add."""
    return value + sum(extra.double() for extra in inputs[len(spec.inputs):])


def several(run, inputs, wanted):
    """A product for each of several B, made and as columns of `out`."""
    out = torch.full_like(wanted, 77)
    made, parts = run(*inputs), run(*inputs, out=out)
    return [len(made) == len(parts) == 2, [part.shape[1] for part in made] == [8, 4],
            torch.equal(torch.cat(made, 1), wanted), torch.equal(out, wanted) and torch.equal(torch.cat(parts, 1), wanted)]


def beside(spec, rank, world):
    """The second output: what is gathered, or the sum behind its residual."""
    if not spec.aside:
        return torch.cat([local_inputs(spec, each)[0] for each in range(world)])
    plain = replace(spec, then=("accumulate",))
    parts = [local_inputs(spec, each) for each in range(world)]
    multiplies = spec.operation.compute == "gemm"
    whole = sum(inputs[0].double() @ inputs[1].double() if multiplies else inputs[0].double() for inputs in parts)
    offset, shape = (at(rank, world) for at in (plain.output.local_offset, plain.output.local_shape))
    part = whole[tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))]
    return normalised(spec, part, parts[rank])[1]


def both(spec, run, inputs, wanted, rank, world):
    """The two outputs of a call, with and without `out`."""
    whole = beside(spec, rank, world)
    out = (torch.full_like(wanted, 77), torch.full_like(whole, 77))
    assert run(*inputs, out=out) is out
    empty = run.empty_outputs([value.to("meta") for value in inputs])
    made = run(*inputs)
    right_ = [all(torch.equal(a, b) for a, b in zip(pair, (wanted, whole), strict=True)) for pair in (made, out)]
    shapes = [tuple(each.shape) for each in empty] == [tuple(wanted.shape), tuple(whole.shape)]
    return [isinstance(made, tuple), *right_, shapes]


def right(rank, world):
    """Every operation by library calls, with and without `out`."""
    found = {}
    for spec in specs(world):
        run, inputs, wanted = operation(spec, rank, world), local_inputs(spec, rank), expected(spec, rank, world)
        if spec.columns:
            found[f"{spec.label} of several B"] = several(run, inputs, wanted)
            continue
        if len(spec.outputs) > 1:
            found[f"{spec.label} {spec.output.view.label} and another"] = both(spec, run, inputs, wanted, rank, world)
            continue
        out = torch.full_like(wanted, 77)
        assert run(*inputs, out=out) is out
        kept = all(torch.equal(a, b) for a, b in zip(inputs, local_inputs(spec, rank), strict=True))
        count = len(spec.inputs)
        by_name = {extra.name: value for extra, value in zip(spec.extras, inputs[count:], strict=True)}
        empty = run.empty_output([value.to("meta") for value in inputs])
        found[f"{spec.label} {spec.output.view.label} {[tensor.order for tensor in spec.inputs]}"] = [
            torch.equal(run(*inputs[:count], **by_name), wanted), torch.equal(out, wanted), kept,
            tuple(empty.shape) == tuple(wanted.shape) and empty.dtype == wanted.dtype]
    return found


def compiled(rank, world):
    """torch.compile(fullgraph=True) of a call with two outputs, made and as `out`."""
    from tilescale.deploy import torch_ops

    spec = reduction((5, 24), world, to=ts.FullRow, then=("add_rmsnorm",))
    run, inputs = operation(spec, rank, world), local_inputs(spec, rank)
    run.key = torch_ops.enrol(run, run.name)
    wanted = (expected(spec, rank, world), beside(spec, rank, world))

    def model(x, residual, gamma, out):
        first, second = run(x, residual=residual, gamma=gamma) if out is None else run(x, residual, gamma, out=out)
        return first + 0, second + 0

    found = []
    for out in (None, tuple(torch.full_like(each, 77) for each in wanted)):
        result = torch.compile(model, fullgraph=True, backend="aot_eager")(*inputs, out)
        found += [torch.equal(a, b) for a, b in zip(result, wanted, strict=True)]
        found += [torch.equal(a, b) for a, b in zip(out or (), wanted, strict=out is not None)]
    return found


def strided(rank, world):
    """A6: views that are not contiguous, equal to the result on a contiguous copy."""
    found = {}
    for to in (ts.Replicate, ts.FullRow):
        spec = reduction((512, 2048), world, to=to)
        run, x = operation(spec, rank, world), torch.randn(512, 4096).bfloat16()
        for name, view in (("[:, ::2]", x[:, ::2]), (".t()", x.t())):
            found[f"{spec.op} {name}"] = torch.equal(run(view), run(view.contiguous()))
    return found


def placed(rank, world):
    """DTensors placed as declared come back placed as declared, uneven shards too; others are refused."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh, found = init_device_mesh("cpu", (world,)), {}

    def tensor(value, placement):
        return DTensor.from_local(value, mesh, [placement], run_check=False)

    for spec, placement in ((reduction((7, 24), world, to=ts.FullRow), Shard(0)), (reduction((7, 24), world), Replicate())):
        (value,) = local_inputs(spec, rank)
        out = operation(spec, rank, world)(tensor(value, Partial()))
        same = torch.equal(out.to_local(), expected(spec, rank, world)) and out.placements == (placement,)
        found[spec.op] = same and tuple(out.shape) == (7, 24)
        try:
            operation(spec, rank, world)(tensor(value, Replicate()))
        except TilescaleError as error:
            found[f"{spec.op} refused"] = "a is placed as Partial; got: Replicate" in str(error)
    for out, placement in (("FullRow", Shard(0)), ("Partial", Partial()), ("Replicate", Replicate())):
        spec = gemm_rs((7, 24, 32 * world), world, out=out)
        a, b = local_inputs(spec, rank)
        result = operation(spec, rank, world)(tensor(a, Shard(1)), tensor(b, Shard(0)))
        same = torch.equal(result.to_local(), expected(spec, rank, world)) and result.placements == (placement,)
        found[spec.op] = same and tuple(result.shape) == (7, 24)
    return found


def main():
    case, init, rank, world = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=int(rank), world_size=int(world))
    with torch.no_grad():
        print(json.dumps(globals()[case](int(rank), int(world))), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads now and then abort a process that takes its groups apart


if __name__ == "__main__":
    main()
