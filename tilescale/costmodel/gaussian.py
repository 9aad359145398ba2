"""A Gaussian process over a fixed set of candidates: what a few measured ones say about the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

# What is tried for the reach of a measurement, in mean distances of candidates, and for the share of noise.
LENGTHS = (0.35, 0.7, 1.4, 2.8)
NOISES = (0.003, 0.03, 0.2)
# Expected standard deviation of values, and how many measurements it weighs as much as.
SCALE, WEIGHT = 0.15, 4.0


def distances(features: Floats) -> Floats:
    """Distances (n, n) of rows of `features` (n, f), the mean one 1; a column counts by its standard deviation."""
    centred = features - features.mean(axis=0)
    spread = centred.std(axis=0)
    varies = spread > 1e-9 * (1.0 + np.abs(features).max(axis=0))  # a constant has a spread of rounding errors
    scaled = centred[:, varies] / spread[varies]
    square = (scaled**2).sum(axis=1)
    found = np.sqrt(np.maximum(0.0, square[:, None] + square[None, :] - 2 * scaled @ scaled.T))
    np.fill_diagonal(found, 0.0)
    return np.asarray(found / (found.mean() or 1.0), dtype=np.float64)


@dataclass(frozen=True)
class Gaussian:
    """A fitted process: `length` and `noise` maximise the likelihood, the scale follows from them.

    Kernel: Matern 5/2 over distance; the mean is a constant, estimated with the rest.
    """

    length: float
    noise: float

    @staticmethod
    def fit(between: Floats, values: Floats) -> Gaussian:
        """From the distances (m, m) of what was measured and the values (m,): the best pair of the grid."""
        found = ((_likelihood(between, values, length, noise), length, noise) for length in LENGTHS for noise in NOISES)
        _, length, noise = max(found)
        return Gaussian(length, noise)

    def predict(self, between: Floats, values: Floats, to: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of n candidates at distances `to` (n, m) from the m measured ones."""
        factor = _factor(between, self.length, self.noise)
        mean, solved, scale = _solve(factor, values)
        near = _matern(to, self.length)
        shrunk = solve_triangular(factor, near.T, lower=True)
        variance = np.maximum(1e-9, 1.0 - np.einsum("mn,mn->n", shrunk, shrunk))
        return mean + near @ solved, scale * np.sqrt(variance)


def _matern(distance: Floats, length: float) -> Floats:
    scaled = np.sqrt(5.0) * distance / length
    return np.asarray((1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled), dtype=np.float64)


def _factor(between: Floats, length: float, noise: float) -> Floats:
    kernel = _matern(between, length)
    kernel.flat[:: len(kernel) + 1] += noise
    return np.asarray(cholesky(kernel, lower=True, check_finite=False), dtype=np.float64)


def _solve(factor: Floats, values: Floats) -> tuple[float, Floats, float]:
    """The constant mean, the weights of the measured ones and the scale, which is drawn towards SCALE."""
    ones = cho_solve((factor, True), np.ones_like(values), check_finite=False)
    mean = float(ones @ values) / float(ones.sum())
    solved = cho_solve((factor, True), values - mean, check_finite=False)
    square = float((values - mean) @ solved)
    return mean, solved, float(np.sqrt((square + WEIGHT * SCALE**2) / (len(values) + WEIGHT)))


def _likelihood(between: Floats, values: Floats, length: float, noise: float) -> float:
    factor = _factor(between, length, noise)
    _, _, scale = _solve(factor, values)
    return -(len(values) + WEIGHT) * float(np.log(scale)) - float(np.log(np.diag(factor)).sum())
