"""The Gaussian process over candidates."""

from __future__ import annotations

import numpy as np
import pytest

from tilescale.costmodel.gaussian import Gaussian, distances

POINTS = np.linspace(0.0, 6.0, 41)[:, None]
BETWEEN = distances(POINTS)


def posterior(at: list[int], values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    between = BETWEEN[np.ix_(at, at)]
    return Gaussian.fit(between, values[at]).predict(between, values[at], BETWEEN[:, at])


def test_distances_ignore_units_and_columns_that_do_not_vary() -> None:
    found = distances(np.column_stack([1000.0 * POINTS, np.full(41, np.log(1000.0))]))
    assert found == pytest.approx(BETWEEN)
    assert BETWEEN.mean() == pytest.approx(1.0)
    assert (np.diag(BETWEEN) == 0).all()
    assert (distances(np.ones((3, 2))) == 0).all()


def test_a_smooth_function_is_found_from_a_few_points() -> None:
    values = 0.3 * np.sin(POINTS[:, 0])
    mean, deviation = posterior(list(range(0, 41, 5)), values)
    assert abs(mean - values).max() < 0.02
    assert deviation[20] < deviation[22]  # 20 was measured, 22 was not


def test_far_from_everything_the_mean_is_that_of_all_and_the_deviation_the_largest() -> None:
    values = np.where(POINTS[:, 0] < 1.0, 0.5, 0.1) + 0.02 * np.cos(9 * POINTS[:, 0])
    at = list(range(8))
    mean, deviation = posterior(at, values)
    assert values[at].min() < mean[-1] < values[at].max()
    assert deviation.argmax() == 40


def test_noise_is_not_followed() -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.1, 41)
    mean, _ = posterior(list(range(41)), noise)
    assert mean.std() < noise.std() / 2
