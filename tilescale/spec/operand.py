"""Operands by name: what a caller passes, and what kernels, checkers and loaders call it."""

from __future__ import annotations

from dataclasses import dataclass

from tilescale.errors import SpecError
from tilescale.spec.tensor import Tensor

INPUTS = ("a", "b")  # names of Spec.inputs, in order
NUMBERS = "numbers"
SCALES = "scales"
# Names that plans give to buffers of their own.
TAKEN = (*INPUTS, "out", "gather", "gathered", "staging", "partial", "inbox", "result", "routes", "column",
         "rows", "order", "scales", "added", "aside")


@dataclass(frozen=True)
class Operand:
    """A tensor that the caller passes under a name. Kernels reach one beside the inputs through a pointer of its own.

    ``rows``: an extra operand of the shape of the output, of which a step reads the rows that it makes; else every step
    reads all that the rank holds. ``values``: what a checker fills it with: "numbers" (of either sign, small integers
    where results must be exact), "positive", "scales" (positive, powers of two where results must be exact) or, of dispatch
    and combine, "routing" and "counts".
    """

    name: str
    tensor: Tensor
    rows: bool = False
    values: str = NUMBERS


def check_names(operands: tuple[Operand, ...]) -> None:
    """SpecError where two operands beside the inputs share a name, or one has a name that plans use."""
    names = [operand.name for operand in operands]
    for name in names:
        if name in TAKEN or names.count(name) > 1:
            raise SpecError("operands beside the inputs have names of their own", name,
                            "use an epilogue once, and other names than " + ", ".join(TAKEN))
