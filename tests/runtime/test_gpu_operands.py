"""What a rank checks on a GPU, on CPU tensors: operands that arrive along a contraction, blocks, and a second output."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support import CONTRACTIONS, ag_gemm, contraction, in_blocks, reduction

from tilescale.errors import RunnerError
from tilescale.runtime import gpu_baselines, gpu_peers
from tilescale.runtime.baselines import names_for, unfused_schedules
from tilescale.runtime.gpu_check import CALLS, Workload, WrongResult, place_on
from tilescale.schedules.space import space
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullRow, Replicate

SPECS = {name: contraction(name, (32, 64, 96), 4) for name in CONTRACTIONS} | {"blocks": in_blocks(4, (16, 24, 32))}


def works_of(spec: Spec) -> list[Workload]:
    return [Workload(torch, spec, rank, 3, place_on(torch, "cpu")) for rank in range(spec.world)]


def whole(works: list[Workload], call: int, operand: int) -> torch.Tensor:
    """A whole matrix, put together from what the ranks hold."""
    spec = works[0].spec
    tensor = spec.inputs[operand]
    found = torch.zeros(tensor.sizes)
    for rank, work in enumerate(works):
        offset, shape = (at(rank, spec.world) for at in (tensor.local_offset, tensor.local_shape))
        cut = tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))
        found[cut] = work.calls[call].inputs[operand].float()
    return found


@pytest.mark.parametrize("name", SPECS)
def test_the_product_of_whole_matrices_is_right_on_every_rank(name: str) -> None:
    works = works_of(SPECS[name])
    output = works[0].spec.output
    for call in range(CALLS):
        product = whole(works, call, 0).double() @ whole(works, call, 1).double()
        for rank, work in enumerate(works):
            offset, shape = (at(rank, 4) for at in (output.local_offset, output.local_shape))
            work.poison()
            with pytest.raises(WrongResult):
                work.check(call)
            part = product[tuple(slice(f, f + s) for f, s in zip(offset, shape, strict=True))]
            work.calls[call].out.copy_(part)
            work.check(call)


@pytest.mark.parametrize("name", SPECS)
def test_the_library_alone_is_right_where_everything_is_gathered(name: str) -> None:
    work = works_of(SPECS[name])[2]
    rank = SimpleNamespace(device=SimpleNamespace(torch=torch))
    path = gpu_baselines._compute_only(rank, work, None)  # type: ignore[arg-type]
    for call in range(CALLS):
        path.check(call, path.call(call))


def test_what_is_gathered_is_checked_beside_the_product() -> None:
    works = works_of(ag_gemm((32, 64, 48), 4, gathered=True))
    gathered = [torch.cat([work.calls[call].inputs[0] for work in works]) for call in range(CALLS)]
    for work in works:
        for call, data in enumerate(work.calls):
            work.poison()
            data.out.copy_(gathered[call].double() @ data.inputs[1].double())
            with pytest.raises(WrongResult, match="of gathered is"):
                work.check(call)
            (name, tensor, _), = data.beside
            assert name == "gathered"
            tensor.copy_(gathered[call])
            work.check(call)
            tensor[3, 5] += 1
            with pytest.raises(WrongResult, match=r"element \(3, 5\) of gathered"):
                work.check(call)


@pytest.mark.parametrize("to", [Replicate, FullRow], ids=["all_reduce", "reduce_scatter"])
def test_a_sum_is_checked_beside_its_norm(to: object) -> None:
    works = works_of(reduction((18, 24), 4, to=to, then=("add_rmsnorm",)))
    for call in range(CALLS):
        total = sum(work.calls[call].inputs[0].double() for work in works)
        for rank, work in enumerate(works):
            data = work.calls[call]
            first, rows = work.spec.output.local_offset(rank, 4)[0], data.out.shape[0]
            y = total[first : first + rows] + data.inputs[1].double()
            scale = 1.0 / torch.sqrt((y * y).mean(-1, keepdim=True) + 2.0**-20)
            work.poison()
            data.out.copy_(y * scale * data.inputs[2].double())
            (name, tensor, _), = data.beside
            assert name == "added"
            with pytest.raises(WrongResult, match="of added is"):
                work.check(call)
            tensor.copy_(y)
            work.check(call)
            tensor[2, 5] += 4
            with pytest.raises(WrongResult, match=r"element \(2, 5\) of added"):
                work.check(call)


@pytest.mark.parametrize("name", SPECS)
def test_baselines_are_those_that_exist(name: str) -> None:
    spec = SPECS[name]
    for schedule in unfused_schedules(spec):
        assert schedule in space(spec)
        assert schedule.overlap == "none"
        # elsewhere it arrives as no one matrix
        assert (schedule.compute == "library") == (name in ("weights", "gradients"))
    shared = contraction("weights", (32, 64, 96), 4, on=Topology.shared_gpu(ranks=4))
    assert names_for(shared) == names_for(in_blocks(4, on=Topology.named("8xH200-NVSwitch", ranks=4)))
    assert names_for(shared) == ("unfused", "compute_only")


def test_nccl_is_not_asked_for_two_gathers() -> None:
    rank = SimpleNamespace(device=SimpleNamespace(torch=torch))
    with pytest.raises(RunnerError, match="one operand"):
        gpu_peers.nccl(rank, works_of(SPECS["blocks"])[0], None)  # type: ignore[arg-type]
