"""Specs that several rooms test with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilescale.spec.op import (
    Spec,
    matmul,
    moe_combine,
    moe_dispatch,
    moe_dispatch_gemm,
    moe_gemm_combine,
    redistribute,
    shift,
)
from tilescale.spec.tensor import Tensor, square_mesh
from tilescale.spec.topology import Topology
from tilescale.spec.views import Block, FullCol, FullRow, Partial, Replicate, Shard

MAIN = (4096, 10240, 8192)


def topology(ranks: int) -> Topology:
    return Topology.scale_model("8xH200-NVSwitch", ranks=ranks)


def ag_gemm(shape: tuple[int, int, int] = MAIN, ranks: int = 4, *, order: str = "col", dtype: str = "bfloat16",
            inputs: str = "ordinary", out_dtype: str | None = None, gathered: bool = False, on: Topology | None = None,
            then: tuple[str, ...] = ()) -> Spec:
    """ag_gemm of global M x N x K, in the scale model unless `on` says otherwise."""
    m, n, k = shape
    return matmul(Tensor((m, k), dtype, FullRow), Tensor((k, n), dtype, FullCol, order=order), out=FullCol,
                  topology=on or topology(ranks), inputs=inputs, out_dtype=out_dtype, gathered=gathered, then=then)


def ag_gemm_of_several(a: tuple[int, int], columns: tuple[int, ...], ranks: int = 4) -> Spec:
    """ag_gemm of A (M, K) and of B with these columns, side by side."""
    several = [Tensor((a[1], size), "bfloat16", FullCol, "col") for size in columns]
    return matmul(Tensor(a, "bfloat16", FullRow), several, FullCol, topology(ranks))


def in_blocks(ranks: int = 4, local: tuple[int, int, int] = (88, 152, 88), algorithm: str | None = None, *,
              dtype: str = "bfloat16", on: Topology | None = None) -> Spec:
    """Block matrices on the most square mesh of `ranks`: every rank multiplies `local` (m, n, k of its block of A)."""
    rows, cols = square_mesh(ranks)
    m, n, k = local
    return matmul(Tensor((m * rows, k * cols), dtype, Block), Tensor((k * cols, n * cols), dtype, Block), Block,
                  on or topology(ranks), algorithm=algorithm)


CONTRACTIONS = ("weights", "weights col", "gradients", "gradients row")


def contraction(name: str, shape: tuple[int, int, int] = MAIN, ranks: int = 4, *, dtype: str = "bfloat16",
                inputs: str = "ordinary", out_dtype: str | None = None, on: Topology | None = None) -> Spec:
    """A product whose contraction is gathered, of global M x N x K: "weights" (weight_gather_gemm) or "gradients"
    (ag_gemm_k). What is sent has its contraction outside, and moves in rows, but in "weights col" and "gradients row"."""
    m, n, k = shape
    kind, _, order = name.partition(" ")
    views, order = ((FullRow, FullRow), order or "row") if kind == "weights" else ((FullCol, FullCol), order or "col")
    orders = ("row", order) if kind == "weights" else (order, "row")
    a, b = (Tensor(size, dtype, view, of) for size, view, of in zip(((m, k), (k, n)), views, orders, strict=True))
    return matmul(a, b, out=views[0], topology=on or topology(ranks), inputs=inputs, out_dtype=out_dtype)


def all_gather(shape: tuple[int, ...] = (4096, 8192), ranks: int = 4, *, dtype: str = "bfloat16",
               inputs: str = "ordinary", on: Topology | None = None) -> Spec:
    return redistribute(Tensor(shape, dtype, FullRow), Replicate, topology=on or topology(ranks), inputs=inputs)


def gemm_rs(shape: tuple[int, int, int] = MAIN, ranks: int = 4, *, out: str = "FullRow", order: str = "row",
            dtype: str = "bfloat16", out_dtype: str | None = None, partial_dtype: str | None = None,
            on: Topology | None = None, then: tuple[str, ...] = ()) -> Spec:
    """gemm_rs of global M x N x K; gemm_ar with out "Replicate", a local product with "Partial"."""
    m, n, k = shape
    return matmul(Tensor((m, k), dtype, FullCol), Tensor((k, n), dtype, FullRow, order=order), out=out,
                  topology=on or topology(ranks), out_dtype=out_dtype, partial_dtype=partial_dtype, then=then)


def reduction(shape: tuple[int, ...] = (4096, 8192), ranks: int = 4, *, to: object = Replicate, dtype: str = "bfloat16",
              inputs: str = "ordinary", on: Topology | None = None, then: tuple[str, ...] = ()) -> Spec:
    """all_reduce, or reduce_scatter to a Shard."""
    return redistribute(Tensor(shape, dtype, Partial), to, topology=on or topology(ranks), inputs=inputs, then=then)


def local_gemm(shape: tuple[int, int, int], *, order: str = "col", dtype: str = "bfloat16", out_dtype: str | None = None,
               then: tuple[str, ...] = ()) -> Spec:
    """A product of M x N x K on one GPU of its own."""
    m, n, k = shape
    return matmul(Tensor((m, k), dtype, Replicate), Tensor((k, n), dtype, Replicate, order=order), out=Replicate,
                  topology=Topology.named("8xH200-NVSwitch", ranks=1), out_dtype=out_dtype, then=then)


def scaled(spec: Spec, kind: str) -> Spec:
    """The spec with scales of that kind."""
    return replace(spec, attributes=(*spec.attributes, ("scales", kind)))


def exchange(name: str, ranks: int = 4, *, inputs: str = "ordinary", dtype: str = "bfloat16", heads: int = 0,
             scale: int = 1, turned_back: bool = False, on: Topology | None = None, less: int = 0) -> Spec:
    """An operation that only moves parts of tensors, small: "shift" and "shift back", "broadcast" from the last rank,
    "columns" of a matrix instead of rows (`turned_back`: the other way), "heads" of attention instead of a sequence,
    "sequence" instead of heads with the turn of both, "elements" with a turn of the last dimension, and "square", a turn
    of two dimensions of one size. `less`: how much the rows, heads and sequence lack of a multiple of the ranks."""
    topology_, rows = on or topology(ranks), 128 * ranks * scale
    heads = heads or 7 * ranks  # no divisor of the threads that copy: their places carry from loop to loop
    if name in ("shift", "shift back"):
        return shift(Tensor((rows, 96), dtype, FullRow), 1 if name == "shift" else -1, topology_,
                     inputs=inputs)
    if name == "broadcast":
        return redistribute(Tensor((200, 96), dtype, Replicate), Replicate, topology_, root=ranks - 1, inputs=inputs)
    if name == "columns":
        views = (FullCol, FullRow) if turned_back else (FullRow, FullCol)
        return redistribute(Tensor((rows - less, 24 * ranks - less), dtype, views[0]), views[1], topology_, inputs=inputs)
    if name == "square":
        size = 64 * ranks - less
        return redistribute(Tensor((size, size, 16), dtype, FullRow), FullRow, topology_, transpose=(1, 0, 2),
                            inputs=inputs)
    x = (2, heads - less, 80 * ranks * scale - less, 16)
    if name == "heads":
        return redistribute(Tensor(x, dtype, Shard(2)), Shard(1), topology_, inputs=inputs)
    turn = {"sequence": (0, 2, 1, 3), "elements": (0, 2, 3, 1)}[name]
    return redistribute(Tensor(x, dtype, Shard(1)), Shard(1), topology_, transpose=turn, inputs=inputs)


def routed(op: str, ranks: int = 4, *, tokens: int = 0, hidden: int = 136, experts: int = 0, top_k: int = 2,
           dtype: str = "bfloat16", inputs: str = "ordinary", routing: str = "uniform", on: Topology | None = None,
           columns: int = 152, out_dtype: str | None = None, partial_dtype: str | None = None,
           then: Sequence[str] = (), order: str = "row", scales: str | None = None) -> Spec:
    """"dispatch", "dispatch_gemm", "gemm_combine" or "combine" of expert parallelism, small: by default two experts and
    eight tokens a rank."""
    tokens, experts, topology_ = tokens or 8 * ranks, experts or 2 * ranks, on or topology(ranks)
    if op == "dispatch_gemm":
        weights = Tensor((experts, hidden, columns), dtype, FullRow, order)
        return moe_dispatch_gemm(Tensor((tokens, hidden), dtype, FullRow), weights, top_k, topology_, out_dtype=out_dtype,
                                 routing=routing, inputs=inputs, then=then, scales=scales)
    if op == "gemm_combine":
        rows = Tensor((ranks * tokens * top_k, hidden), dtype, FullRow)
        weights = Tensor((experts, hidden, columns), dtype, FullRow, order)
        return moe_gemm_combine(rows, weights, tokens, top_k, topology_, out_dtype=out_dtype, partial_dtype=partial_dtype,
                                routing=routing, inputs=inputs, scales=scales)
    if op == "dispatch":
        return moe_dispatch(Tensor((tokens, hidden), dtype, FullRow), experts, top_k, topology_, routing=routing,
                            inputs=inputs)
    return moe_combine(Tensor((ranks * tokens * top_k, hidden), dtype, FullRow), tokens, experts, top_k, topology_,
                       routing=routing, inputs=inputs)
