"""Library products and collectives: torch's cuBLAS and torch.distributed, on tensors or on bare addresses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from tilescale.deploy.driver import Matrix
from tilescale.deploy.epilogues import both
from tilescale.deploy.exchanging import LibraryExchange
from tilescale.errors import BundleError, SpecError
from tilescale.spec.contraction import contracts, gathered_operand, in_blocks
from tilescale.spec.declaration import Spec
from tilescale.spec.result import kind_of
from tilescale.spec.scales import BLOCK

_KEPT = 1024


def product(torch: Any, a: Any, b: Any, out: Any) -> None:
    """`out` = `a` times `b`, accumulated in fp32 and rounded once to the type of `out`."""
    if a.element_size() == 1 and out.is_cuda:
        one = torch.ones((), dtype=torch.float32, device=a.device)
        torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=out.dtype, out=out)
    elif a.dtype == out.dtype:
        torch.mm(a, b, out=out)
    elif out.is_cuda:
        if a.dtype == torch.float32:  # of scaled operands
            out.copy_(torch.mm(a, b))
        else:
            torch.mm(a, b, out_dtype=out.dtype, out=out)
    else:
        out.copy_(torch.mm(a.float(), b.float()))


def local_product(torch: Any, spec: Spec, a: Any, operands: Sequence[Any], out: Any) -> None:
    """`out` = what `a`, the first of a rank's `operands` or the whole that it is gathered to, times the second stand for:
    with scales, which follow, where the spec has them."""
    kind, b = spec.attribute("scales"), operands[1]
    if kind is None:
        product(torch, a, b, out)
        return
    scale_a, scale_b = operands[2:4]
    if kind == "block":
        rows = torch.arange(b.shape[0], device=b.device) // BLOCK
        columns = torch.arange(b.shape[1], device=b.device) // BLOCK
        product(torch, a.float() * scale_a[:, rows], b.float() * scale_b[rows][:, columns], out)
    elif out.is_cuda and out.dtype == torch.bfloat16:
        torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=out.dtype, out=out)
    else:
        wide = torch.empty(out.shape, dtype=torch.float32, device=out.device)
        product(torch, a, b, wide)
        out.copy_(wide.mul_(scale_a).mul_(scale_b))


def gather_contraction(torch: Any, part: Any, operand: int, group: Any, distributed: Any = None) -> Any:
    """Operand number `operand` of a product, of which every rank holds as large a `part` of the contraction, whole.
    `distributed`: who gathers, torch.distributed or what counts its ranks in another order."""
    distributed = distributed or torch.distributed
    rows = (part if operand else part.t()).contiguous()  # a row is an index of the contraction
    world = distributed.get_world_size(group)
    whole = torch.empty((rows.shape[0] * world, rows.shape[1]), dtype=rows.dtype, device=rows.device)
    distributed.all_gather_into_tensor(whole, rows, group=group)
    return whole if operand else whole.t()


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
    """The path without kernels of the bundle: torch.distributed and torch.mm, on whatever device the tensors are.

    For operations that gather the rows of their first operand or a contraction, that sum over ranks, that exchange parts
    of tensors, or that stay on their rank, and multiply or only move; others raise BundleError. Sums over ranks are in fp32
    and rounded once, as in the kernels.
    """

    def __init__(self, torch: Any, spec: Spec, group: Any, distributed: Any = None) -> None:
        """`distributed`: as in LibraryExchange."""
        try:
            self._kind = kind_of(spec)
        except SpecError as error:
            raise BundleError("the library path knows the operation", spec.op, "load the kernels") from error
        if in_blocks(spec):
            raise BundleError("the library path knows the operation", spec.op, "load the kernels")
        self._contraction = gathered_operand(spec) if contracts(spec) else None
        self._torch, self._spec, self._group = torch, spec, group
        self._distributed = distributed or torch.distributed
        self._multiplies = spec.operation.compute == "gemm"
        self._exchange = LibraryExchange(torch, spec, group, distributed) if self._kind == "exchange" else None

    def shape(self, shapes: Sequence[Sequence[Any]], world: int) -> list[Any]:
        """The local output of inputs with these local shapes, as declared (B is (K, N)). Sizes may be symbolic."""
        if self._exchange is not None:
            return self._exchange.shape(shapes[0], self._distributed.get_rank(self._group))
        rows, *rest = shapes[0]
        whole = [rows, *(shapes[1][1:] if self._multiplies else rest)]
        if self._kind == "gather" and self._contraction is None:
            whole[0] = self._gathered(rows, world)
        elif self._kind == "reduce_scatter":
            _, whole[self._dim] = self._shard(whole[self._dim], world)
        if any(epilogue.halves for epilogue in self._spec.epilogues):
            whole[-1] = whole[-1] // 2
        return whole

    def _gathered(self, rows: Any, world: int) -> Any:
        """Rows of the whole, from those of this rank: as declared where shards are uneven and this one is as declared."""
        declared, total = self._spec.inputs[0], self._spec.inputs[0].sizes[0]
        if total % world == 0:
            return rows * world
        own = declared.local_shape(self._distributed.get_rank(self._group), world)[0]
        return total if rows == own else rows * world

    def __call__(self, inputs: Sequence[Any], out: Any, *beside: Any) -> None:
        """Fill `out` from operands of this rank, and `beside` with the others of Spec.outputs, where these are given.
        Collective; every rank passes shapes that go together. With epilogues the sum is kept in fp32 until these have been
        applied, as in the kernels."""
        gathered = beside[0] if beside and self._spec.operation.beside(self._spec) else None
        if not self._spec.then:
            self._fill(inputs, out, gathered)
            return
        torch, count = self._torch, len(self._spec.inputs)
        columns = inputs[1].shape[1] if self._multiplies else out.shape[-1]
        wide = torch.empty((*out.shape[:-1], columns), dtype=torch.float32, device=out.device)
        self._fill(inputs[: count + len(self._spec.operation.extras(self._spec))], wide, gathered)
        made, others = both(torch, self._spec, wide, inputs[count:])
        out.copy_(made)
        for target, other in zip(beside[len(beside) - len(others):] if beside else (), others, strict=bool(beside)):
            target.copy_(other)

    def _fill(self, inputs: Sequence[Any], out: Any, gathered: Any) -> None:
        if self._exchange is not None:
            self._exchange(inputs[0], out)
        elif self._kind == "gather":
            self._gather(inputs, out, gathered)
        elif self._kind == "none":
            local_product(self._torch, self._spec, inputs[0], inputs, out)
        else:
            self._sum(self._addend(inputs, out), out)

    @property
    def _dim(self) -> int:
        return self._spec.output.shard_dim or 0

    def _shard(self, size: Any, world: int) -> tuple[Any, Any]:
        """First index and size of this rank's shard, by DTensor's rule."""
        chunk = -(-size // world)
        first = min(size, self._distributed.get_rank(self._group) * chunk)
        return first, min(chunk, size - first)

    def _gather(self, inputs: Sequence[Any], out: Any, gathered: Any) -> None:
        torch, sent = self._torch, self._contraction
        if sent is not None:
            factors = list(inputs)
            factors[sent] = gather_contraction(torch, factors[sent], sent, self._group, self._distributed)
            product(torch, factors[0], factors[1], out)
            return
        a, whole = inputs[0].contiguous(), out
        if gathered is not None:
            whole = gathered
        elif self._multiplies:
            whole = torch.empty((out.shape[0], *a.shape[1:]), dtype=a.dtype, device=a.device)
        world = self._distributed.get_world_size(self._group)
        if whole.shape[0] == a.shape[0] * world:
            self._distributed.all_gather_into_tensor(whole, a, group=self._group)
        else:  # by DTensor's rule all shards but the last ones are as large, and follow each other
            largest = -(-whole.shape[0] // world)
            padded = a.new_zeros((largest, *a.shape[1:]))
            padded[: a.shape[0]].copy_(a)
            wide = a.new_empty((largest * world, *a.shape[1:]))
            self._distributed.all_gather_into_tensor(wide, padded, group=self._group)
            whole.copy_(wide[: whole.shape[0]])
        if self._multiplies:
            local_product(torch, self._spec, whole, inputs, out)

    def _addend(self, inputs: Sequence[Any], out: Any) -> Any:
        """What this rank adds, in a tensor of its own; the dimension that is scattered comes first."""
        torch, a = self._torch, inputs[0]
        dtype = torch.float32 if out.dtype.is_floating_point and out.dtype.itemsize < 4 else out.dtype
        if self._multiplies:
            found = torch.empty((a.shape[0], inputs[1].shape[1]), dtype=dtype, device=a.device)
            local_product(torch, self._spec, a, inputs, found)
            return found
        moved = a.movedim(self._dim, 0) if self._kind == "reduce_scatter" else a
        return torch.empty(moved.shape, dtype=dtype, device=a.device).copy_(moved)

    def _sum(self, addend: Any, out: Any) -> None:
        torch, group, distributed = self._torch, self._group, self._distributed
        world, rows = distributed.get_world_size(group), addend.shape[0]
        if self._kind == "all_reduce":
            distributed.all_reduce(addend, group=group)
            out.copy_(addend)
            return
        first, size = self._shard(rows, world)
        if rows % world == 0:
            part = torch.empty((size, *addend.shape[1:]), dtype=addend.dtype, device=addend.device)
            distributed.reduce_scatter_tensor(part, addend, group=group)
        else:  # libraries scatter equal shards
            distributed.all_reduce(addend, group=group)
            part = addend[first : first + size]
        out.movedim(self._dim, 0).copy_(part)
