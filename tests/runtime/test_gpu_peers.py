"""gpu_peers and gpu_baselines: what is called, with ranks as threads and stand-ins for what needs GPUs.

The stand-ins have the arguments of torch's own operators, and round as these do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed._symmetric_memory as symmetric
from support import ag_gemm, all_gather, gemm_rs, reduction

from tilescale.errors import RunnerError
from tilescale.runtime import gpu_peers
from tilescale.runtime.gpu_baselines import MAKERS
from tilescale.runtime.gpu_check import CALLS, Workload, WrongResult, place_on
from tilescale.spec.op import Spec

GROUP = SimpleNamespace(group_name="0")


class Fabric:
    """Collectives between threads, and operators made of them."""

    def __init__(self, world: int) -> None:
        self.world, self.values = world, list[Any]([None] * world)
        self._barrier = threading.Barrier(world, timeout=20)
        self.called: list[str] = []

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.values[rank] = value
        self._barrier.wait()
        found = list(self.values)
        self._barrier.wait()
        return found

    def running(self, rank: int, value: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, rounded to its type at each."""
        total = torch.zeros_like(value)
        for each in self.exchange(rank, value.clone()):
            total += each
        return total

    def operators(self, rank: int) -> SimpleNamespace:
        """torch.ops.symm_mem of a rank."""
        def rows(total: torch.Tensor) -> torch.Tensor:
            return total.chunk(self.world)[rank].clone()

        def one_shot_copy(buffer: Any, value: Any, op: str, group: str, out: Any) -> Any:
            return out.copy_(self.running(rank, buffer.copy_(value)))

        made: dict[str, Callable[..., Any]] = {
            "fused_all_gather_matmul": lambda a, bs, gather_dim, group_name: (
                None, [torch.cat(self.exchange(rank, a)) @ b for b in bs]),
            "_low_contention_all_gather": lambda a, group: torch.cat(self.exchange(rank, a)),
            "fused_matmul_reduce_scatter": lambda a, b, op, dim, group: rows(self.running(rank, a @ b)),
            "_low_contention_reduce_scatter": lambda a, op, group: rows(self.running(rank, a)),
            "reduce_scatter_out": lambda a, group, last, out: out.copy_(rows(self.running(rank, a))),
            "one_shot_all_reduce_out": lambda a, op, group, out: out.copy_(self.running(rank, a)),
            "one_shot_all_reduce_copy_out": one_shot_copy,
            "two_shot_all_reduce_": lambda a, op, group: a.copy_(self.running(rank, a)),
        }

        def checked(name: str) -> Callable[..., Any]:
            arguments = getattr(torch.ops.symm_mem, name).default._schema.arguments
            known = [each.name for each in arguments if not each.has_default_value()]

            def act(*given: Any, **named: Any) -> Any:
                assert len(given) + len(named) == len(known), name
                assert set(named) <= set(known), name
                values = dict(zip(known, given, strict=False)) | named
                assert values["group_name"] == GROUP.group_name
                assert values.get("reduce_op", "sum") == "sum"
                self.called.append(name)
                return made[name](*given, **named)

            return act

        return SimpleNamespace(**{name: checked(name) for name in made})

    def distributed(self, rank: int) -> SimpleNamespace:
        def gather(out: Any, value: Any, group: Any) -> None:
            out.copy_(torch.cat(self.exchange(rank, value)))

        def scatter(out: Any, value: Any, group: Any) -> None:
            out.copy_(self.running(rank, value).chunk(self.world)[rank])

        def reduce(value: Any, group: Any) -> None:
            value.copy_(self.running(rank, value))

        return SimpleNamespace(all_gather_into_tensor=gather, reduce_scatter_tensor=scatter, all_reduce=reduce)


class Torch:
    """torch with the operators and collectives of a fabric."""

    def __init__(self, fabric: Fabric, rank: int) -> None:
        functional = SimpleNamespace(wait_tensor=lambda value: value)
        self.ops = SimpleNamespace(symm_mem=fabric.operators(rank), _c10d_functional=functional)
        self.distributed = fabric.distributed(rank)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def compare(monkeypatch: pytest.MonkeyPatch, name: str, spec: Spec) -> list[str]:
    """Check a path on all ranks and all calls, twice; the names of the operators that it called."""
    monkeypatch.setattr(gpu_peers, "_symmetric_group", lambda rank, meet: GROUP)
    monkeypatch.setattr(gpu_peers, "group_of", lambda rank, meet, backend: GROUP)
    monkeypatch.setattr(symmetric, "empty", torch.empty)
    monkeypatch.setattr(symmetric, "rendezvous", lambda buffer, group: None)
    fabric = Fabric(spec.world)

    def one(number: int) -> None:
        work = Workload(torch, spec, number, 3, place_on(torch, "cpu"))
        rank: Any = SimpleNamespace(device=SimpleNamespace(torch=Torch(fabric, number)), rank=number, world=spec.world)
        path = MAKERS[name](rank, work, lambda value: [value])
        for call in (*range(CALLS), *range(CALLS)):
            work.poison()
            out = path.call(call)
            path.check(call, out)
            with pytest.raises(WrongResult):
                path.check(call, out + 2 * out.abs() + 1)

    with ThreadPoolExecutor(spec.world) as pool:
        for future in [pool.submit(one, rank) for rank in range(spec.world)]:
            future.result()
    return sorted(set(fabric.called))


