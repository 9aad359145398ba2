"""What several epilogues share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilescale.spec.epilogue import EPSILON, Math
from tilescale.spec.tensor import Dim
from tilescale.spec.views import Replicate, Shard, View

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec

STEEPEST = 1.1  # of the derivatives of silu
SMALLEST = 2.0**-100  # below this results may be flushed to zero


def silu(math: Math, x: Any) -> Any:
    """x / (1 + exp(-x)); large negative x do not overflow."""
    e = math.exp(-abs(x))
    return x * (1.0 * (x >= 0) + e * (x < 0)) / (1.0 + e)


def silu_room(math: Math, x: Any, room: Any) -> Any:
    """The exponential's argument is rounded, so its error grows with x."""
    return room * STEEPEST + abs(silu(math, x)) * (abs(x) + 8) * EPSILON + SMALLEST


def product_columns(spec: Spec) -> int | Dim:
    """Columns where epilogues begin: of the product, or of a tensor that is summed."""
    return spec.inputs[1].shape[-1] if spec.operation.compute == "gemm" else spec.output.shape[-1]


def column_view(spec: Spec) -> View:
    """How a row of numbers, one a column of the output, lies on the ranks."""
    output = spec.output
    return Shard(0) if output.shard_dim == output.ndim - 1 else Replicate
