"""Library products and collectives: torch's cuBLAS and torch.distributed, on tensors or on bare addresses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from tilescale.deploy.driver import Matrix
from tilescale.errors import BundleError
from tilescale.spec.declaration import Spec

_KEPT = 1024


def product(torch: Any, a: Any, b: Any, out: Any) -> None:
    """`out` = `a` times `b`, accumulated in fp32 and rounded once to the type of `out`."""
    if a.dtype == out.dtype:
        torch.mm(a, b, out=out)
    elif out.is_cuda:
        torch.mm(a, b, out_dtype=out.dtype, out=out)
    else:
        out.copy_(torch.mm(a.float(), b.float()))


class TorchLibrary:
    """Products by torch.mm on matrices in device memory that torch did not allocate. Needs torch with CUDA."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._tensors: OrderedDict[Matrix, Any] = OrderedDict()
        self._streams: dict[int, Any] = {}

    def multiply(self, a: Matrix, b: Matrix, out: Matrix, stream: int) -> None:
        """See the protocol in driver.py."""
        torch = self._torch
        if stream not in self._streams:
            self._streams[stream] = torch.cuda.ExternalStream(stream) if stream else torch.cuda.default_stream()
        with torch.no_grad(), torch.cuda.stream(self._streams[stream]):
            product(torch, self._tensor(a), self._tensor(b), self._tensor(out))

    def _tensor(self, matrix: Matrix) -> Any:
        if matrix not in self._tensors:
            self._tensors[matrix] = tensor_at(self._torch, matrix)
            if len(self._tensors) > _KEPT:
                self._tensors.popitem(last=False)
        self._tensors.move_to_end(matrix)
        return self._tensors[matrix]


class _Memory:
    """Bytes of device memory in the CUDA array interface, version 3, which has no bfloat16: hence bytes."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": (size,), "strides": None, "typestr": "|u1", "version": 3, "stream": None,
        }


def tensor_at(torch: Any, matrix: Matrix) -> Any:
    """A torch tensor over memory that something else owns and keeps alive."""
    dtype = getattr(torch, matrix.dtype)
    size = matrix.rows * matrix.columns * dtype.itemsize
    flat = torch.as_tensor(_Memory(matrix.address, size), device="cuda").view(dtype)
    return flat.as_strided((matrix.rows, matrix.columns), matrix.strides)


class Unfused:
    """The path without kernels of the bundle: torch.distributed, then torch.mm, on whatever device the tensors are.

    For operations that gather the rows of their first operand and multiply or only move; others raise BundleError.
    """

    def __init__(self, torch: Any, spec: Spec, group: Any) -> None:
        moves = [(move.kind, move.operand, move.dim) for move in spec.operation.moves]
        if moves != [("gather", 0, 0)] or spec.operation.compute not in ("gemm", "copy"):
            raise BundleError("the library path gathers the rows of the first operand", spec.op, "load the kernels")
        self._torch, self._spec, self._group = torch, spec, group

    def shape(self, shapes: Sequence[Sequence[Any]], world: int) -> list[Any]:
        """The local output of inputs with these local shapes, as declared (B is (K, N)). Sizes may be symbolic."""
        rows, *rest = shapes[0]
        return [rows * world, *(shapes[1][1:] if self._spec.operation.compute == "gemm" else rest)]

    def __call__(self, inputs: Sequence[Any], out: Any) -> None:
        """Fill `out` from inputs of this rank. Collective; every rank passes equal shapes."""
        torch, a = self._torch, inputs[0].contiguous()
        gathers = self._spec.operation.compute == "gemm"
        whole = out
        if gathers:
            whole = torch.empty((out.shape[0], *a.shape[1:]), dtype=a.dtype, device=a.device)
        torch.distributed.all_gather_into_tensor(whole, a, group=self._group)
        if gathers:
            product(torch, whole, inputs[1], out)
