"""The strategy `learned`: what it measures first, what it learns from, and that it decides the same way again."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from costmodel_support import fault, made_up
from support import ag_gemm
from tuner_support import SPEC, Guess, flat, guess, small_space, time_us

from tilescale.costmodel.gaussian import distances
from tilescale.costmodel.memo import prior as analytic_prior
from tilescale.costmodel.rows import Row
from tilescale.runtime.replay import RecordedSpace
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.tuner.experience import from_spaces
from tilescale.tuner.prior import Predictor, Prior
from tilescale.tuner.strategies import learned
from tilescale.tuner.strategies._chooser import OPENINGS, Candidates, Chooser
from tilescale.tuner.strategies._correction import family
from tilescale.tuner.strategies.learned import Learned, shortlist
from tilescale.tuner.strategy import STRATEGIES, Context
from tilescale.tuner.trial import Trial


@dataclass(frozen=True)
class Experienced(Context):
    """A context with rows of other workloads."""

    experience: tuple[Row, ...] = ()


def context(predictor: Predictor = guess, seed: int = 0, experience: tuple[Row, ...] = ()) -> Context:
    space = small_space()
    return Experienced(SPEC, space, Prior(SPEC, space.schedules, predictor), seed, experience)


def trial(number: int, schedule: Schedule, us: float | None) -> Trial:
    return Trial(number, schedule, "ok" if us else "timeout", "measured_scale_model", "measured", 0, us)


def played(strategy: Learned, count: int) -> list[Schedule]:
    """The first schedules that it asks for, told their time."""
    found = []
    for number in range(count):
        schedule = strategy.ask()
        if schedule is None:
            break
        found.append(schedule)
        strategy.tell(trial(number, schedule, time_us(SPEC, schedule)))
    return found


def test_it_is_registered() -> None:
    assert STRATEGIES["learned"] is Learned


def test_it_starts_with_the_best_of_the_promising_families() -> None:
    strategy = Learned(context())
    first = played(strategy, OPENINGS)
    assert first[0] == strategy.context.prior.ranked[0]
    assert len({family(schedule) for schedule in first}) == OPENINGS


def test_it_finds_the_best_though_the_prior_is_wrong_and_though_it_knows_nothing() -> None:
    best = min(small_space(), key=lambda schedule: time_us(SPEC, schedule))
    assert best in played(Learned(context(guess)), 16)
    assert best in played(Learned(context(flat)), 24)
    assert small_space().feasible > 160


def test_the_seed_and_what_was_told_decide_alone() -> None:
    runs = [played(Learned(context(flat, seed)), 30) for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


def test_it_proposes_the_whole_space_once_and_then_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "SHORTLIST", 10)
    monkeypatch.setattr(learned, "OF_A_FAMILY", 2)
    strategy = Learned(context())
    given = [strategy.context.prior.ranked[at] for at in (0, 5, -1)]
    for number, schedule in enumerate(given):  # not asked for: baselines, or stored trials
        strategy.tell(trial(number, schedule, 1000.0))
    found = played(strategy, 10_000)
    assert len(found) == len(set(found)) == small_space().feasible - len(given)
    assert not set(given) & set(found)
    assert strategy.ask() is None


def test_a_shortlist_holds_the_best_and_some_of_every_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "SHORTLIST", 20)
    monkeypatch.setattr(learned, "OF_A_FAMILY", 3)
    prior = context().prior
    found = shortlist(prior)
    assert found[:20] == prior.ranked[:20]
    assert {family(schedule) for schedule in found} == {family(schedule) for schedule in prior.schedules}
    assert len(found) < len(prior.schedules)


def time_of(spec: Spec, schedule: Schedule) -> Guess:
    """A prior that knows everything but what fails."""
    return Guess(time_us(spec, schedule))


def test_what_fails_is_put_off_and_its_neighbours_too() -> None:
    def us(schedule: Schedule) -> float | None:
        return None if schedule.overlap == "fused" else time_us(SPEC, schedule)

    strategy = Learned(context(time_of))
    ranked = strategy.context.prior.ranked
    run = []
    for number in range(40):
        schedule = strategy.ask()
        assert schedule is not None
        run.append(schedule.overlap == "fused")
        strategy.tell(trial(number, schedule, us(schedule)))
    # Of the 40 that the prior expects to be the fastest, most would fail.
    assert sum(schedule.overlap == "fused" for schedule in ranked[:40]) > 30
    assert sum(run) < 16


@cache
def recorded(shape: tuple[int, int, int], count: int = 200) -> RecordedSpace:
    return made_up(ag_gemm(shape), count)


def test_other_workloads_correct_the_prior_before_anything_is_measured() -> None:
    space = recorded((2048, 4096, 2048))
    others = from_spaces([recorded((4096, 2048, 4096)), recorded((1024, 8192, 2048))])
    schedules = tuple(row.schedule for row in space.rows)
    prior = Prior(space.spec, schedules, analytic_prior)
    bare = Context(space.spec, small_space(), prior, 0)
    truth = [row.value_us for row in space.rows if row.ok]
    good = [at for at, row in enumerate(space.rows) if row.ok]
    errors = []
    for experience in ((), others):
        known = learned.candidates(bare, schedules, experience)
        errors.append(statistics.median(abs(known.log_us[at] - np.log(us)) for at, us in zip(good, truth, strict=True)))
    assert errors[1] < errors[0] / 2
    assert known.failure[[bool(fault(s)) for s in schedules]].min() > np.median(known.failure)


def test_rows_of_another_operation_or_too_few_teach_nothing() -> None:
    rows = from_spaces([recorded((4096, 2048, 4096))])
    assert learned.transfer(context(), rows) is not None
    assert learned.transfer(context(), [row for row in rows if row.us is not None][:19]) is None
    real = ag_gemm((2048, 4096, 2048), ranks=2)
    assert learned.transfer(context(), [Row(real, r.schedule, r.us, "measured") for r in rows]) is None


def test_the_strategy_looks_at_the_experience_of_its_context() -> None:
    # Elsewhere, whatever is fused took ten times what was predicted.
    others = [
        Row(row.spec, row.schedule, row.predicted.us * (10 if row.schedule.overlap == "fused" else 1), row.source)
        for row in from_spaces([recorded((4096, 2048, 4096))])
    ]
    first = [Learned(context(analytic_prior, experience=tuple(rows))).ask() for rows in ((), others)]
    assert [schedule is not None and schedule.overlap == "fused" for schedule in first] == [True, False]


def test_every_kind_is_opened_before_a_kind_has_another_family() -> None:
    log_us = np.array([0.0, 0.01, 0.02, 0.03, 0.3, 2.0])
    kinds = ("alone", "alone", "alone", "alone", "beside", "late")
    chooser = Chooser(Candidates(log_us, distances(log_us[:, None]), tuple("abcdef"), kinds, np.zeros(6)), 0)
    assert [chooser.ask() for _ in range(5)] == [0, 4, 1, 2, 3]


def test_a_chooser_without_good_trials_goes_on_in_the_order_of_expectations() -> None:
    log_us = np.linspace(0.0, 2.0, 21)
    chooser = Chooser(Candidates(log_us, distances(log_us[:, None] * 40), ("one",) * 21, ("all",) * 21, np.zeros(21)), 0)
    run = []
    while (at := chooser.ask()) is not None:
        run.append(at)
        chooser.tell(at, None)
    assert sorted(run) == list(range(21))
    assert run[0] == 0
