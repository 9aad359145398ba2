"""Series of times to judge a detector by: correlated noise, outliers, missing runs, and a step or none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recipe:
    """What a series is made of.

    `noise`: standard deviation of the AR(1) part as a fraction of the level, `phi` its correlation from one run to the
    next. `outliers`: probability of a run that lies far out: 5 standard deviations and an exponential tail of 10 more,
    four of five of them slow. `gaps`: probability of a run that is missing (NaN). `step`: the change of the level as a
    fraction, from a run drawn from `[first, last]` on.
    """

    runs: int = 60
    noise: float = 0.01
    phi: float = 0.4
    outliers: float = 0.03
    gaps: float = 0.05
    step: float = 0.0
    first: int = 30
    last: int = 50
    level_us: float = 100.0


def generate(recipe: Recipe, count: int, seed: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """`count` series of `recipe.runs` times in microseconds, one a row, and the run at which each steps.

    The same arguments give the same series. A run at which a series steps is never missing.
    """
    chance = np.random.default_rng([seed, count, recipe.runs])
    noise = np.empty((count, recipe.runs))
    fresh = chance.standard_normal((count, recipe.runs))
    noise[:, 0] = fresh[:, 0]
    for run in range(1, recipe.runs):
        noise[:, run] = recipe.phi * noise[:, run - 1] + np.sqrt(1 - recipe.phi**2) * fresh[:, run]
    far = chance.random((count, recipe.runs)) < recipe.outliers
    sign = np.where(chance.random((count, recipe.runs)) < 0.8, 1.0, -1.0)
    noise += far * sign * (5 + chance.exponential(10, (count, recipe.runs)))
    steps = chance.integers(recipe.first, recipe.last + 1, count)
    runs = np.arange(recipe.runs)
    level = 1 + recipe.step * (runs[None, :] >= steps[:, None])
    # Never at or below zero, whatever the tail of an outlier: a time is positive.
    times = recipe.level_us * level * np.maximum(1 + recipe.noise * noise, 0.05)
    missing = (chance.random((count, recipe.runs)) < recipe.gaps) & (runs[None, :] != steps[:, None])
    return np.where(missing, np.nan, times), steps
