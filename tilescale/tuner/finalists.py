"""The finalists of a search race: interleaved, round by round, until they differ or are declared a tie.

A search measures one candidate after another, each for a moment. A GPU that works without a pause reaches its power cap and
slows down, one schedule more than another; a race lasts long enough to show that, and what drifts meanwhile drifts for all.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from tilescale.errors import TilescaleError
from tilescale.runtime.measure import Samples
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.tuner.ties import Verdict, decide
from tilescale.tuner.trial import Trial

# `race(spec, schedules, names, rounds)` of a runner: of each round, the samples of every rank by the schedule's digest.
Race = Callable[[Spec, Sequence[Schedule], Sequence[str], int], Sequence[Mapping[str, Samples]]]

FINALISTS = 4  # the fastest that could not be told apart, and the simplest of all, which a search would take
ROUNDS = 6     # between two looks at who is still in the race
MOST = 12      # rounds of a race


def settle(spec: Spec, verdict: Verdict, race: Race, report: Callable[[int], None] = lambda rounds: None) -> Verdict:
    """The verdict of a race between the winner of a search and those that could not be told from it, or the one that is
    given where there is nothing to settle, or a finalist fails in the race. Ties that do not race stay ties.

    `report`: called with the number of rounds that are over. Times of the trials stay those of the search.
    """
    racing = _finalists(verdict)
    if len(racing) == 1:
        return verdict
    how = f"in a race of {len(racing)}"
    left = [trial for trial in verdict.ties if trial not in racing]
    samples: dict[str, Samples] = {}
    rounds, found = 0, verdict
    while len(racing) > 1 and rounds < MOST:
        try:
            turns = race(spec, [trial.schedule for trial in racing], (), ROUNDS)
        except TilescaleError:
            return found
        rounds += ROUNDS
        report(rounds)
        for trial in racing:
            samples[trial.schedule.digest] = _joined(
                samples.get(trial.schedule.digest, ()), *(turn[trial.schedule.digest] for turn in turns))
        settled = decide(spec, [_in_race(trial, samples) for trial in racing], lambda trial: samples[trial.schedule.digest])
        if settled is None:
            return found
        known = {trial.schedule: trial for trial in racing}
        racing = [known[trial.schedule] for trial in (settled.winner, *settled.ties)]
        found = Verdict(racing[0], (*racing[1:], *left), f"{settled.reason}, {how}")
    return found


def _finalists(verdict: Verdict) -> list[Trial]:
    """The fastest first."""
    fastest = sorted(verdict.ties, key=lambda trial: (trial.time_us, trial.number))[: FINALISTS - 1]
    return sorted([verdict.winner, *fastest], key=lambda trial: (trial.time_us, trial.number))


def _in_race(trial: Trial, samples: Mapping[str, Samples]) -> Trial:
    calls = zip(*samples[trial.schedule.digest], strict=True)
    return replace(trial, value_us=statistics.median(map(max, calls)))


def _joined(*parts: Samples) -> Samples:
    """Samples of several turns as those of one, rank by rank."""
    return tuple(tuple(chain(*ranks)) for ranks in zip(*filter(None, parts), strict=True))
