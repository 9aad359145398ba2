"""What an operation is: the properties every file of spec/ops states about the one it is named after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilescale.registry import Registry

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec
    from tilescale.spec.operand import Operand
    from tilescale.spec.result import Result
    from tilescale.spec.tensor import Tensor


@dataclass(frozen=True)
class Move:
    """Data that must cross links: ``kind`` (gather, reduce_scatter, all_reduce, dispatch, combine, or exchange: every rank
    receives parts of what ranks hold, as ``Operation.holds`` says), of input ``operand`` (-1: the output), along
    dimension ``dim`` of that tensor."""

    kind: str
    operand: int
    dim: int


def _fine(spec: Spec) -> None:
    """No rule beyond those of the table."""


def _no_limit(spec: Spec) -> str:
    return ""


def _no_extras(spec: Spec) -> tuple[Operand, ...]:
    return ()


def _nothing(spec: Spec) -> tuple[tuple[str, Tensor], ...]:
    return ()


@dataclass(frozen=True)
class Operation:
    """One operation.

    ``flops(spec)``: floating-point operations of the busiest rank. ``link_bytes(spec)``: bytes the rank that lacks
    most must receive over links, the minimum of any algorithm without in-network reduction. ``check(spec)`` raises
    SpecError for rules of this operation alone. ``compute``: "gemm", "copy" (elements only move or are added) or None.
    ``kernels``: whether kernels exist; where not, ``remedy`` says in a sentence what to do instead. ``limits(spec)``:
    a sentence why an operation with kernels has none for this spec, else "". ``holds(spec, rank)``: of an exchange, what
    ``rank`` receives; from this its schedules, proofs, checks and library path follow. ``extras(spec)``: operands beside
    the inputs that the operation itself reads, such as scales; those of epilogues follow them. ``beside(spec)``: names and
    tensors that a call returns beside the output, as attributes of the declaration ask for. ``results(spec)``: what it
    writes beside its output, into operands that callers pass.
    """

    name: str
    summary: str
    flops: Callable[[Spec], int]
    link_bytes: Callable[[Spec], int]
    moves: tuple[Move, ...]
    compute: str | None
    kernels: bool = False
    remedy: str = ""
    check: Callable[[Spec], None] = _fine
    limits: Callable[[Spec], str] = _no_limit
    holds: Callable[[Spec, int], Result] | None = None
    extras: Callable[[Spec], tuple[Operand, ...]] = _no_extras
    beside: Callable[[Spec], tuple[tuple[str, Tensor], ...]] = _nothing
    results: Callable[[Spec], tuple[Operand, ...]] = _no_extras

    def __reduce__(self) -> tuple[Callable[[str], Operation], tuple[str]]:
        """Between processes an operation goes by its name, since its functions need not have one."""
        return _registered, (self.name,)


def _registered(name: str) -> Operation:
    return OPERATIONS[name]


OPERATIONS: Registry[Operation] = Registry("operation", package="tilescale.spec.ops")
