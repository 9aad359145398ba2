"""Library paths that a rank can time beside programs: what a user has without this project. Rank processes only."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from tilescale.deploy.library import product
from tilescale.errors import RunnerError, nearest
from tilescale.runtime.gpu_check import CALLS, TIMED_CALLS, Workload
from tilescale.runtime.gpu_contestant import Rank, Recording, Timed

Meet = Callable[[Any], Sequence[Any]]
Call = Callable[[int], Any]  # enqueues call number i on the current stream and returns its output


class LibraryContestant:
    """A path of library calls, captured by torch, which keeps the memory that the calls allocate."""

    def __init__(self, rank: Rank, name: str, work: Workload, call: Call) -> None:
        self.name = name
        self._rank, self._work, self._call = rank, work, call

    def verify(self) -> None:
        self._work.poison()
        for number in range(CALLS):
            out = self._call(number)
            self._synchronize()
            self._work.check(number, out)
        for number in TIMED_CALLS:  # warm: capturing must load and allocate nothing new
            self._call(number)
        self._synchronize()

    def record(self, calls: int) -> Recording:
        torch = self._rank.device.torch
        graph = torch.cuda.CUDAGraph()
        self._rank.exchange(b"")
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            for number in range(calls):
                self._call(TIMED_CALLS[number % len(TIMED_CALLS)])
        self._rank.exchange(b"")
        return Recording(graph.replay, calls, graph.reset)

    def conclude(self) -> None:
        self._synchronize()

    def close(self) -> None:
        pass

    def _synchronize(self) -> None:
        self._rank.device.driver.synchronize(self._rank.device.stream)


def make(name: str, rank: Rank, work: Workload, meet: Meet) -> Timed:
    """The path called `name`. Collective. RunnerError for one that does not exist for the operation."""
    if name not in MAKERS:
        raise RunnerError("a library path is known", name, nearest(name, MAKERS))
    return LibraryContestant(rank, name, work, MAKERS[name](rank, work, meet))


def _compute_only(rank: Rank, work: Workload, meet: Meet) -> Call:
    """cuBLAS on this rank's SMs, with the first operand gathered already: what no overlap can beat."""
    if not work.multiplies:
        raise RunnerError("compute_only goes with operations that multiply", work.spec.op)
    wholes = [work.whole(number) for number in range(CALLS)]

    def call(number: int) -> Any:
        data = work.calls[number]
        product(rank.device.torch, wholes[number], data.inputs[1], data.out)
        return data.out

    return call


def _symm_mem(rank: Rank, work: Workload, meet: Meet) -> Call:
    """torch's symmetric memory: fused_all_gather_matmul, or the all-gather by copies."""
    torch = rank.device.torch
    group = _group(rank, meet, "gloo")
    import torch.distributed._symmetric_memory as symmetric

    symmetric.enable_symm_mem_for_group(group.group_name)
    streams = getattr(symmetric, "_backend_streams", None)
    if isinstance(streams, dict):  # its second stream would otherwise have the whole GPU
        for priority in (0, -1):
            streams.setdefault(priority, torch.cuda.ExternalStream(rank.device.driver.create_stream()))
    operators = torch.ops.symm_mem

    def multiply(number: int) -> Any:
        a, b = work.calls[number].inputs
        return operators.fused_all_gather_matmul(a, [b], gather_dim=0, group_name=group.group_name)[1][0]

    def gather(number: int) -> Any:
        found = operators._low_contention_all_gather(work.calls[number].inputs[0], group.group_name)
        return torch.ops._c10d_functional.wait_tensor(found)

    if not work.multiplies:
        return gather
    if work.spec.output.dtype != work.spec.inputs[0].dtype:
        raise RunnerError("fused_all_gather_matmul gives the type of its inputs", work.spec.output.dtype)
    return multiply


def _nccl(rank: Rank, work: Workload, meet: Meet) -> Call:
    """NCCL's all-gather, then cuBLAS."""
    torch = rank.device.torch
    group = _group(rank, meet, "nccl")
    wholes = [torch.empty_like(work.whole(0)) for _ in range(CALLS)] if work.multiplies else []

    def call(number: int) -> Any:
        data = work.calls[number]
        target = wholes[number] if work.multiplies else data.out
        torch.distributed.all_gather_into_tensor(target, data.inputs[0], group=group)
        if work.multiplies:
            product(torch, target, data.inputs[1], data.out)
        return data.out

    return call


MAKERS: dict[str, Callable[[Rank, Workload, Meet], Call]] = {
    "compute_only": _compute_only, "torch.symm_mem": _symm_mem, "nccl+cublas": _nccl,
}
_GROUPS: dict[str, Any] = {}


def _group(rank: Rank, meet: Meet, backend: str) -> Any:
    """A process group of all ranks, made once a process; the gloo one is the world."""
    distributed = rank.device.torch.distributed
    if "gloo" not in _GROUPS:
        store = None
        if rank.rank == 0:
            store = distributed.TCPStore("127.0.0.1", 0, rank.world, True, wait_for_workers=False)
        port = meet(store.port if store is not None else 0)[0]
        if store is None:
            store = distributed.TCPStore("127.0.0.1", port, rank.world, False, wait_for_workers=False)
        os.environ.setdefault("LOCAL_RANK", "0")
        distributed.init_process_group("gloo", store=store, rank=rank.rank, world_size=rank.world)
        _GROUPS["gloo"] = distributed.group.WORLD
    if backend not in _GROUPS:
        _GROUPS[backend] = distributed.new_group(backend=backend)
    return _GROUPS[backend]
