"""What an epilogue is: elementwise work, or work on whole rows, on results that are still in fp32.

An epilogue stands in ``Spec.then`` by name. It is applied where a result is complete: by the blocks that multiply, or,
where ranks are summed, by those that add up. A file of ``spec/epilogues`` says what one computes, with the few functions
that numpy and torch have in common: on fp64 for checkers, on fp32 for library paths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tilescale.registry import Registry
from tilescale.spec.operand import Operand

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec

EPSILON = 2.0**-23  # of fp32: epilogues are computed in it


class Math(Protocol):
    """Functions of arrays, elementwise but for the mean; operators, ``abs``, slices and ``reshape`` are the arrays' own."""

    def exp(self, x: Any) -> Any: ...

    def erf(self, x: Any) -> Any: ...

    def sqrt(self, x: Any) -> Any: ...

    def mean(self, x: Any) -> Any:
        """Over the last dimension, which is kept with size 1."""
        ...


def _none(spec: Spec) -> tuple[Operand, ...]:
    return ()


def _fine(spec: Spec) -> None:
    """No rule of its own."""


@dataclass(frozen=True)
class Epilogue:
    """One epilogue.

    ``apply(math, x, extras)``: the result from ``x`` and its extra operands, arrays of one floating type. ``room(math, x,
    room, extras)``: how far a right fp32 result may be off where ``x`` may be off by ``room``. ``extras(spec)``: the
    operands beside the inputs. ``check(spec)`` raises SpecError. ``exact``: small integers stay exact in fp32.
    ``linear``: only adds a tensor, which may be a sum over ranks itself. ``whole_rows``: needs all columns of a row.
    ``halves``: of two columns of the product one is left. ``struct``: its type in
    include/tilescale/epilogue.cuh. ``aside``: what is returned besides, under its name and as the output is: ``x`` behind
    that epilogue, with the same extra operands.
    """

    name: str
    summary: str
    apply: Callable[[Math, Any, Sequence[Any]], Any]
    room: Callable[[Math, Any, Any, Sequence[Any]], Any]
    struct: str
    extras: Callable[[Spec], tuple[Operand, ...]] = _none
    check: Callable[[Spec], None] = _fine
    exact: bool = False
    linear: bool = False
    whole_rows: bool = False
    halves: bool = False
    aside: Epilogue | None = None


EPILOGUES: Registry[Epilogue] = Registry("epilogue", package="tilescale.spec.epilogues")
