"""Every registered strategy: what tilescale.tuner.strategy promises of them."""

from __future__ import annotations

import pytest
from tuner_support import SPEC, flat, guess, small_space, time_us

from tilescale.errors import TilescaleError
from tilescale.schedules.schedule import Schedule
from tilescale.tuner.prior import Predictor, Prior
from tilescale.tuner.strategies._correction import Correction, family
from tilescale.tuner.strategies._tpe import SHOWN, Proposer
from tilescale.tuner.strategy import STRATEGIES, Context, Strategy
from tilescale.tuner.trial import Trial


def context(predictor: Predictor = guess, seed: int = 0) -> Context:
    space = small_space()
    return Context(SPEC, space, Prior(SPEC, space.schedules, predictor), seed)


def outcome(number: int, schedule: Schedule, ok: bool = True) -> Trial:
    value_us = time_us(SPEC, schedule) if ok else None
    return Trial(number, schedule, "ok" if ok else "timeout", "predicted", "measured", number, value_us)


def search(strategy: Strategy, count: int, failing: frozenset[Schedule] = frozenset()) -> list[Schedule]:
    found = []
    for number in range(count):
        schedule = strategy.ask()
        if schedule is None:
            break
        found.append(schedule)
        strategy.tell(outcome(number, schedule, schedule not in failing))
    return found


@pytest.fixture(params=STRATEGIES.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_proposes_the_whole_space_each_schedule_once(name: str) -> None:
    strategy = STRATEGIES[name](context())
    found = search(strategy, 10_000)
    assert len(found) == len(set(found))
    assert set(found) == set(small_space())
    assert strategy.ask() is None


def test_never_proposes_what_it_was_told(name: str) -> None:
    strategy = STRATEGIES[name](context())
    told = set(small_space().schedules[::3])
    for number, schedule in enumerate(sorted(told)):
        strategy.tell(outcome(number, schedule))
    assert set(search(strategy, 10_000)) == set(small_space()) - told


def test_depends_on_the_seed_and_what_was_told_alone(name: str) -> None:
    searches = [search(STRATEGIES[name](context(flat, seed=3)), 60) for _ in range(2)]
    assert searches[0] == searches[1]


def test_goes_on_when_everything_fails(name: str) -> None:
    everything = frozenset(small_space())
    assert len(search(STRATEGIES[name](context()), 10_000, everything)) == len(everything)


def test_names_are_listed_and_a_wrong_one_is_refused() -> None:
    assert {"exhaustive", "model", "random"} <= set(STRATEGIES.names())
    with pytest.raises(TilescaleError, match="did you mean 'model'"):
        STRATEGIES["modle"]


def test_random_depends_on_the_seed() -> None:
    orders = [search(STRATEGIES["random"](context(seed=seed)), 20) for seed in (0, 1)]
    assert orders[0] != orders[1]


def test_model_finds_the_best_sooner_than_random_although_its_prior_is_wrong_about_a_family() -> None:
    fastest = min(small_space(), key=lambda schedule: time_us(SPEC, schedule))
    place = {name: search(STRATEGIES[name](context()), 10_000).index(fastest) for name in ("model", "random")}
    assert place["model"] < 20 < place["random"]


def test_model_learns_without_a_prior() -> None:
    found = search(STRATEGIES["model"](context(flat)), 60)
    early = sum(time_us(SPEC, schedule) for schedule in found[:15]) / 15
    late = sum(time_us(SPEC, schedule) for schedule in found[-15:]) / 15
    assert late < 0.97 * early


def test_a_correction_learns_the_ratio_of_a_family() -> None:
    setting = context()
    correction = Correction(setting.prior, setting.space)
    # The prior holds fused schedules for 1.2 times slower than they are, and is right about the others.
    for number, schedule in enumerate(setting.space.schedules[::2]):
        correction.tell(outcome(number, schedule))
    ratios = correction.ratios()
    fused = [ratio for name, ratio in ratios.items() if name[2] == "fused"]
    others = [ratio for name, ratio in ratios.items() if name[2] != "fused"]
    assert max(fused) / min(others) == pytest.approx(1 / 1.2, rel=0.05)


def test_failures_push_their_neighbours_back() -> None:
    setting = context(flat)
    correction = Correction(setting.prior, setting.space)
    failed = setting.space.schedules[10]
    correction.tell(outcome(0, failed, ok=False))
    neighbours = set(setting.space.neighbours(failed))
    assert neighbours
    for schedule, score in zip(setting.prior.schedules, correction.scores_us(), strict=True):
        assert (score > 1000.0) == (schedule in neighbours)


def test_optuna_is_shown_a_few_hundred_trials_at_most_and_stays_in_the_restriction() -> None:
    setting = context(flat)
    proposer = Proposer(setting)
    schedules = setting.space.schedules
    for number in range(12):
        proposer.tell(outcome(number, schedules[number * 5 % len(schedules)]))
    for _ in range(20):
        proposed = proposer.ask()
        assert proposed.transport in ("peer_copy", "copy_engine")
        assert proposed.num_stages in (0, 3, 4)
        assert proposed.chunk_rows in (0, 128, 256, 512)
    for number in range(SHOWN + 5):
        proposer.tell(outcome(number, schedules[number % len(schedules)]))
    assert proposer.spent
    assert len(proposer._study.trials) == SHOWN + 20


def test_families_have_what_a_wrong_prior_is_wrong_about() -> None:
    assert len({family(schedule) for schedule in small_space()}) == 10
