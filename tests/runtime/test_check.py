from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescale.errors import RunnerError
from tilescale.runtime.check import first_wrong, from_bits, random_input, to_bits
from tilescale.runtime.reference import Sums
from tilescale.spec.result import ACCUMULATION_EPSILON, EPSILON, Deviation

torch = pytest.importorskip("torch")


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_bits_are_those_of_torch(dtype: str, values: list[float]) -> None:
    array = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        mine = to_bits(array.astype(np.float64), dtype).tobytes()
    theirs = torch.from_numpy(array).to(getattr(torch, dtype))
    assert mine == theirs.view(torch.int32 if dtype == "float32" else torch.int16).numpy().tobytes()
    assert np.array_equal(from_bits(mine, dtype), theirs.to(torch.float64).numpy())


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_bytes_are_those_of_torch(dtype: str) -> None:
    """All 256, and numbers at, beside and halfway between those that there are, up to the largest."""
    code = np.arange(256, dtype=np.uint8)
    theirs = torch.from_numpy(code).view(getattr(torch, dtype)).to(torch.float64).numpy()
    known = from_bits(code.tobytes(), dtype)
    assert np.array_equal(known, theirs, equal_nan=True)
    finite = np.sort(known[np.isfinite(known)])
    middles = (finite[:-1] + finite[1:]) / 2
    values = np.concatenate([finite, middles, middles * (1 + 1e-6), middles * (1 - 1e-6)]).astype(np.float32)
    wanted = torch.from_numpy(values).to(getattr(torch, dtype)).to(torch.float64).numpy()
    assert np.array_equal(from_bits(to_bits(values, dtype).tobytes(), dtype), wanted)
    assert from_bits(to_bits(np.array([1e9, -1e9]), dtype).tobytes(), dtype).tolist() == [finite[-1], finite[0]]
    assert np.isnan(from_bits(to_bits(np.array([np.nan]), dtype).tobytes(), dtype)[0])


def test_exact_inputs_are_small_integers_and_others_are_not() -> None:
    rng = np.random.default_rng(0)
    assert set(np.unique(random_input(rng, (1000,), True))) == {-2.0, -1.0, 0.0, 1.0, 2.0}
    normal = random_input(rng, (1000,), False)
    assert not np.array_equal(normal, np.round(normal))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_bound_accepts_a_rounded_fp32_product_and_refuses_a_wrong_term(dtype: str) -> None:
    rng = np.random.default_rng(1)
    a, b = random_input(rng, (64, 512), False), random_input(rng, (512, 32), False)
    reference, magnitude = a @ b, np.abs(a) @ np.abs(b)
    allowed = Sums(reference, magnitude).allowed(Deviation(EPSILON[dtype] / 2, 512 * ACCUMULATION_EPSILON))
    product = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)
    # The inputs themselves were not rounded here, so compare a product of the same fp32 inputs.
    exact = a.astype(np.float32).astype(np.float64) @ b.astype(np.float32).astype(np.float64)
    assert first_wrong(from_bits(to_bits(product, dtype).tobytes(), dtype).reshape(exact.shape), exact, allowed) == -1
    broken = exact.copy()
    broken[3, 5] += np.abs(exact).mean() * 0.1
    assert first_wrong(broken, exact, allowed) == 3 * 32 + 5


def test_a_poisoned_element_is_wrong() -> None:
    reference = np.ones(8)
    found = reference.copy()
    found[6] = np.nan
    assert first_wrong(found, reference, np.full(8, 1e9)) == 6


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(RunnerError, match="checked on the host"):
        to_bits(np.ones(1), "float4_e2m1fn_x2")
