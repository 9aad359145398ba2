"""SwiGLU: silu(gate) * up, where B holds the columns of both in turn, eight of gate and eight of up.

So a tile of the product holds both halves of what it makes. ``interleaved`` joins two weights in that order; the output
has half as many columns as B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilescale.errors import SpecError
from tilescale.spec.epilogue import EPILOGUES, EPSILON, Epilogue, Math
from tilescale.spec.epilogues._rules import silu, silu_room
from tilescale.spec.tensor import Dim

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec

BLOCK = 8  # neighbouring columns of one half


def _halves(x: Any) -> tuple[Any, Any]:
    """Columns of gate and of up."""
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // (2 * BLOCK), 2, BLOCK)
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    return blocks[..., 0, :].reshape(shape), blocks[..., 1, :].reshape(shape)


def _apply(math: Math, x: Any, extras: Sequence[Any]) -> Any:
    gate, up = _halves(x)
    return silu(math, gate) * up


def _room(math: Math, x: Any, room: Any, extras: Sequence[Any]) -> Any:
    (gate, up), (gate_room, up_room) = _halves(x), _halves(room + 0.0 * x)
    value, off = silu(math, gate), silu_room(math, gate, gate_room)
    return off * (abs(up) + up_room) + abs(value) * up_room + abs(value * up) * EPSILON


def _check(spec: Spec) -> None:
    if spec.operation.compute != "gemm" or (spec.operation.moves and spec.operation.moves[0].operand < 0):
        raise SpecError("swiglu follows a product that is complete on its rank: gemm, ag_gemm or moe_dispatch_gemm",
                        spec.op, "apply it with torch to the output")
    if spec.then[-1] != "swiglu" or not set(spec.then) <= {"bias", "swiglu"}:
        raise SpecError("swiglu is the last epilogue, behind a bias at most", list(spec.then), "apply others with torch")
    columns, halved = spec.inputs[1].shape[-1], spec.output.shape[-1]
    if isinstance(columns, Dim) or isinstance(halved, Dim) or columns != 2 * halved:
        raise SpecError("the output of swiglu has half of the columns of B", f"{columns} and {halved}",
                        "give B the columns of gate and of up")
    for rank in range(spec.world):
        local = spec.inputs[1].local_shape(rank, spec.world)[-1]
        if local % (2 * BLOCK) or local != 2 * spec.output.local_shape(rank, spec.world)[-1]:
            raise SpecError(f"every rank has whole blocks of {BLOCK} columns of gate and of up", f"{local} columns of B",
                            f"choose sizes that the ranks divide into multiples of {2 * BLOCK}")


def interleaved(gate: Any, up: Any) -> Any:
    """B of a swiglu from two weights (K, N/2), or those of all experts (experts, K, N/2), numpy arrays or torch tensors:
    eight columns of each in turn."""
    if tuple(gate.shape) != tuple(up.shape) or gate.shape[-1] % BLOCK:
        raise SpecError(f"gate and up are matrices of one shape with a multiple of {BLOCK} columns",
                        f"{tuple(gate.shape)} and {tuple(up.shape)}", "pad them")
    *rows, columns = gate.shape
    joined = gate.reshape(-1, columns // BLOCK, 1, BLOCK).repeat(2, 2) if hasattr(gate, "ctypes") else \
        gate.reshape(-1, columns // BLOCK, 1, BLOCK).repeat(1, 1, 2, 1)
    joined[:, :, 1, :] = up.reshape(-1, columns // BLOCK, BLOCK)
    return joined.reshape(*rows, 2 * columns)


EPILOGUES.register(Epilogue(
    "swiglu", "silu(gate) * up of the columns of B in turn", _apply, _room, "Swiglu", check=_check, halves=True))
