"""The matrices of a library product: which buffers they lie in, where, and in what order."""

from __future__ import annotations

from dataclasses import dataclass

from tilescale.codegen.program import GemmCall
from tilescale.spec.contraction import NAMES, contracts, gathered_operand
from tilescale.spec.op import Spec
from tilescale.spec.tensor import ITEMSIZE


@dataclass(frozen=True)
class Factor:
    """A matrix from byte `offset` of a version of `buffer` on; `strides` in elements."""

    buffer: str
    offset: int
    rows: int
    columns: int
    strides: tuple[int, int]
    dtype: str

    @property
    def turned(self) -> bool:
        """Whether columns are contiguous."""
        return self.strides[0] == 1 and self.columns > 1


def factors(spec: Spec, call: GemmCall) -> tuple[Factor, Factor, Factor]:
    """A (m x k), B (k x n) and the product of a library call. Of a contraction that is gathered, `call.buffer` is the
    operand that was sent; elsewhere it is A."""
    a, b = spec.inputs[0], spec.inputs[1]
    buffers = [call.buffer, "b"]
    if contracts(spec):
        sent = gathered_operand(spec)
        buffers[sent], buffers[1 - sent] = call.buffer, NAMES[1 - sent]
    strides = (1, call.m) if contracts(spec) and a.order == "col" else (call.k, 1)
    return (
        Factor(buffers[0], call.row * call.k * a.itemsize, call.m, call.k, strides, a.dtype),
        Factor(buffers[1], 0, call.k, call.n, (1, call.k) if b.order == "col" else (call.n, 1), b.dtype),
        Factor(call.output, call.output_row * call.n * ITEMSIZE[call.output_dtype], call.m, call.n, (call.n, 1),
               call.output_dtype))
