"""Is a result right? Element types as bits, fresh inputs, and the first element that is off."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tilescale.errors import RunnerError

Array = np.ndarray[Any, Any]
FP8 = ("float8_e4m3fn", "float8_e5m2")


def to_bits(values: Array, dtype: str) -> Array:
    """Numbers as elements of `dtype`, rounded to nearest even. bfloat16 comes as uint16, fp8 as uint8, others as
    numpy's own type."""
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (rounded >> np.uint32(16)).astype(np.uint16)
    if dtype in FP8:
        return _to_fp8(values, dtype)
    try:
        return values.astype(np.dtype(dtype))
    except TypeError:
        raise RunnerError("an element type can be checked on the host", dtype, "use bfloat16, float16, float32, float8") \
            from None


def from_bits(bits: bytes, dtype: str) -> Array:
    """Elements of `dtype` as float64."""
    if dtype == "bfloat16":
        return (np.frombuffer(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if dtype in FP8:
        return _fp8_values(dtype)[np.frombuffer(bits, np.uint8)]
    return np.frombuffer(bits, np.dtype(dtype)).astype(np.float64)


@lru_cache(maxsize=2)
def _fp8_values(dtype: str) -> Array:
    """The number of each of the 256 bytes. e4m3fn has no infinity, and no number where all other bits are ones."""
    if dtype == "float8_e5m2":
        return (np.arange(256, dtype=np.uint16) << np.uint16(8)).view(np.float16).astype(np.float64)
    code = np.arange(128)
    exponent, fraction = code >> 3, code & 7
    positive = np.where(exponent > 0, (1 + fraction / 8) * 2.0 ** (exponent - 7), fraction / 8 * 2.0**-6)
    positive[127] = np.nan
    return np.concatenate([positive, -positive])


def _to_fp8(values: Array, dtype: str) -> Array:
    """Nearest even, the largest number where it is exceeded. Bytes of positive numbers are in their order."""
    known = _fp8_values(dtype)[:128]
    finite = known[np.isfinite(known)]
    middles = (finite[:-1] + finite[1:]) / 2
    size = np.abs(values)
    code = np.searchsorted(middles, size, side="left")
    inside = code < middles.size
    tie = inside & (middles[np.minimum(code, middles.size - 1)] == size)
    code = code + (tie & (code % 2 == 1))
    found = (code | np.where(np.signbit(values), 128, 0)).astype(np.uint8)
    return np.where(np.isnan(values), np.uint8(0x7F), found)


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
