"""Gather: one operand is that of all ranks, joined; the rest is local."""

from __future__ import annotations

from tilescale.spec.declaration import Spec
from tilescale.spec.result import RESULTS, Factor, Kind, Result


def _result(spec: Spec, rank: int) -> Result:
    (move,) = spec.operation.moves
    everyone = tuple(range(spec.world))
    operands = range(len(spec.inputs))
    return Result((
        tuple(Factor(i, everyone, move.dim) if i == move.operand else Factor(i, (rank,)) for i in operands),))


def _beside(spec: Spec, rank: int) -> tuple[Result, ...]:
    (move,) = spec.operation.moves
    everyone = tuple(range(spec.world))
    return (Result(((Factor(move.operand, everyone, move.dim),),)),) if spec.attribute("gathered") else ()


RESULTS.register(Kind("gather", _result, _beside))
