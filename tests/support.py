"""Specs that several rooms test with."""

from __future__ import annotations

from tilescale.spec.op import Spec, matmul, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow, Replicate

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


def local_gemm(shape: tuple[int, int, int], *, order: str = "col", dtype: str = "bfloat16", out_dtype: str | None = None
               ) -> Spec:
    """A product of M x N x K on one GPU of its own."""
    m, n, k = shape
    return matmul(Tensor((m, k), dtype, Replicate), Tensor((k, n), dtype, Replicate, order=order), out=Replicate,
                  topology=Topology.named("8xH200-NVSwitch", ranks=1), out_dtype=out_dtype)
