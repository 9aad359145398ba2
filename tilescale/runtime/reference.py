"""Adding up what an operation computes, with numpy or torch: the value of every element, and what it may be off by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from tilescale.spec.declaration import Spec
from tilescale.spec.epilogue import Epilogue, Math
from tilescale.spec.result import EPSILON, SMALLEST, Deviation, Factor, Result
from tilescale.spec.scales import BLOCK

ROWS_AT_ONCE = 1024  # of a first factor that are widened together, so that fp64 copies stay small

Load = Callable[[Factor], Any]


class Arrays(Math, Protocol):
    """The operations that differ between libraries; ``+``, ``*``, ``@``, ``abs`` and slices do not."""

    def zeros(self, shape: tuple[int, ...], rough: bool) -> Any:
        """Of fp64, or of what `magnitudes` returns (`rough`)."""
        ...

    def wide(self, values: Any) -> Any:
        """As fp64."""
        ...

    def magnitudes(self, a: Any, b: Any) -> Any:
        """abs(a) @ abs(b); some three digits are enough."""
        ...

    def turned(self, values: Any, order: tuple[int, ...]) -> Any:
        """With its dimensions in another order."""
        ...


class NumpyArrays:
    """Everything in fp64, which its arrays are already."""

    def zeros(self, shape: tuple[int, ...], rough: bool) -> Any:
        return np.zeros(shape)

    def wide(self, values: Any) -> Any:
        return values

    def magnitudes(self, a: Any, b: Any) -> Any:
        return np.abs(a) @ np.abs(b)

    def turned(self, values: Any, order: tuple[int, ...]) -> Any:
        return np.transpose(values, order)

    def exp(self, x: Any) -> Any:
        return np.exp(x)

    def erf(self, x: Any) -> Any:
        return np.vectorize(math.erf, otypes=[float])(x)

    def sqrt(self, x: Any) -> Any:
        return np.sqrt(x)

    def mean(self, x: Any) -> Any:
        return np.mean(x, axis=-1, keepdims=True)


def part_of(result: Result, joined: Any, arrays: Arrays) -> Any:
    """What the output takes of a first factor, whose ranks are joined: a view."""
    if result.size is not None:
        joined = joined[(slice(None),) * result.dim + (slice(result.start, result.start + result.size),)]
    return arrays.turned(joined, result.order) if result.order else joined


@dataclass
class Sums:
    """``value``: of each element, fp64. ``magnitude`` and ``spread``: see Deviation; None where nobody asked."""

    value: Any
    magnitude: Any = None
    spread: Any = None

    def allowed(self, deviation: Deviation) -> Any:
        """Largest distance of each element from ``value``."""
        found = abs(self.value) * deviation.result
        if deviation.magnitude:
            found += self.magnitude * deviation.magnitude
        if deviation.spread:
            found += self.spread * deviation.spread
        return found


def add_up(result: Result, load: Load, arrays: Arrays, *, magnitude: bool, spread: bool) -> Sums:
    """The sum of the terms of ``result``. ``load`` gives the tensor of a factor; it is called once a factor and term."""
    sums: Sums | None = None
    for term in result.terms:
        first, *rest = (load(factor) for factor in term)
        first = part_of(result, first, arrays)
        if sums is None:
            shape = (*first.shape[:-1], rest[0].shape[-1]) if rest else tuple(first.shape)
            sums = Sums(arrays.zeros(shape, False), arrays.zeros(shape, True) if magnitude else None,
                        arrays.zeros(shape, True) if spread else None)
        _add(sums, arrays, first, rest[0] if rest else None)
    assert sums is not None  # a result has terms
    return sums


def _add(sums: Sums, arrays: Arrays, first: Any, second: Any) -> None:
    """One term. A tensor that is not multiplied is its own magnitude."""
    wide = None if second is None else arrays.wide(second)
    for rows in _blocks(first.shape[0]):
        block = first[rows]
        value = arrays.wide(block) if wide is None else arrays.wide(block) @ wide
        sums.value[rows] += value
        if sums.magnitude is not None:
            sums.magnitude[rows] += abs(value) if second is None else arrays.magnitudes(block, second)
        if sums.spread is not None:
            sums.spread[rows] += abs(value)


@dataclass(frozen=True)
class Finished:
    """``value``: of each element of an output behind its epilogues, fp64. ``room``: the largest distance of a right one
    from it; None where it is the value, rounded once."""

    value: Any
    room: Any = None


def extras_of(spec: Spec, rank: int, load: Load, arrays: Arrays) -> list[list[Any]]:
    """The extra operands of every epilogue on a rank, as fp64."""
    at, found = len(spec.inputs) + len(spec.operation.extras(spec)), []
    for epilogue in spec.epilogues:
        count = len(epilogue.extras(spec))
        found.append([arrays.wide(load(Factor(at + i, (rank,)))) for i in range(count)])
        at += count
    return found


def finish(spec: Spec, sums: Sums, allowed: Deviation, extras: Sequence[Sequence[Any]], arrays: Arrays) -> Finished:
    """What the epilogues of ``spec`` make of a sum that may be off by ``allowed``, and rounding of the result.

    The bound of the sum goes through every epilogue, whose own errors in fp32 are added; rounding to the output type
    follows once, relative to the final value, and absolute where numbers are the smallest.
    """
    return _behind(spec, sums, allowed, list(zip(spec.epilogues, extras, strict=True)), arrays)


def aside(spec: Spec, sums: Sums, allowed: Deviation, extras: Sequence[Sequence[Any]], arrays: Arrays) -> list[Finished]:
    """The same for what the epilogues hand out besides, each as Spec.aside has it."""
    steps = list(zip(spec.epilogues, extras, strict=True))
    return [_behind(spec, sums, allowed, [*steps[:at], (epilogue.aside, own)], arrays)
            for at, (epilogue, own) in enumerate(steps) if epilogue.aside is not None]


def _behind(spec: Spec, sums: Sums, allowed: Deviation, steps: Sequence[tuple[Epilogue, Sequence[Any]]], arrays: Arrays
            ) -> Finished:
    if allowed.exact and all(epilogue.exact for epilogue, _ in steps):
        value = sums.value
        for epilogue, own in steps:
            value = epilogue.apply(arrays, value, own)
        return Finished(value)
    if not steps:
        return Finished(sums.value, sums.allowed(allowed))
    value, room = sums.value, sums.allowed(replace(allowed, result=0.0))
    for epilogue, own in steps:
        room = epilogue.room(arrays, value, room, own)
        value = epilogue.apply(arrays, value, own)
    half, smallest = EPSILON.get(spec.output.dtype, 0.0) / 2, SMALLEST.get(spec.output.dtype, 0.0)
    return Finished(value, room * (1 + half) + abs(value) * half + smallest)


def scaled_load(spec: Spec, load: Load, arrays: Arrays) -> Load:
    """``load``, with factors that have scales multiplied by them, in fp64; itself for a spec without scales."""
    kind = spec.attribute("scales")
    if kind is None:
        return load
    count = len(spec.inputs)

    def scaled(factor: Factor) -> Any:
        values = load(factor)
        if factor.operand >= count:
            return values
        cut = spec.extras[factor.operand].tensor.shard_dim is not None  # the operation's extras: scale_a, scale_b
        scales = load(Factor(count + factor.operand, factor.ranks if cut else factor.ranks[:1], factor.dim))
        return arrays.wide(values) * arrays.wide(_spread(scales, values.shape) if kind == "block" else scales)

    return scaled


def _spread(scales: Any, shape: Sequence[int]) -> Any:
    """The scale of every element of a matrix: a row of scales of A for a row each, those of B for 128 rows."""
    row = np.arange(shape[0]) if scales.shape[0] == shape[0] else np.arange(shape[0]) // BLOCK
    column = np.arange(shape[1]) // BLOCK
    return scales[row][:, column]


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(first, first + ROWS_AT_ONCE) for first in range(0, rows, ROWS_AT_ONCE))
