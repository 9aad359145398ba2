"""Inputs of a workload on a rank's GPU, what must come out, and whether it did: every element, in fp64, on the GPU."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilescale.deploy.epilogues import TorchMath
from tilescale.deploy.library import product
from tilescale.deploy.tensors import Local, contiguous, local_inputs, local_outputs
from tilescale.runtime.reference import Finished, add_up, aside, extras_of, finish, part_of, scaled_load
from tilescale.spec.declaration import Spec
from tilescale.spec.operand import NUMBERS, SCALES
from tilescale.spec.result import (
    Factor,
    Result,
    deviation,
    kind_of,
    local_term,
    peers_deviation,
    result_of,
    results_of,
)
from tilescale.spec.views import ReplicateView

CALLS = 3
EXACT_CALL = 0  # small integers, whose sums are exact in fp32; the other calls hold random numbers
TIMED_CALLS = (1, 2)  # never integers: arithmetic on few distinct values runs faster than on real ones
OPERANDS = 16  # more than a spec has, so that seeds differ
_KEPT_ROUNDOFF = 2.0**-24  # of references that are kept in fp32
POISON = 0x7F  # a byte: 3.4e38 in bfloat16 and float32, not a number in float16, large in integers

Place = Callable[[Local], Any]  # a tensor of this shape, strides and type where kernels reach it


class WrongResult(Exception):
    """An output with a wrong element; the message names the first."""


@dataclass(frozen=True)
class Expected:
    """`values`: what must come out. `allowed`: largest distance of each element; None where the bits must be equal.
    `spread`: of sums over ranks (see Deviation), to two digits, for those who round addends."""

    values: Any
    allowed: Any = None
    spread: Any = None


@dataclass(frozen=True)
class CallData:
    """Tensors of one call, in the order of Spec.operands, and its output. `beside`: the others of Spec.outputs, each with
    what it must hold."""

    inputs: tuple[Any, ...]
    out: Any
    expected: Expected
    beside: tuple[tuple[str, Any, Expected], ...] = ()


class Workload:
    """CALLS calls of a spec on one rank, made once: equal for equal (spec, seed), whatever runs.

    SpecError for operations of which spec/results does not say what they compute.
    """

    def __init__(self, torch: Any, spec: Spec, rank: int, seed: int, place: Place) -> None:
        self.kind, self._result = kind_of(spec), result_of(spec, rank)
        self._torch, self.spec, self.rank, self._seed, self._place = torch, spec, rank, seed, place
        self.calls = tuple(self._call(call) for call in range(CALLS))

    @property
    def multiplies(self) -> bool:
        return self.spec.operation.compute == "gemm"

    def whole(self, call: int, operand: int = 0) -> Any:
        """An operand of this rank's product or copy; gathered, where it is that of several ranks."""
        return self._load(self._result.terms[0][operand], call)

    def poison(self) -> None:
        """Make sure that no output is right before it is written."""
        for data in self.calls:
            for out in (data.out, *(tensor for _, tensor, _ in data.beside)):
                out.view(self._torch.uint8).fill_(POISON)

    def check(self, call: int, out: Any = None, expected: Expected | None = None) -> None:
        """Raises WrongResult unless the outputs of a call (or `out` alone) are right, or are what is `expected`."""
        data = self.calls[call]
        self._compare(call, "out", data.out if out is None else out, expected or data.expected)
        for name, tensor, wanted in data.beside if out is None else ():
            self._compare(call, name, tensor, wanted)

    def _compare(self, call: int, name: str, found: Any, wanted: Expected) -> None:
        wrong = _wrong(self._torch, found, wanted)
        count = int(wrong.sum())
        if count:
            at = int(wrong.flatten().to(self._torch.uint8).argmax())
            raise WrongResult(self._describe(call, name, found, wanted, at, count))

    def peers(self, call: int) -> Expected:
        """What other libraries may return, which round more often (see peers_deviation)."""
        expected = self.calls[call].expected
        if expected.spread is None:
            return expected
        values = expected.values.to(self._kept)
        allowed = peers_deviation(self.spec, self._result, call == EXACT_CALL)
        room = values.abs().mul_(allowed.result).add_(expected.spread, alpha=allowed.spread)
        return Expected(values, room if expected.allowed is None else room.add_(expected.allowed))

    def local(self, call: int) -> Expected:
        """What this rank's own product is, without those of its peers and before epilogues; of operands that are gathered,
        the product of the whole. Made anew with every use."""
        result = self._result if self.kind in ("gather", "none") else Result((local_term(self.spec, self.rank),))
        return self._expected(result, call, finished=False)

    def _describe(self, call: int, name: str, found: Any, expected: Expected, at: int, count: int) -> str:
        index = tuple(int(part) for part in _unravel(at, found.shape))
        values = "integers" if call == EXACT_CALL else "random numbers"
        got, wanted = found[index].item(), expected.values[index].item()
        text = f"call {call} on {values}: element {index} of {name} is {got}, not {wanted}"
        if expected.allowed is not None:
            text += f" within {float(expected.allowed[index]):.3g}"
        return f"{text}; {count} of {math.prod(found.shape)} are wrong"

    # -- making --------------------------------------------------------------------------------------------------------
    def _call(self, call: int) -> CallData:
        spec, placed = self.spec, []
        for operand, local in enumerate(local_inputs(spec, self.rank)):
            tensor = self._place(local)
            tensor.copy_(self._fresh(local, call, operand, self.rank, tensor.device))
            placed.append(tensor)
        (_, out), *others = ((local.name, self._place(local)) for local in local_outputs(spec, self.rank))
        self._device = out.device
        beside = tuple((name, tensor, self._expected(result, call, aside_as=name))
                       for (name, tensor), result in zip(others, results_of(spec, self.rank)[1:], strict=True))
        return CallData(tuple(placed), out, self._expected(self._result, call), beside)

    @property
    def _kept(self) -> Any:
        """The type of references that are kept: they are as many as outputs, so no wider than these need."""
        return self._torch.float32 if self.spec.output.itemsize < 4 else self._torch.float64

    def _expected(self, result: Result, call: int, finished: bool = True, aside_as: str = "") -> Expected:
        """`finished`: behind the epilogues, not before them. `aside_as`: the output that an epilogue hands out besides."""
        integers = call == EXACT_CALL
        if result.only_moves:
            joined = self._load(result.terms[0][0], call)
            return Expected(part_of(result, joined, TorchArrays(self._torch, self._device)).contiguous())
        allowed, arrays = deviation(self.spec, result, integers), TorchArrays(self._torch, self._device)

        load = scaled_load(self.spec, lambda factor: self._load(factor, call), arrays)
        sums = add_up(result, load, arrays, magnitude=bool(allowed.magnitude), spread=result.sums)
        spread = None if sums.spread is None else sums.spread.bfloat16()
        spec = self.spec if finished else dataclasses.replace(self.spec, then=())
        extras = extras_of(spec, self.rank, load, arrays)
        if aside_as:
            others = aside(spec, sums, allowed, extras, arrays)
            found = next(o for each, o in zip(spec.aside, others, strict=True) if each.name == aside_as)
        else:
            found = finish(spec, sums, allowed, extras, arrays)
        if found.room is None:
            return Expected(found.value.to(getattr(self._torch, self.spec.output.dtype)), None, spread)
        return Expected(found.value.to(self._kept), self._room(found), spread)

    def _room(self, found: Finished) -> Any:
        """What each element may be off by, and what the kept reference itself is off by."""
        room = found.room
        if self._kept == self._torch.float32:
            room += found.value.abs().mul_(_KEPT_ROUNDOFF)
        return room.float()

    def _load(self, factor: Factor, call: int) -> Any:
        """The operand of the ranks of a factor, joined."""
        locals_ = [local_inputs(self.spec, rank)[factor.operand] for rank in factor.ranks]
        parts = [self._fresh(local, call, factor.operand, rank, self._device)
                 for rank, local in zip(factor.ranks, locals_, strict=True)]
        if len(parts) == 1:
            return parts[0]
        if parts[0].element_size() == 1:  # torch does not join every type of one byte
            joined = self._torch.cat([part.view(self._torch.uint8) for part in parts], factor.dim)
            return joined.view(parts[0].dtype)
        return self._torch.cat(parts, factor.dim)

    def _fresh(self, local: Local, call: int, operand: int, rank: int, device: Any) -> Any:
        """The numbers of an operand of any rank, row-major. Integers are so small that sums over ranks hold them. What
        all ranks hold beside the inputs is the same for all."""
        torch, declared = self._torch, self.spec.operands[operand]
        if operand >= len(self.spec.inputs) and isinstance(declared.tensor.view, ReplicateView):
            rank = 0
        generator = torch.Generator(device).manual_seed(((self._seed * CALLS + call) * OPERANDS + operand) * 128 + rank)
        numbers = self._numbers(local, call, generator, device)
        if declared.values == SCALES:
            return self._torch.exp2(numbers.sign()) if call == EXACT_CALL else numbers.abs() / 2 + 0.25
        return numbers if declared.values == NUMBERS else numbers.abs() + 1

    def _numbers(self, local: Local, call: int, generator: Any, device: Any) -> Any:
        torch = self._torch
        dtype = getattr(torch, local.dtype)
        if call == EXACT_CALL:
            return torch.randint(-2, 3, local.shape, device=device, generator=generator).to(dtype)
        if not dtype.is_floating_point:
            high = 100 // len(self._result.terms)
            return torch.randint(0, high, local.shape, device=device, generator=generator).to(dtype)
        return torch.randn(local.shape, device=device, generator=generator, dtype=torch.float32).to(dtype)


class TorchArrays(TorchMath):
    """Arrays for reference.py: values in fp64, magnitudes by the library's products in fp32."""

    def __init__(self, torch: Any, device: Any) -> None:
        super().__init__(torch)
        self._device = device

    def zeros(self, shape: tuple[int, ...], rough: bool) -> Any:
        torch = self._torch
        return torch.zeros(shape, dtype=torch.float32 if rough else torch.float64, device=self._device)

    def wide(self, values: Any) -> Any:
        return values.double()

    def magnitudes(self, a: Any, b: Any) -> Any:
        torch = self._torch
        found = torch.empty((a.shape[0], b.shape[1]), dtype=torch.float32, device=a.device)
        if a.dtype not in (torch.bfloat16, torch.float16):
            a, b = a.float(), b.float()
        product(torch, a.abs(), b.abs(), found)
        return found

    def turned(self, values: Any, order: tuple[int, ...]) -> Any:
        return values.permute(order)



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
    return ~((found.to(values.dtype) - values).abs_() <= expected.allowed)


def _unravel(at: int, shape: Sequence[int]) -> list[int]:
    index = []
    for size in reversed(shape):
        index.append(at % size)
        at //= size
    return index[::-1]
