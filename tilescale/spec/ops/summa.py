"""Block-by-block GEMM on a 2-D mesh: SUMMA, or Cannon's shifts on a square mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.errors import SpecError
from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.ops._counts import largest, segment_limits
from tilescale.spec.tensor import square_mesh

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec

ALGORITHMS = ("summa", "cannon")


def _flops(spec: Spec) -> int:
    m, n, k = spec.mnk
    rows, cols = spec.topology.mesh_sizes
    return 2 * largest(m, rows) * largest(n, cols) * k


def _link_bytes(spec: Spec) -> int:
    """The rest of a block row of A, and the rest of a block column of B."""
    m, n, k = spec.mnk
    rows, cols = spec.topology.mesh_sizes
    a, b = spec.inputs
    lacking_a = largest(m, rows) * (k - k // cols) * a.itemsize
    return lacking_a + (k - k // rows) * largest(n, cols) * b.itemsize


def _check(spec: Spec) -> None:
    rows, cols = spec.topology.mesh_sizes
    algorithm = spec.attribute("algorithm", "summa")
    if algorithm not in ALGORITHMS:
        raise SpecError("the algorithm of a Block matmul is summa or cannon", repr(algorithm), "leave it out")
    if min(rows, cols) < 2:
        raise SpecError("a Block matmul has a 2-D mesh", f"{rows} x {cols}", "use FullRow and FullCol views")
    if algorithm == "cannon" and rows != cols:
        raise SpecError("cannon needs a square mesh", f"{rows} x {cols}", 'use algorithm="summa", or 4 ranks as 2 x 2')


def _limits(spec: Spec) -> str:
    rows, cols = spec.topology.mesh_sizes
    instead = "declare A FullRow, B FullCol, out=FullCol (ag_gemm) on the same ranks"
    if cols % rows or (rows, cols) != square_mesh(spec.world):
        return f"kernels are for meshes of 2 x 2, 2 x 4 or 3 x 3, not {rows} x {cols}: {instead}"
    if any(tensor.order != "row" for tensor in spec.inputs):
        return f'kernels multiply row-major blocks: declare both with order="row", or {instead}'
    return segment_limits(spec)


OPERATIONS.register(
    Operation(
        name="summa",
        summary="block matrices on a 2-D mesh: panels of A along rows, of B along columns",
        flops=_flops,
        link_bytes=_link_bytes,
        moves=(Move("gather", 0, 1), Move("gather", 1, 0)),
        compute="gemm",
        kernels=True,
        limits=_limits,
        check=_check,
    )
)
