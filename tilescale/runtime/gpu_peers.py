"""Paths of other libraries, as their users call them: torch's symmetric memory, and NCCL with cuBLAS. Rank processes
only. Those that sum over ranks round addends and running sums to the type of the output: they are checked against
`Workload.peers`, which allows that; kernels of this project are not."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilescale.deploy.exchanging import LibraryExchange
from tilescale.deploy.library import gather_contraction, local_product, product
from tilescale.errors import RunnerError
from tilescale.runtime.gpu_check import CALLS, Workload
from tilescale.runtime.gpu_contestant import Rank
from tilescale.spec.contraction import contracts, gathered_operand, in_blocks

Meet = Callable[[Any], Sequence[Any]]
Call = Callable[[int], Any]  # enqueues call number i on the current stream and returns its output


@dataclass(frozen=True)
class Path:
    """`check(i, out)` raises WrongResult unless `out` is what call i must give."""

    call: Call
    check: Callable[[int, Any], None]


def as_peer(work: Workload, call: Call) -> Path:
    """A path that computes what the operation does, and rounds as peers do."""
    return Path(call, lambda number, out: work.check(number, out, work.peers(number)))


def gathered(rank: Rank, work: Workload, meet: Meet) -> Call:
    """The first operand of all ranks, by the copies of torch's symmetric memory."""
    group = _symmetric_group(rank, meet)
    torch, name = rank.device.torch, group.group_name
    operators, wait = torch.ops.symm_mem, torch.ops._c10d_functional.wait_tensor
    return lambda number: wait(operators._low_contention_all_gather(work.calls[number].inputs[0], name))


# -- torch's symmetric memory ------------------------------------------------------------------------------------------
def symm_mem(rank: Rank, work: Workload, meet: Meet) -> Path:
    """The fused operators (fused_all_gather_matmul, fused_matmul_reduce_scatter); without a product, copies."""
    group = _symmetric_group(rank, meet)
    torch, name, a_type = rank.device.torch, group.group_name, work.spec.inputs[0].dtype
    operators, wait = torch.ops.symm_mem, torch.ops._c10d_functional.wait_tensor
    if work.multiplies and work.spec.output.dtype != a_type:
        raise RunnerError("fused operators give the type of their inputs", work.spec.output.dtype)
    if work.kind in ("gather", "reduce_scatter"):
        _require_even_rows(work)
    placed = work.kind == "gather" and not work.multiplies and work.spec.placement == "symmetric"
    shards = _summands(rank, work, group) if placed else lambda number: work.calls[number].inputs[0]

    def gather_multiply(number: int) -> Any:
        a, b = work.calls[number].inputs
        return operators.fused_all_gather_matmul(a, [b], gather_dim=0, group_name=name)[1][0]

    def multiply_scatter(number: int) -> Any:
        a, b = work.calls[number].inputs
        return operators.fused_matmul_reduce_scatter(a, b, "sum", 0, name)

    def gather(number: int) -> Any:
        return wait(operators._low_contention_all_gather(shards(number), name))

    calls = {("gather", True): gather_multiply, ("gather", False): gather, ("reduce_scatter", True): multiply_scatter}
    if (work.kind, work.multiplies) in calls:
        return as_peer(work, calls[work.kind, work.multiplies])
    if work.kind != "reduce_scatter":
        raise RunnerError("torch.symm_mem is for gathers and reduce-scatters", work.spec.op, "use the two shots")
    source = _summands(rank, work, group)
    if work.spec.placement == "symmetric":
        return as_peer(work, lambda number: wait(operators._low_contention_reduce_scatter(source(number), "sum", name)))
    return as_peer(work, lambda number: wait(
        operators._low_contention_reduce_scatter(work.calls[number].inputs[0], "sum", name)))


def symm_mem_one_shot(rank: Rank, work: Workload, meet: Meet) -> Path:
    """Every rank reads the addends of all: one_shot_all_reduce, or reduce_scatter_out; a product goes where it is read."""
    group = _symmetric_group(rank, meet)
    operators, name = rank.device.torch.ops.symm_mem, group.group_name
    if work.kind == "reduce_scatter":
        _require_even_rows(work)
    elif work.kind != "all_reduce":
        raise RunnerError("one shot is for sums over ranks", work.spec.op)
    source = _summands(rank, work, group)
    copies = work.kind == "all_reduce" and not work.multiplies and work.spec.placement != "symmetric"

    def call(number: int) -> Any:
        out = work.calls[number].out
        if copies:  # the operator copies in, too
            operators.one_shot_all_reduce_copy_out(source.buffer, work.calls[number].inputs[0], "sum", name, out)
        elif work.kind == "all_reduce":
            operators.one_shot_all_reduce_out(source(number), "sum", name, out)
        else:
            operators.reduce_scatter_out(source(number).view(-1), name, False, out.view(-1))
        return out

    return as_peer(work, call)


def symm_mem_two_shot(rank: Rank, work: Workload, meet: Meet) -> Path:
    """two_shot_all_reduce_, in place: its addends are copied or multiplied into the buffer that it returns, in every call,
    since it overwrites them."""
    if work.kind != "all_reduce":
        raise RunnerError("two shots are for all-reduces", work.spec.op)
    group = _symmetric_group(rank, meet)
    operators, source = rank.device.torch.ops.symm_mem, _Summands(rank, work, group, buffers=1)

    def call(number: int) -> Any:
        return operators.two_shot_all_reduce_(source(number), "sum", group.group_name)

    return as_peer(work, call)


