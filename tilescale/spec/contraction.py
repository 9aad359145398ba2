"""Operations that gather the contraction of a product: which operand is sent, and how it lies in memory."""

from __future__ import annotations

from tilescale.spec.declaration import Spec
from tilescale.spec.tensor import Tensor

NAMES = ("a", "b")  # of the operands of a product


def contracts(spec: Spec) -> bool:
    """Whether what is gathered is the contraction of a product."""
    moves = spec.operation.moves
    return len(moves) == 1 and moves[0].kind == "gather" and (moves[0].operand, moves[0].dim) in ((0, 1), (1, 0)) \
        and spec.operation.compute == "gemm"


def gathered_operand(spec: Spec) -> int:
    """Number of the operand that is gathered; the first, for operations that gather no contraction."""
    return spec.operation.moves[0].operand if contracts(spec) else 0


def contraction_inner(operand: int, tensor: Tensor) -> bool:
    """Whether the contraction is the contiguous dimension of a factor."""
    return (tensor.order == "row") == (operand == 0)


def in_blocks(spec: Spec) -> bool:
    """Whether matrices lie in blocks on a mesh, so that both operands of a product travel."""
    return spec.operation.compute == "gemm" and len(spec.operation.moves) > 1


def in_whole_shards(spec: Spec) -> bool:
    """Whether only whole shards of the gathered operand are contiguous."""
    operand = gathered_operand(spec)
    return contracts(spec) and contraction_inner(operand, spec.inputs[operand])
