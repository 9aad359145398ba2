"""Inputs of a workload on a rank's GPU, what must come out, and whether it did: every element, in fp64, on the GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilescale.deploy.tensors import Local, contiguous, local_inputs, local_output
from tilescale.errors import RunnerError
from tilescale.runtime.check import ACCUMULATION_EPSILON, EPSILON
from tilescale.spec.declaration import Spec

CALLS = 3
EXACT_CALL = 0  # small integers, whose sums are exact in fp32; the other calls hold random numbers
TIMED_CALLS = (1, 2)  # never integers: arithmetic on few distinct values runs faster than on real ones
POISON = 0x7F  # a byte: 3.4e38 in bfloat16 and float32, not a number in float16, large in integers

Place = Callable[[Local], Any]  # a tensor of this shape, strides and type where kernels reach it


class WrongResult(Exception):
    """An output with a wrong element; the message names the first."""


@dataclass(frozen=True)
class Expected:
    """`values`: what must come out. `allowed`: largest distance of each element; None where the bits must be equal."""

    values: Any
    allowed: Any = None


@dataclass(frozen=True)
class CallData:
    """Tensors of one call, in the order of Spec.inputs, and its output."""

    inputs: tuple[Any, ...]
    out: Any
    expected: Expected


class Workload:
    """CALLS calls of a spec on one rank, made once: equal for equal (spec, seed), whatever runs.

    For operations that gather the rows of their first operand, or move nothing, and multiply or only move; RunnerError
    for others.
    """

    def __init__(self, torch: Any, spec: Spec, rank: int, seed: int, place: Place) -> None:
        moves = [(move.kind, move.operand, move.dim) for move in spec.operation.moves]
        if moves not in ([("gather", 0, 0)], []) or spec.operation.compute not in ("gemm", "copy"):
            raise RunnerError("the runner has a reference for operations that gather rows or move nothing", spec.op,
                              "add one to gpu_check.py")
        self._torch, self.spec, self.rank, self._seed, self._place = torch, spec, rank, seed, place
        self.calls = tuple(self._call(call) for call in range(CALLS))

    @property
    def multiplies(self) -> bool:
        return self.spec.operation.compute == "gemm"

    def whole(self, call: int) -> Any:
        """The first operand of all ranks, gathered; the own one where nothing moves."""
        return self._gathered(call, self.calls[call].out.device)

    def poison(self) -> None:
        """Make sure that no output is right before it is written."""
        for data in self.calls:
            data.out.view(self._torch.uint8).fill_(POISON)

    def check(self, call: int, out: Any = None) -> None:
        """Raises WrongResult unless the output of a call (or `out` in its place) is right."""
        data = self.calls[call]
        found = data.out if out is None else out
        wrong = _wrong(self._torch, found, data.expected)
        count = int(wrong.sum())
        if count:
            at = int(wrong.flatten().to(self._torch.uint8).argmax())
            raise WrongResult(self._describe(call, found, data.expected, at, count))

    def _describe(self, call: int, found: Any, expected: Expected, at: int, count: int) -> str:
        index = tuple(int(part) for part in _unravel(at, found.shape))
        values = "integers" if call == EXACT_CALL else "random numbers"
        got, wanted = found[index].item(), expected.values[index].item()
        text = f"call {call} on {values}: element {index} of out is {got}, not {wanted}"
        if expected.allowed is not None:
            text += f" within {float(expected.allowed[index]):.3g}"
        return f"{text}; {count} of {math.prod(found.shape)} are wrong"

    # -- making --------------------------------------------------------------------------------------------------------
    def _call(self, call: int) -> CallData:
        spec = self.spec
        placed = []
        for operand, local in enumerate(local_inputs(spec, self.rank)):
            tensor = self._place(local)
            tensor.copy_(self._fresh(local, call, operand, self.rank, tensor.device))
            placed.append(tensor)
        out = self._place(local_output(spec, self.rank))
        whole = self._gathered(call, out.device)
        if spec.operation.compute == "copy":
            return CallData(tuple(placed), out, Expected(whole))
        return CallData(tuple(placed), out, self._product(whole, placed[1], call))

    def _gathered(self, call: int, device: Any) -> Any:
        peers = [self.rank] if self.spec.local else range(self.spec.world)
        return self._torch.cat([self._fresh(local_inputs(self.spec, peer)[0], call, 0, peer, device) for peer in peers])

    def _product(self, whole: Any, b: Any, call: int) -> Expected:
        torch, output = self._torch, self.spec.output
        a64, b64 = whole.double(), b.double()
        reference = a64 @ b64
        if call == EXACT_CALL:
            return Expected(reference.to(getattr(torch, output.dtype)))
        magnitude = a64.abs_() @ b64.abs_()
        allowed = magnitude.mul_(ACCUMULATION_EPSILON * whole.shape[1])
        allowed += reference.abs().mul_(EPSILON.get(output.dtype, 0.0) / 2)
        return Expected(reference, allowed)

    def _fresh(self, local: Local, call: int, operand: int, rank: int, device: Any) -> Any:
        """The numbers of an operand of any rank, row-major."""
        torch = self._torch
        generator = torch.Generator(device).manual_seed(((self._seed * CALLS + call) * 2 + operand) * 128 + rank)
        dtype = getattr(torch, local.dtype)
        if call == EXACT_CALL:
            return torch.randint(-2, 3, local.shape, device=device, generator=generator).to(dtype)
        if not dtype.is_floating_point:
            return torch.randint(0, 100, local.shape, device=device, generator=generator).to(dtype)
        return torch.randn(local.shape, device=device, generator=generator, dtype=torch.float32).to(dtype)


def place_on(torch: Any, device: str) -> Place:
    """Tensors of torch's own allocator."""

    def place(local: Local) -> Any:
        dtype = getattr(torch, local.dtype)
        return torch.empty_strided(local.shape, local.strides or contiguous(local.shape), dtype=dtype, device=device)

    return place


def _wrong(torch: Any, found: Any, expected: Expected) -> Any:
    """Elements that are off, as a boolean tensor; not a number is off."""
    values = expected.values
    if found.shape != values.shape:
        raise WrongResult(f"the output has shape {tuple(found.shape)}, not {tuple(values.shape)}")
    if expected.allowed is None:
        size = found.element_size()
        if size in (1, 2, 4, 8) and found.dtype == values.dtype and not found.dtype.is_floating_point:
            return found != values
        return ~(found == values) if size > 1 else found.view(torch.uint8) != values.view(torch.uint8)
    return ~((found.double() - values).abs_() <= expected.allowed)


def _unravel(at: int, shape: Sequence[int]) -> list[int]:
    index = []
    for size in reversed(shape):
        index.append(at % size)
        at //= size
    return index[::-1]
