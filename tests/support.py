"""Specs that several rooms test with."""

from __future__ import annotations

from tilescale.spec.op import Spec, matmul, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow, Partial, Replicate

MAIN = (4096, 10240, 8192)


def topology(ranks: int) -> Topology:
    return Topology.scale_model("8xH200-NVSwitch", ranks=ranks)


def ag_gemm(shape: tuple[int, int, int] = MAIN, ranks: int = 4, *, order: str = "col", dtype: str = "bfloat16",
            inputs: str = "ordinary", out_dtype: str | None = None, on: Topology | None = None) -> Spec:
    """ag_gemm of global M x N x K, in the scale model unless `on` says otherwise."""
    m, n, k = shape
    return matmul(Tensor((m, k), dtype, FullRow), Tensor((k, n), dtype, FullCol, order=order), out=FullCol,
                  topology=on or topology(ranks), inputs=inputs, out_dtype=out_dtype)


def all_gather(shape: tuple[int, ...] = (4096, 8192), ranks: int = 4, *, dtype: str = "bfloat16",
               inputs: str = "ordinary") -> Spec:
    return redistribute(Tensor(shape, dtype, FullRow), Replicate, topology=topology(ranks), inputs=inputs)


def gemm_rs(shape: tuple[int, int, int] = MAIN, ranks: int = 4, *, out: str = "FullRow", order: str = "row",
            dtype: str = "bfloat16", out_dtype: str | None = None, partial_dtype: str | None = None,
            on: Topology | None = None) -> Spec:
    """gemm_rs of global M x N x K; gemm_ar with out "Replicate", a local product with "Partial"."""
    m, n, k = shape
    return matmul(Tensor((m, k), dtype, FullCol), Tensor((k, n), dtype, FullRow, order=order), out=out,
                  topology=on or topology(ranks), out_dtype=out_dtype, partial_dtype=partial_dtype)


def reduction(shape: tuple[int, ...] = (4096, 8192), ranks: int = 4, *, to: object = Replicate, dtype: str = "bfloat16",
              inputs: str = "ordinary", on: Topology | None = None) -> Spec:
    """all_reduce, or reduce_scatter to a Shard."""
    return redistribute(Tensor(shape, dtype, Partial), to, topology=on or topology(ranks), inputs=inputs)


def local_gemm(shape: tuple[int, int, int], *, order: str = "col", dtype: str = "bfloat16", out_dtype: str | None = None
               ) -> Spec:
    """A product of M x N x K on one GPU of its own."""
    m, n, k = shape
    return matmul(Tensor((m, k), dtype, Replicate), Tensor((k, n), dtype, Replicate, order=order), out=Replicate,
                  topology=Topology.named("8xH200-NVSwitch", ranks=1), out_dtype=out_dtype)
