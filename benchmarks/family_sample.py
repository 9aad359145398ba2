"""Workloads that stand for an operation in the table of the family: a small and a large one of each kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tilescale as ts
from tilescale.errors import SpecError
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

DTYPE = "bfloat16"
Make = Callable[[Topology, bool], Spec]


def _tensor(view: Any, shape: tuple[int, ...]) -> ts.Tensor:
    return ts.Tensor(shape, DTYPE, view)


def _product(a: Any, b: Any, out: Any) -> Make:
    def make(topology: Topology, large: bool) -> Spec:
        world = topology.world
        m, n, k = (1024 * world, 1024 * world, 512 * world) if large else (128 * world, 64 * world, 64 * world)
        return ts.matmul(_tensor(a, (m, k)), ts.Tensor((k, n), DTYPE, b, "col"), out, topology)

    return make


def _along(view: Any, order: str) -> Make:
    """A product whose contraction is gathered; `order` is that of what is sent."""
    def make(topology: Topology, large: bool) -> Spec:
        world, rows = topology.world, view is ts.FullRow
        m, n, k = (1024 * world, 1024 * world, 512 * world) if large else (128 * world, 64 * world, 128 * world)
        a = ts.Tensor((m, k), DTYPE, view, "row" if rows else order)
        return ts.matmul(a, ts.Tensor((k, n), DTYPE, view, order if rows else "row"), view, topology)

    return make


def _blocks(algorithm: str | None) -> Make:
    """A product of block matrices; worlds that make no such mesh are left out (see `specs`)."""
    def make(topology: Topology, large: bool) -> Spec:
        rows, cols = topology.mesh_sizes
        m, n, k = (2048, 2048, 1024) if large else (64, 128, 64)
        a, b = _tensor(ts.Block, (m * rows, k * cols)), _tensor(ts.Block, (k * cols, n * cols))
        return ts.matmul(a, b, ts.Block, topology, algorithm=algorithm)

    return make


def _moved(view: Any, to: Any, root: int | None = None) -> Make:
    def make(topology: Topology, large: bool) -> Spec:
        rows, columns = (1024, 1024) if large else (128, 24)
        shape = (rows * topology.world, columns * topology.world)
        return ts.redistribute(_tensor(view, shape), to, topology, root=root)

    return make


def _attention(view: Any, to: Any, transpose: tuple[int, ...] | None) -> Make:
    def make(topology: Topology, large: bool) -> Spec:
        heads, sequence, size = (8, 1024, 128) if large else (2, 128, 16)
        shape = (1 if large else 2, heads * topology.world, sequence * topology.world, size)
        return ts.redistribute(_tensor(view, shape), to, topology, transpose=transpose)

    return make


def _shift(topology: Topology, large: bool) -> Spec:
    rows, columns = (2048, 2048) if large else (128, 24)
    return ts.shift(_tensor(ts.FullRow, (rows * topology.world, columns)), 1, topology)


def _routed(combines: bool) -> Make:
    def make(topology: Topology, large: bool) -> Spec:
        world, (tokens, columns, experts, top_k) = topology.world, (1024, 1024, 32, 8) if large else (16, 24, 4, 2)
        if not combines:
            tensor = _tensor(ts.FullRow, (tokens * world, columns))
            return ts.moe_dispatch(tensor, experts * world, top_k, topology)
        rows = _tensor(ts.FullRow, (world * tokens * world * top_k, columns))
        return ts.moe_combine(rows, tokens * world, experts * world, top_k, topology, inputs="symmetric")

    return make


def _experts(combines: bool) -> Make:
    def make(topology: Topology, large: bool) -> Spec:
        world, (tokens, size, experts, top_k) = topology.world, (1024, 1024, 32, 8) if large else (16, 136, 4, 2)
        weights = _tensor(ts.FullRow, (experts * world, size, size))
        if not combines:
            return ts.moe_dispatch_gemm(_tensor(ts.FullRow, (tokens * world, size)), weights, top_k, topology)
        rows = _tensor(ts.FullRow, (world * tokens * world * top_k, size))
        return ts.moe_gemm_combine(rows, weights, tokens * world, top_k, topology)

    return make


# The workloads of each operation, in the two sizes of the sample.
WORKLOADS: dict[str, tuple[Make, ...]] = {
    "ag_gemm": (_product(ts.FullRow, ts.FullCol, ts.FullCol),),
    "ag_gemm_k": (_along(ts.FullCol, "col"), _along(ts.FullCol, "row")),
    "all_gather": (_moved(ts.FullRow, ts.Replicate),),
    "all_reduce": (_moved(ts.Partial, ts.Replicate),),
    "all_to_all": (_moved(ts.FullRow, ts.FullCol), _attention(ts.Shard(2), ts.Shard(1), None),
                   _attention(ts.Shard(1), ts.Shard(1), (0, 2, 1, 3))),
    "broadcast": (_moved(ts.Replicate, ts.Replicate, 0),),
    "gemm": (_product(ts.Replicate, ts.FullCol, ts.FullCol),),
    "gemm_ar": (_product(ts.FullCol, ts.FullRow, ts.Replicate),),
    "gemm_rs": (_product(ts.FullCol, ts.FullRow, ts.FullRow),),
    "moe_combine": (_routed(True),),
    "moe_dispatch": (_routed(False),),
    "moe_dispatch_gemm": (_experts(False),),
    "moe_gemm_combine": (_experts(True),),
    "reduce_scatter": (_moved(ts.Partial, ts.FullRow),),
    "shift": (_shift,),
    "summa": (_blocks(None), _blocks("cannon")),
    "weight_gather_gemm": (_along(ts.FullRow, "row"), _along(ts.FullRow, "col")),
}


def specs(op: str, worlds: tuple[int, ...], large: bool) -> Iterator[Spec]:
    """The workloads of an operation in one of the two sizes that have kernels, on every world."""
    for world in worlds:
        topology = Topology.scale_model("8xH200-NVSwitch", ranks=world)
        for make in WORKLOADS.get(op, ()):
            with contextlib.suppress(SpecError):
                if (spec := make(topology, large)).kernels:
                    yield spec