class _Summands:
    """What a rank adds or sends, where its peers read it: symmetric memory of torch. Making it is collective.

    `buffers` 1: every call copies or multiplies into the one. CALLS: the caller's tensors lie there already.
    """

    def __init__(self, rank: Rank, work: Workload, group: Any, buffers: int) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self._torch, self._work = rank.device.torch, work
        dtype = getattr(self._torch, work.spec.output.dtype)
        first, *rest = work.calls[0].inputs
        shape = (first.shape[0], rest[0].shape[1]) if rest else tuple(first.shape)
        self._buffers = [symmetric.empty(shape, dtype=dtype, device=first.device) for _ in range(buffers)]
        for buffer in self._buffers:
            symmetric.rendezvous(buffer, group.group_name)
        self.ready = buffers > 1
        if self.ready:
            for buffer, data in zip(self._buffers, work.calls, strict=True):
                buffer.copy_(data.inputs[0])

    @property
    def buffer(self) -> Any:
        return self._buffers[0]

    def __call__(self, number: int) -> Any:
        """Enqueue what brings the addend of a call there."""
        if self.ready:
            return self._buffers[number]
        inputs = self._work.calls[number].inputs
        if self._work.multiplies:
            local_product(self._torch, self._work.spec, inputs[0], inputs, self.buffer)
        else:
            self.buffer.copy_(inputs[0])
        return self.buffer


def _summands(rank: Rank, work: Workload, group: Any) -> _Summands:
    symmetric = work.spec.placement == "symmetric" and not work.multiplies
    return _Summands(rank, work, group, CALLS if symmetric else 1)


def _symmetric_group(rank: Rank, meet: Meet) -> Any:
    torch, group = rank.device.torch, group_of(rank, meet, "gloo")
    import torch.distributed._symmetric_memory as symmetric

    symmetric.enable_symm_mem_for_group(group.group_name)
    streams = getattr(symmetric, "_backend_streams", None)
    if isinstance(streams, dict):  # its second stream would otherwise have the whole GPU
        for priority in (0, -1):
            if priority not in streams:
                streams[priority] = torch.cuda.ExternalStream(rank.device.driver.create_stream())
    return group


def _require_even_rows(work: Workload) -> None:
    output = work.spec.output
    if work.kind == "gather":
        moved = work.spec.inputs[work.spec.operation.moves[0].operand]
        if len({moved.local_shape(rank, work.spec.world) for rank in range(work.spec.world)}) > 1:
            raise RunnerError("peers gather rows, as many of every rank", moved.label, "compare with unfused")
        return
    if output.shard_dim != 0 or output.sizes[0] % work.spec.world:
        raise RunnerError("peers scatter rows, as many to every rank", output.label, "compare with unfused")


# -- NCCL --------------------------------------------------------------------------------------------------------------
def nccl(rank: Rank, work: Workload, meet: Meet) -> Path:
    """NCCL's collective, behind or before cuBLAS."""
    torch = rank.device.torch
    if work.kind == "none":
        raise RunnerError("NCCL goes with operations that communicate", work.spec.op, "use compute_only")
    if in_blocks(work.spec):
        raise RunnerError("NCCL gathers one operand", work.spec.op, "compare with compute_only")
    if work.kind in ("gather", "reduce_scatter"):
        _require_even_rows(work)
    group, distributed = group_of(rank, meet, "nccl"), torch.distributed
    first, *rest = work.calls[0].inputs
    whole = part = None
    sent = gathered_operand(work.spec) if contracts(work.spec) else None
    if work.kind == "gather" and rest and sent is None:
        whole = [torch.empty_like(work.whole(0)) for _ in range(CALLS)]
    if work.kind == "reduce_scatter" and rest:
        part = torch.empty((first.shape[0], rest[0].shape[1]), dtype=work.calls[0].out.dtype, device=first.device)

    def gather(number: int) -> Any:
        data = work.calls[number]
        if sent is not None:
            factors = list(data.inputs)
            factors[sent] = gather_contraction(torch, factors[sent], sent, group)
            product(torch, factors[0], factors[1], data.out)
            return data.out
        target = data.out if whole is None else whole[number]
        distributed.all_gather_into_tensor(target, data.inputs[0], group=group)
        if whole is not None:
            local_product(torch, work.spec, target, data.inputs, data.out)
        return data.out

    def reduce_scatter(number: int) -> Any:
        data = work.calls[number]
        if part is not None:
            local_product(torch, work.spec, data.inputs[0], data.inputs, part)
        distributed.reduce_scatter_tensor(data.out, data.inputs[0] if part is None else part, group=group)
        return data.out

    def all_reduce(number: int) -> Any:
        data = work.calls[number]
        if work.multiplies:
            local_product(torch, work.spec, data.inputs[0], data.inputs, data.out)
        else:
            data.out.copy_(data.inputs[0])
        distributed.all_reduce(data.out, group=group)
        return data.out

    def exchange(number: int) -> Any:
        data = work.calls[number]
        LibraryExchange(torch, work.spec, group)(data.inputs[0], data.out)
        return data.out

    return as_peer(work, {"gather": gather, "reduce_scatter": reduce_scatter, "all_reduce": all_reduce,
                          "exchange": exchange}[work.kind])


_GROUPS: dict[str, Any] = {}


def group_of(rank: Rank, meet: Meet, backend: str) -> Any:
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
