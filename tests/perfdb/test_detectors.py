"""perfdb.detectors: a conformance suite that every detector passes, and what is promised of ours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import perfdb
from perfdb.detecting import Detector, false_discovery, student_z
from perfdb.detectors import detector, detectors
from perfdb.synthetic import Recipe, generate

ALL = sorted(detectors())


@pytest.fixture(params=ALL)
def each(request: pytest.FixtureRequest) -> Detector:
    return detector(request.param)


def test_detectors_are_found_by_file() -> None:
    assert ALL == ["asv", "conbench", "edivisive", "mannwhitney", "quiet"]
    with pytest.raises(perfdb.RecordError, match="asv, conbench, edivisive, mannwhitney, quiet"):
        detector("none")


def series(step: float = 0.0, noise: float = 0.002, runs: int = 60, at: int = 30) -> np.ndarray:
    values = 100 * (1 + noise * np.random.default_rng(5).standard_normal((1, runs)))
    values[:, at:] *= 1 + step
    return values


@pytest.mark.parametrize("step", [0.2, -0.2])
def test_a_large_step_is_found_where_it_is(each: Detector, step: float) -> None:
    (changes,) = each.find(series(step))
    change = changes[0]
    assert abs(change.index - 30) <= 4
    assert change.index < change.found <= 45
    assert change.ratio == pytest.approx(1 + step, abs=0.11)
    assert not change.p_value > 0.1


def test_nothing_is_found_in_what_does_not_change(each: Detector) -> None:
    assert each.find(np.full((2, 60), 100.0)) == [[], []]
    swinging = 100 + 0.2 * np.sin(2.4 * np.arange(60))
    assert each.find(swinging[None]) == [[]]
    assert each.find(np.full((1, 60), np.nan)) == [[]]


def test_short_series_say_nothing(each: Detector) -> None:
    assert each.find(series(0.2, runs=each.shortest - 1, at=each.shortest - 3)) == [[]]
    assert each.find(np.empty((0, 0))) == []


def test_gaps_are_missing_and_not_values(each: Detector) -> None:
    values = series(0.2)
    gapped = np.insert(values, [5, 12, 20, 40], np.nan, axis=1)
    (whole,), (holed,) = each.find(values), each.find(gapped)
    places = np.flatnonzero(~np.isnan(gapped[0]))
    assert [(places[c.index], c.before, c.after) for c in whole] == [(c.index, c.before, c.after) for c in holed]


def test_an_answer_rests_on_no_later_run(each: Detector) -> None:
    times, _ = generate(Recipe(step=0.2), 10, 3)
    for row, changes in zip(times, each.find(times), strict=True):
        for change in changes[:1]:
            (known,) = each.find(row[None, : change.found])
            # Only the correction for the places looked at grows with the series.
            assert replace(change, p_value=0.0) in [replace(one, p_value=0.0) for one in known]


def test_ours_is_quiet_and_sensitive() -> None:
    """A small copy of the benchmark, with room for chance."""
    ours = detector("quiet")
    quiet, _ = generate(Recipe(), 400, 91)
    assert sum(bool(changes) for changes in ours.find(quiet)) <= 12
    stepped, steps = generate(Recipe(noise=0.003, step=0.02), 200, 92)
    hits = [
        any(at < c.found <= at + 5 and c.ratio > 1 for c in row)
        for row, at in zip(ours.find(stepped), steps, strict=True)
    ]
    assert sum(hits) >= 186


def test_ours_finds_each_of_several_steps() -> None:
    values = series(runs=120)
    values[:, 30:] *= 1.05
    values[:, 70:] *= 0.9
    (changes,) = detector("quiet").find(values)
    assert [change.index for change in changes] == [30, 70]
    assert [round(change.ratio, 2) for change in changes] == [1.05, 0.9]


def test_ours_passes_over_outliers() -> None:
    values = series()
    values[:, [25, 40, 41, 50]] *= 1.3
    assert detector("quiet").find(values) == [[]]


def test_the_generator_makes_what_it_says() -> None:
    times, steps = generate(Recipe(runs=400, gaps=0.1, step=0.5, first=200, last=200), 200, 1)
    again, _ = generate(Recipe(runs=400, gaps=0.1, step=0.5, first=200, last=200), 200, 1)
    assert np.array_equal(times, again, equal_nan=True)
    assert not np.isnan(times[np.arange(200), steps]).any()
    assert np.isnan(times).mean() == pytest.approx(0.1, abs=0.01)
    before = times[:, :200]
    assert np.nanmedian(times[:, 200:]) / np.nanmedian(before) == pytest.approx(1.5, abs=0.01)
    residual = (before - 100) / 100
    assert (np.abs(residual) > 0.045).sum() / (~np.isnan(residual)).sum() == pytest.approx(0.03, abs=0.004)
    inner = np.where(np.abs(residual) < 0.03, residual, np.nan)
    assert np.nanstd(inner) == pytest.approx(0.01, abs=0.001)
    pairs = inner[:, 1:] * inner[:, :-1]
    assert np.nanmean(pairs) / np.nanvar(inner) == pytest.approx(0.4, abs=0.05)


def test_false_discovery_is_benjamini_and_hochbergs() -> None:
    q_values = false_discovery(np.array([0.01, 0.04, 0.03, 0.5]))
    assert q_values == pytest.approx([0.04, 0.04 * 4 / 3, 0.04 * 4 / 3, 0.5])
    assert len(false_discovery(np.array([]))) == 0


def test_students_t_becomes_a_normal_deviate() -> None:
    # Two-sided tails of t by table: t(10) 2.228 at 5 %, t(30) 3.646 at 0.1 %.
    assert student_z(np.array([2.228]), np.array([10.0])) == pytest.approx([1.960], abs=0.01)
    assert student_z(np.array([3.646]), np.array([30.0])) == pytest.approx([3.291], abs=0.01)


def test_a_machine_that_is_slow_now_and_then_makes_no_step() -> None:
    chance = np.random.default_rng(3)
    slow = chance.random((300, 60)) < 0.25
    times = 100.0 * (1 + 0.002 * chance.standard_normal((300, 60)) + 0.1 * slow)
    assert sum(map(bool, detector("quiet").find(times))) <= 18  # without that count: more than half
    # A step beyond what it does now and then is one all the same.
    times[:, 40:] *= 1.3
    assert sum(any(change.index >= 38 for change in found) for found in detector("quiet").find(times)) >= 285
