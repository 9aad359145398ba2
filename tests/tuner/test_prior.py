"""tilescale.tuner.prior: a whole space predicted in bounded work."""

from __future__ import annotations

import pytest
from support import ag_gemm
from tuner_support import SPEC, Guess, guess, small_space, time_us

from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.tuner.prior import Prior, structure_of, tile_of

WHOLE = Space(ag_gemm())


def test_a_small_space_is_predicted_exactly_and_ranked() -> None:
    prior = Prior(SPEC, small_space().schedules, guess)
    assert list(prior.times_us) == [guess(SPEC, schedule).us for schedule in small_space()]
    assert list(prior.ranked) == sorted(small_space(), key=lambda s: (guess(SPEC, s).us, prior.schedules.index(s)))
    assert prior.predicted == small_space().feasible


def test_nothing_is_predicted_twice_or_before_it_is_asked_for() -> None:
    prior = Prior(SPEC, small_space().schedules, guess)
    assert prior.predicted == 0
    schedule = small_space().schedules[3]
    assert prior.us(schedule) == prior.us(schedule) == guess(SPEC, schedule).us
    assert prior.predicted == 1


def test_a_large_space_takes_bounded_work_and_estimates_tiles_from_other_structures() -> None:
    # Tiles change this predictor by the same factors everywhere, so the estimates must be right.
    prior = Prior(WHOLE.spec, WHOLE.schedules, lambda spec, s: Guess(time_tiled(spec, s)), exact=300)
    structures = {structure_of(schedule) for schedule in WHOLE}
    times = prior.times_us
    assert prior.predicted <= len(structures) + 300 < WHOLE.feasible / 4
    wrong = [s for s, us in zip(WHOLE, times, strict=True) if us != pytest.approx(time_tiled(WHOLE.spec, s))]
    # Tiles that no predicted structure had are taken as the usual one: no more than those are off.
    seen = {(s.overlap, tile_of(s)) for s in prior.ranked[:300]}
    assert len(wrong) < WHOLE.feasible / 2
    assert not [s for s in wrong if (s.overlap, tile_of(s)) in seen]
    assert prior.us(prior.ranked[0]) == min(time_tiled(WHOLE.spec, s) for s in WHOLE)


def time_tiled(spec: Spec, schedule: Schedule) -> float:
    base = time_us(spec, schedule.__class__(**{**schedule.as_dict(), "block_n": 256, "num_stages": 4}))
    factor = {0: 1.0, 64: 1.4, 128: 1.0}[schedule.block_m] * {0: 1.0, 128: 1.1, 256: 1.0}[schedule.block_n]
    return base * factor * {0: 1.0, 3: 1.02, 4: 1.0, 6: 0.99}[schedule.num_stages]


def test_what_is_predicted_depends_on_the_space_alone() -> None:
    orders = []
    for _ in range(2):
        asked: list[str] = []

        def predictor(spec: Spec, schedule: Schedule, asked: list[str] = asked) -> Guess:
            asked.append(schedule.digest)
            return guess(spec, schedule)

        assert Prior(WHOLE.spec, WHOLE.schedules, predictor, exact=200).times_us
        orders.append(asked)
    assert orders[0] == orders[1]


def test_the_analytic_model_is_the_default_and_progress_ends_at_its_total() -> None:
    from tilescale.costmodel.analytic import predict

    schedules = small_space().schedules
    reports: list[tuple[int, int]] = []
    prior = Prior(SPEC, schedules, progress=lambda done, total: reports.append((done, total)))
    assert prior.times_us[0] == predict(SPEC, schedules[0]).us
    assert reports
    assert all(done <= total == len(schedules) for done, total in reports)
