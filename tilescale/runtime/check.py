"""Is a result right? Element types as bits, fresh inputs, and the first element that is off."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilescale.errors import RunnerError

Array = np.ndarray[Any, Any]


def to_bits(values: Array, dtype: str) -> Array:
    """Numbers as elements of `dtype`, rounded to nearest even. bfloat16 comes as uint16, others as numpy's own type."""
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (rounded >> np.uint32(16)).astype(np.uint16)
    try:
        return values.astype(np.dtype(dtype))
    except TypeError:
        raise RunnerError("an element type can be checked on the host", dtype, "use bfloat16, float16, float32 or ints") \
            from None


def from_bits(bits: bytes, dtype: str) -> Array:
    """Elements of `dtype` as float64."""
    if dtype == "bfloat16":
        return (np.frombuffer(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return np.frombuffer(bits, np.dtype(dtype)).astype(np.float64)


def random_input(rng: np.random.Generator, shape: tuple[int, ...], exact: bool) -> Array:
    """Small integers, whose sums are exact in fp32 (`exact`), or normally distributed numbers."""
    if exact:
        return rng.integers(-2, 3, shape).astype(np.float64)
    return rng.standard_normal(shape)


def first_wrong(found: Array, reference: Array, allowed: Array) -> int:
    """Flat index of the first element off by more than allowed, or not a number; -1 where all are right."""
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(found - reference) <= allowed)
    at = np.flatnonzero(wrong)
    return int(at[0]) if at.size else -1