RS, AR = gemm_rs((16, 24, 64)), gemm_rs((16, 24, 64), out="Replicate")


@pytest.mark.parametrize(("name", "spec", "calls"), [
    ("torch.symm_mem", ag_gemm((16, 24, 64)), ["fused_all_gather_matmul"]),
    ("torch.symm_mem", all_gather((16, 24)), ["_low_contention_all_gather"]),
    ("torch.symm_mem", all_gather((16, 24), inputs="symmetric"), ["_low_contention_all_gather"]),
    ("torch.symm_mem", RS, ["fused_matmul_reduce_scatter"]),
    ("torch.symm_mem", reduction((16, 24), to="FullRow"), ["_low_contention_reduce_scatter"]),
    ("torch.symm_mem", reduction((16, 24), to="FullRow", inputs="symmetric"), ["_low_contention_reduce_scatter"]),
    ("torch.symm_mem.one_shot", RS, ["reduce_scatter_out"]),
    ("torch.symm_mem.one_shot", reduction((16, 24), to="FullRow"), ["reduce_scatter_out"]),
    ("torch.symm_mem.one_shot", AR, ["one_shot_all_reduce_out"]),
    ("torch.symm_mem.one_shot", reduction((16, 24)), ["one_shot_all_reduce_copy_out"]),
    ("torch.symm_mem.one_shot", reduction((16, 24), inputs="symmetric"), ["one_shot_all_reduce_out"]),
    ("torch.symm_mem.two_shot", AR, ["two_shot_all_reduce_"]),
    ("torch.symm_mem.two_shot", reduction((16, 24)), ["two_shot_all_reduce_"]),
    ("torch.symm_mem.two_shot", reduction((16, 24), inputs="symmetric"), ["two_shot_all_reduce_"]),
    ("nccl+cublas", ag_gemm((16, 24, 64)), []), ("nccl+cublas", all_gather((16, 24)), []), ("nccl+cublas", RS, []),
    ("nccl+cublas", AR, []), ("nccl+cublas", reduction((16, 24)), []),
    ("nccl+cublas", reduction((16, 24), to="FullRow"), []),
    ("compute_only", ag_gemm((16, 24, 64)), []), ("compute_only", RS, []), ("compute_only", AR, []),
    ("compute_only", gemm_rs((16, 24, 64), out="Partial"), []),
    ("compute_only", ag_gemm((16, 64, 64), then=("swiglu",)), []),
    ("compute_only", gemm_rs((16, 24, 64), then=("bias", "gelu")), []),
    ("unfused", ag_gemm((16, 24, 64), then=("bias", "silu")), ["_low_contention_all_gather"]),
    ("unfused", ag_gemm((16, 64, 64), then=("bias", "swiglu")), ["_low_contention_all_gather"]),
    ("unfused", gemm_rs((16, 24, 64), out="Partial", out_dtype="float32", then=("accumulate",)), []),
], ids=lambda value: f"{value.label} {value.placement}" if isinstance(value, Spec) else None)
def test_a_path_computes_the_operation(monkeypatch: pytest.MonkeyPatch, name: str, spec: Spec, calls: list[str]) -> None:
    assert compare(monkeypatch, name, spec) == calls


@pytest.mark.parametrize(("inputs", "placed"), [("ordinary", set()), ("symmetric", {True})])
def test_shards_that_peers_can_read_are_gathered_where_they_lie(
    monkeypatch: pytest.MonkeyPatch, inputs: str, placed: set[bool]
) -> None:
    found, place = set(), gpu_peers._Summands.__call__

    def watched(self: Any, number: int) -> Any:
        found.add(self.ready)  # nothing is copied in a call
        return place(self, number)

    monkeypatch.setattr(gpu_peers._Summands, "__call__", watched)
    compare(monkeypatch, "torch.symm_mem", all_gather((16, 24), inputs=inputs))
    assert found == placed


@pytest.mark.parametrize(("name", "spec", "says"), [
    ("torch.symm_mem", gemm_rs((17, 24, 64)), "peers scatter rows, as many to every rank"),
    ("nccl+cublas", reduction((18, 24), to="FullRow"), "peers scatter rows, as many to every rank"),
    ("torch.symm_mem.one_shot", reduction((16, 24), to="FullCol"), "peers scatter rows"),
    ("torch.symm_mem", gemm_rs((16, 24, 64), out_dtype="float32"), "the type of their inputs"),
    ("torch.symm_mem", AR, "gathers and reduce-scatters"),
    ("torch.symm_mem.two_shot", RS, "two shots are for all-reduces"),
    ("torch.symm_mem.one_shot", all_gather((16, 24)), "sums over ranks"),
    ("nccl+cublas", all_gather((17, 24)), "peers gather rows, as many of every rank"),
    ("torch.symm_mem", all_gather((17, 24)), "peers gather rows, as many of every rank"),
    ("nccl+cublas", gemm_rs((16, 24, 64), out="Partial"), "operations that communicate"),
    ("compute_only", reduction((16, 24)), "operations that multiply"),
    ("unfused", RS, "complete on their rank"),
], ids=lambda value: value.label if isinstance(value, Spec) else None)
def test_a_path_that_does_not_exist_is_refused_on_every_rank(
    monkeypatch: pytest.MonkeyPatch, name: str, spec: Spec, says: str
) -> None:
    with pytest.raises(RunnerError, match=says):
        compare(monkeypatch, name, spec)
