"""Gather: one operand is that of all ranks, joined; the rest is local."""

from __future__ import annotations

from tilescale.spec.declaration import Spec
from tilescale.spec.result import RESULTS, Factor, Kind, Result


def _result(spec: Spec, rank: int) -> Result:
    if len(spec.operation.moves) > 1:
        return _blocks(spec, rank)
    (move,) = spec.operation.moves
    everyone = tuple(range(spec.world))
    operands = range(len(spec.inputs))
    return Result((
        tuple(Factor(i, everyone, move.dim) if i == move.operand else Factor(i, (rank,)) for i in operands),))


def _blocks(spec: Spec, rank: int) -> Result:
    """Of block matrices: A of this row of the mesh, times B of this column."""
    rows, cols = spec.topology.mesh_sizes
    row, col = divmod(rank, cols)
    return Result(((Factor(0, tuple(row * cols + c for c in range(cols)), 1),
                    Factor(1, tuple(r * cols + col for r in range(rows)), 0)),))


def _beside(spec: Spec, rank: int) -> tuple[Result, ...]:
    move = spec.operation.moves[0]
    everyone = tuple(range(spec.world))
    return (Result(((Factor(move.operand, everyone, move.dim),),)),) if spec.attribute("gathered") else ()


RESULTS.register(Kind("gather", _result, _beside))
