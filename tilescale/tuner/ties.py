"""Which of the fastest cannot be told apart, and which of those is taken."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilescale.runtime.measure import Samples
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.tuner.trial import Trial, fastest

# Half width of an interval in standard errors: 95 % for normal noise.
ERRORS = 1.96
# The standard error of a median is sqrt(pi / 2) times that of a mean; the median absolute deviation times 1.4826
# estimates the standard deviation, whatever the outliers.
MEDIAN_ERROR = math.sqrt(math.pi / 2) * 1.4826
# No interval reaches further than this above the fastest: samples of slower trials are not looked at.
FINALIST_FACTOR = 1.25


@dataclass(frozen=True)
class Verdict:
    """`winner`, and the trials (without it) that cannot be told apart from the fastest, fastest first."""

    winner: Trial
    ties: tuple[Trial, ...]
    reason: str


def interval_us(samples: Samples) -> tuple[float, float]:
    """The interval of a trial's time, microseconds: the median over calls of the slowest rank, and its robust error.

    One sample has no spread to judge by: its interval is a point.
    """
    calls = [max(call) for call in zip(*samples, strict=True)]
    middle = statistics.median(calls)
    spread = statistics.median(abs(call - middle) for call in calls)
    error = ERRORS * MEDIAN_ERROR * spread / math.sqrt(len(calls))
    return middle - error, middle + error


def complexity(spec: Spec, schedule: Schedule) -> tuple[int, int, str]:
    """A total order of schedules, the simpler first: fewer launches a rank, fewer steps a rank, then the digest."""
    plan = lower(spec, schedule)
    launches = plan.ranks[0]
    return len(launches), sum(1 for launch in launches for _ in launch.steps), schedule.digest


def decide(spec: Spec, trials: Sequence[Trial], samples_of: Callable[[Trial], Samples]) -> Verdict | None:
    """The winner: the simplest of those whose intervals overlap that of the fastest. None without a good trial."""
    first = fastest(list(trials))
    if first is None:
        return None
    finalists = {first.schedule: first}
    for trial in sorted(trials, key=lambda t: (t.time_us, t.number)):
        if trial.ok and trial.time_us <= FINALIST_FACTOR * first.time_us:
            finalists.setdefault(trial.schedule, trial)
    high = _interval(first, samples_of)[1]
    tied = [trial for trial in finalists.values() if trial is first or _interval(trial, samples_of)[0] <= high]
    winner = min(tied, key=lambda trial: complexity(spec, trial.schedule))
    ties = tuple(trial for trial in tied if trial is not winner)
    return Verdict(winner, ties, _reason(first, winner, len(tied)))


def _interval(trial: Trial, samples_of: Callable[[Trial], Samples]) -> tuple[float, float]:
    samples = samples_of(trial)
    return interval_us(samples) if samples else (trial.time_us, trial.time_us)


def _reason(first: Trial, winner: Trial, tied: int) -> str:
    if tied == 1:
        return "the fastest; no other interval overlaps"
    which = "which is the fastest" if winner is first else f"{winner.time_us / first.time_us - 1:.2%} above the fastest"
    return f"the simplest of {tied} whose intervals overlap, {which}"
