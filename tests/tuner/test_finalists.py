"""tilescale.tuner.finalists: what a search could not tell apart races until it differs, or is a tie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner_support import SPEC, small_space

import tilescale as ts
from tilescale.errors import RunnerError
from tilescale.runtime.fake import FakeRunner
from tilescale.runtime.measure import Samples
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.tuner.finalists import FINALISTS, MOST, ROUNDS, settle
from tilescale.tuner.progress import Progress
from tilescale.tuner.ties import Verdict, complexity
from tilescale.tuner.trial import Trial

SCHEDULES = sorted(small_space(), key=lambda schedule: complexity(SPEC, schedule))


def trial(place: int, value_us: float) -> Trial:
    """Of the schedule at `place` in the order of complexity."""
    return Trial(place, SCHEDULES[place], "ok", "measured", "evaluated", place, value_us)


def verdict(*ties: Trial) -> Verdict:
    """A search that takes the simplest."""
    winner = min(ties, key=lambda each: complexity(SPEC, each.schedule))
    return Verdict(winner, tuple(each for each in ties if each is not winner), "the simplest")


class Course:
    """Two ranks, the second the slower; the middle of each round by the trial's place, with `spread` around it."""

    def __init__(self, middle: Mapping[int, float], spread: float = 0.1) -> None:
        self.middle = {SCHEDULES[place].digest: us for place, us in middle.items()}
        self.spread = spread
        self.raced: list[int] = []

    def __call__(self, spec: Spec, schedules: Sequence[Schedule], names: Sequence[str], rounds: int
                 ) -> list[dict[str, Samples]]:
        assert (spec, tuple(names), rounds) == (SPEC, (), ROUNDS)
        self.raced.append(len(schedules))
        return [{s.digest: self._samples(self.middle[s.digest]) for s in schedules} for _ in range(rounds)]

    def _samples(self, middle: float) -> Samples:
        calls = tuple(middle + self.spread * step for step in (-2.0, -1.0, 0.0, 1.0, 2.0))
        return tuple(call - 1.0 for call in calls), calls


def test_one_that_slows_down_in_a_race_loses_it() -> None:
    simple, hot = trial(1, 100.0), trial(4, 100.1)
    found = settle(SPEC, verdict(simple, hot), course := Course({1: 120.0, 4: 110.0}))
    assert (found.winner, found.ties) == (hot, ())
    assert found.reason == "the fastest; no other interval overlaps, in a race of 2"
    assert found.winner.value_us == 100.1  # as the search, and the database, have it
    assert course.raced == [2]


def test_a_tie_in_a_race_is_a_tie_and_the_simpler_is_taken() -> None:
    simple, other = trial(1, 100.0), trial(4, 99.9)
    seen: list[int] = []
    found = settle(SPEC, verdict(simple, other), course := Course({1: 100.0, 4: 100.0}), seen.append)
    assert (found.winner, found.ties) == (simple, (other,))
    assert course.raced == [2] * (MOST // ROUNDS)
    assert seen == list(range(ROUNDS, MOST + 1, ROUNDS))


def test_who_is_behind_leaves_the_race() -> None:
    trials = [trial(place, 100.0 + place) for place in range(3)]
    found = settle(SPEC, verdict(*trials), course := Course({0: 130.0, 1: 100.0, 2: 100.0}))
    assert (found.winner, found.ties) == (trials[1], (trials[2],))
    assert course.raced == [3, *[2] * (MOST // ROUNDS - 1)]


def test_the_fastest_and_the_simplest_race_and_other_ties_stay_ties() -> None:
    trials = [trial(place, 200.0 - place) for place in range(8)]  # the simplest is the slowest of the search
    times = {place: 100.0 + place for place in range(8)}
    found = settle(SPEC, verdict(*trials), course := Course(times))
    assert course.raced == [FINALISTS]
    assert found.winner is trials[0]
    assert set(found.ties) == set(trials[1:5])


def test_without_ties_nothing_races_and_a_failure_leaves_the_verdict() -> None:
    def failing(*given: object) -> list[dict[str, Samples]]:
        raise RunnerError("a finalist runs", "illegal address")

    alone, two = verdict(trial(1, 100.0)), verdict(trial(1, 100.0), trial(2, 100.0))
    assert settle(SPEC, alone, failing) is alone
    assert settle(SPEC, two, failing) is two


class Racing(FakeRunner):
    """In a search all take as long; in a race the one of `digest` is the fastest. `ending`: what the race raises."""

    digest = ""
    ending: BaseException | None = None

    def race(self, spec: Spec, schedules: Sequence[Schedule], names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
        if self.ending is not None:
            raise self.ending
        self.digest = max(schedule.digest for schedule in schedules)
        return [{s.digest: ((90.0 if s.digest == self.digest else 100.0,),) * spec.world for s in schedules}] * rounds


def test_tune_takes_the_winner_of_the_race_and_says_so() -> None:
    runner, said = Racing(lambda spec, schedule: 100.0, noise=0.0, processes=False), list[Progress]()
    result = ts.tune(SPEC, 12, runner=runner, space=small_space(), progress=said.append)
    assert result.best.digest == runner.digest
    assert result.best_us == 100.0
    assert result.reason.endswith(f"in a race of {FINALISTS}")
    assert [(each.done, each.total) for each in said if each.stage == "race"] == [(ROUNDS, MOST)]
    assert result.best not in result.ties


def test_a_race_that_is_interrupted_leaves_what_the_search_found() -> None:
    runner = Racing(lambda spec, schedule: 100.0, noise=0.0, processes=False)
    runner.ending = KeyboardInterrupt()
    result = ts.tune(SPEC, 12, runner=runner, space=small_space())
    assert result.status == "interrupted"
    assert result.reason.startswith("the simplest of 12")


def test_the_command_line_shows_the_race() -> None:
    from tilescale.commands.tune import _reporter

    class Bar:
        said = ""

        def update(self, what: str, done: int, total: int, note: str = "") -> None:
            self.said = f"{what} {done}/{total}"

    bar: Any = Bar()
    _reporter(bar)(Progress("up", "race", 6, 12))
    assert bar.said == "racing the finalists of up 6/12"
