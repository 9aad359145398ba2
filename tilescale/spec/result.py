"""What an operation computes: the output of a rank from the inputs of all ranks, and how far a right one may be off.

Said without arrays, so that every checker follows the same words, whatever library it adds up with: each output is a
part of a sum of terms, and a term is a tensor or a product of two matrices. Files of ``spec/results`` say so for their
kind of move; ``deviation`` is the rule of what may differ, with names for the sums that it is made of. What epilogues make
of a sum, and of how far it may be off, is said by their files (see epilogue.py): then the bound of the sum, without the
rounding of the output type, goes through them, and the rounding is that of the final value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilescale.errors import SpecError
from tilescale.registry import Registry
from tilescale.spec.declaration import Spec

# Distance from 1 to the next number: one rounding is at most half of it, relative.
EPSILON = {
    "bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52,
    "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2,
}
# Half the distance between the smallest numbers: what is rounded there is off by that much, absolute.
SMALLEST = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float32": 2.0**-150}
ACCUMULATION_EPSILON = 2.0**-23  # products and sums over ranks accumulate in fp32
# Products of one byte: the tensor core of sm_90a aligns the 32 of an instruction and the sum so far to the largest of them
# and keeps 13 bits of its fraction, so each of 33 addends, and their sum, loses up to 2^-13 of the sum of absolute values.
# That is as others measured the instruction (deepseek-ai/DeepGEMM#50, thu-ml/SageAttention#287). Kernels move sums on to
# fp32 every 128 elements, which are four instructions, so the bound does not grow with the contraction.
ONE_BYTE = ("float8_e4m3fn", "float8_e5m2")
TENSOR_CORE_DEVIATION = 4 * 34 * 2.0**-13
SCALINGS = 3  # roundings of a scaled sum, each less than an addition's
NO_MOVE = "none"


@dataclass(frozen=True)
class Factor:
    """Input ``operand`` of ``ranks``, joined along ``dim``."""

    operand: int
    ranks: tuple[int, ...]
    dim: int = 0


Term = tuple[Factor, ...]  # a tensor, or two matrices that are multiplied


@dataclass(frozen=True)
class Result:
    """The output of a rank: of the sum of ``terms`` the part [start, start + size) along ``dim``; all with size None.

    ``size`` may be 0. A product is cut along its rows alone, so that its first factor can be cut instead. ``order``: of
    elements that only move, the dimensions in the order in which the output has them; () for their own.
    """

    terms: tuple[Term, ...]
    dim: int = 0
    start: int = 0
    size: int | None = None
    order: tuple[int, ...] = ()

    @property
    def only_moves(self) -> bool:
        """Whether elements arrive as they were sent."""
        return len(self.terms) == 1 and len(self.terms[0]) == 1

    @property
    def sums(self) -> bool:
        """Whether ranks contribute addends."""
        return len(self.terms) > 1


def _nothing(spec: Spec, rank: int) -> tuple[Result, ...]:
    return ()


@dataclass(frozen=True)
class Kind:
    """A kind of move (see Move) and the output that it gives a rank; ``beside``: the others of Spec.outputs."""

    name: str
    result: Callable[[Spec, int], Result]
    beside: Callable[[Spec, int], tuple[Result, ...]] = _nothing


RESULTS: Registry[Kind] = Registry("result of a kind of move", package="tilescale.spec.results")


def kind_of(spec: Spec) -> str:
    """Its kind of move, ``NO_MOVE`` for a local product. SpecError where no file says what the operation computes."""
    moves, compute = spec.operation.moves, spec.operation.compute
    kind = moves[0].kind if moves else NO_MOVE
    if len({move.kind for move in moves}) > 1 or kind not in RESULTS or compute not in ("gemm", "copy"):
        rule = "what the operation computes is described for " + ", ".join(RESULTS.names())
        raise SpecError(rule, f"{spec.op} ({kind})", "describe its kind of move in spec/results")
    return kind


def result_of(spec: Spec, rank: int) -> Result:
    """The output of ``rank``; SpecError as ``kind_of``."""
    return RESULTS[kind_of(spec)].result(spec, rank)


def results_of(spec: Spec, rank: int) -> tuple[Result, ...]:
    """Every output of ``rank``, in the order of Spec.outputs; of what epilogues make two of, the same sum twice. SpecError
    as ``kind_of``."""
    kind = RESULTS[kind_of(spec)]
    found = kind.result(spec, rank)
    return (found, *kind.beside(spec, rank), *[found] * len(spec.aside))


def addends(spec: Spec) -> tuple[Term, ...]:
    """A term from every rank: its tensor, or the product of its matrices."""
    return tuple(local_term(spec, source) for source in range(spec.world))


def local_term(spec: Spec, rank: int) -> Term:
    """What a rank adds, multiplied where the operation multiplies."""
    return tuple(Factor(operand, (rank,)) for operand in range(len(spec.inputs)))


@dataclass(frozen=True)
class Deviation:
    """Largest distance of a right element from its value in fp64, as factors of three sums.

    ``result``: of the absolute value itself, for the rounding to the output type. ``magnitude``: of the sum of absolute
    values of everything that is added up, for accumulation. ``spread``: of the sum over ranks of the absolute value of
    their addends, for addends that are rounded on their way. All zero: the value itself, rounded once to nearest even.
    """

    result: float = 0.0
    magnitude: float = 0.0
    spread: float = 0.0

    @property
    def exact(self) -> bool:
        return not (self.result or self.magnitude or self.spread)


def additions(spec: Spec, result: Result) -> int:
    """How many numbers an element of ``result`` adds up."""
    return sum(1 if len(term) == 1 else _rows(spec, term[1]) for term in result.terms)


def _rows(spec: Spec, factor: Factor) -> int:
    rows = [spec.inputs[factor.operand].local_shape(rank, spec.world)[0] for rank in factor.ranks]
    return sum(rows) if factor.dim == 0 else rows[0]


def deviation(spec: Spec, result: Result, integers: bool = False) -> Deviation:
    """What may differ: one rounding of the output type, and the accumulation of all additions in fp32 (in the tensor core
    first where operands have one byte).

    Nothing for elements that only move, nor for small ``integers``, whose sums are exact in fp32. An attribute
    ``partial_dtype`` lets every addend be rounded to that type before it is added, integers too.
    """
    if result.only_moves:
        return Deviation()
    partial = spec.attribute("partial_dtype") if result.sums else None
    spread = EPSILON[str(partial)] / 2 if partial else 0.0
    if integers and not partial:
        return Deviation()
    accumulated = 0.0 if integers else _accumulated(spec, result)
    return Deviation(EPSILON.get(spec.output.dtype, 0.0) / 2, accumulated, spread)


def _accumulated(spec: Spec, result: Result) -> float:
    """What accumulation loses, of the sum of absolute values."""
    multiplies = any(len(term) > 1 for term in result.terms)
    lost = TENSOR_CORE_DEVIATION if multiplies and spec.inputs[0].dtype in ONE_BYTE else 0.0
    scaling = SCALINGS if spec.attribute("scales") else 0
    return lost + ACCUMULATION_EPSILON * (additions(spec, result) + scaling)


def peers_deviation(spec: Spec, result: Result, integers: bool = False) -> Deviation:
    """The same for other libraries, which round addends to the type of the output, and their running sum at every rank.

    This is what they do, not what kernels of this project may do.
    """
    if not result.sums:
        return deviation(spec, result, integers)
    half = EPSILON.get(spec.output.dtype, 0.0) / 2
    accumulated = 0.0 if integers else _accumulated(spec, result)
    return Deviation(half, accumulated, (spec.world + 1) * half)
