"""How models and searches are judged."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from costmodel_support import made_up
from support import ag_gemm, all_gather

from tilescale.costmodel.memo import prior
from tilescale.runtime.measure import Measurement
from tilescale.runtime.replay import RecordedSpace
from tilescale.tuner.evaluate import SpaceQuality, accuracy, leave_one_out, search_quality
from tilescale.tuner.experience import from_spaces

SHAPES = ((2048, 4096, 2048), (4096, 2048, 4096), (1024, 8192, 2048))


@cache
def spaces() -> tuple[RecordedSpace, ...]:
    return tuple(made_up(ag_gemm(shape), 100) for shape in SHAPES)


def shares(found: SpaceQuality) -> dict[str, float]:
    return {way.way: way.mean for way in found.ways}


def test_accuracy_of_given_numbers() -> None:
    measured = np.array([100.0, 110.0, 120.0, 130.0, 140.0, 150.0, 160.0, 170.0, 180.0, 190.0])
    right = accuracy(measured, measured)
    assert (right.rank, right.error, right.regret) == (pytest.approx(1.0), 0.0, (0.0, 0.0))
    backward = accuracy(measured, measured[::-1])
    assert backward.rank == pytest.approx(-1.0)
    assert backward.regret == pytest.approx((0.9, 0.2))
    assert accuracy(measured, 1.5 * measured).error == pytest.approx(0.5)


def test_every_workload_is_predicted_by_the_others_of_its_operation() -> None:
    lone = made_up(all_gather((1024, 1024)), 30)
    found = leave_one_out(from_spaces([*spaces(), lone]))
    gemms = [one for one in found if one.label.startswith("ag_gemm")]
    assert [one.label for one in gemms] == sorted(space.spec.label for space in spaces())
    good = {space.spec.label: sum(row.ok for row in space.rows) for space in spaces()}
    for one in gemms:
        assert one.learned_from == sum(good.values()) - good[one.label]
        assert one.model is not None
        assert one.model.error < one.prior.error / 2
        assert one.model.rank > one.prior.rank
    (other,) = [one for one in found if one not in gemms]
    assert (other.learned_from, other.model, other.covered) == (0, None, None)


def test_a_learned_search_finds_more_than_a_random_one_and_transfer_no_less() -> None:
    found = search_quality(spaces()[:2], measurements=16, seeds=20)
    for one in found:
        found_shares = shares(one)
        assert list(found_shares) == ["random", "prior", "learned", "learned+transfer"]
        assert found_shares["learned"] > found_shares["random"] + 0.03
        assert found_shares["learned+transfer"] > found_shares["random"] + 0.03
        assert one.failures == sum(not row.ok for row in spaces()[found.index(one)].rows)
        assert all(way.least <= way.tenth <= way.mean * 1.001 for way in one.ways)


def test_all_measurements_find_the_best_and_count_the_failures() -> None:
    space = spaces()[0]
    (found,) = search_quality([space], measurements=len(space.rows), seeds=2, strategies=["model", "exhaustive"])
    assert space.best is not None
    assert found.best_us == space.best.value_us
    assert [way.way for way in found.ways] == ["random", "prior", "learned", "model", "exhaustive"]
    for way in found.ways:
        assert (way.mean, way.least, way.reached, way.failed) == (1.0, 1.0, 1.0, found.failures)


def test_no_measurement_but_the_last_is_right_for_a_prior_that_is_upside_down() -> None:
    # Times fall as predictions rise: the prior's way must be seen to be bad, or it is not looked up.
    space = spaces()[0]
    rows = [
        Measurement(row.schedule, "ok", space.source, ((1e6 / prior(space.spec, row.schedule).us,),) * 4)
        for row in space.rows
    ]
    (found,) = search_quality([RecordedSpace.of(space.spec, space.source, rows)], measurements=24, seeds=5)
    assert shares(found)["prior"] < 0.7 < shares(found)["random"]
    assert shares(found)["learned"] > shares(found)["prior"]


def test_the_evaluation_is_the_same_every_time() -> None:
    assert search_quality(spaces()[:1], 12, 3) == search_quality(spaces()[:1], 12, 3)
