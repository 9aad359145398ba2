"""tilescale.tuner.ties: intervals, and the simpler of those that overlap."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest
from tuner_support import SPEC, small_space

from tilescale.runtime.measure import Samples
from tilescale.tuner.ties import complexity, decide, interval_us
from tilescale.tuner.trial import Trial

SCHEDULES = sorted(small_space(), key=lambda schedule: complexity(SPEC, schedule))


def trial(number: int, place: int, samples: Samples) -> Trial:
    """Of the schedule at `place` in the order of complexity."""
    value_us = statistics.median(max(call) for call in zip(*samples, strict=True))
    return Trial(number, SCHEDULES[place], "ok", "predicted", "measured", number, value_us, samples_us=samples)


def samples_of(one: Trial) -> Samples:
    return one.samples_us


def around(middle: float, spread: float) -> Samples:
    """Five calls of two ranks, the second always the slower."""
    calls = tuple(middle + spread * step for step in (-2.0, -1.0, 0.0, 1.0, 2.0))
    return tuple(call - 1.0 for call in calls), calls


def test_an_interval_is_of_the_slowest_rank_and_shrinks_with_samples() -> None:
    low, high = interval_us(around(100.0, 1.0))
    assert low + high == pytest.approx(200.0)
    assert high - low == pytest.approx(2 * 1.96 * 1.2533 * 1.4826 * 1.0 / 5**0.5, rel=1e-3)
    many = tuple(rank * 4 for rank in around(100.0, 1.0))
    assert interval_us(many)[1] - interval_us(many)[0] == pytest.approx((high - low) / 2)
    assert interval_us(((7.0,), (8.0,))) == (8.0, 8.0)


def test_an_outlier_moves_an_interval_little() -> None:
    rank = tuple(random.Random(0).gauss(100.0, 1.0) for _ in range(41))
    low, high = interval_us((rank,))
    far = interval_us(((*rank[:-1], 1e6),))
    assert far[0] == pytest.approx(low, abs=0.3)
    assert far[1] == pytest.approx(high, abs=0.3)


def test_among_ties_the_simpler_is_taken_and_the_others_are_kept() -> None:
    fast, simple = trial(0, 5, around(100.0, 1.0)), trial(1, 2, around(100.9, 1.0))
    verdict = decide(SPEC, [fast, simple], samples_of)
    assert verdict is not None
    assert (verdict.winner, verdict.ties) == (simple, (fast,))
    assert verdict.reason == "the simplest of 2 whose intervals overlap, 0.90% above the fastest"


def test_a_slower_simpler_schedule_loses_where_intervals_are_apart() -> None:
    fast, simple = trial(0, 5, around(100.0, 0.1)), trial(1, 2, around(101.0, 0.1))
    verdict = decide(SPEC, [fast, simple], samples_of)
    assert verdict is not None
    assert (verdict.winner, verdict.ties) == (fast, ())
    assert verdict.reason == "the fastest; no other interval overlaps"


def test_failures_never_win_and_samples_of_the_far_are_not_asked_for() -> None:
    good = trial(0, 5, around(100.0, 1.0))
    bad = replace(trial(1, 0, around(1.0, 0.1)), status="wrong_result", value_us=None)
    far = trial(2, 1, around(1000.0, 1.0))
    asked: list[Trial] = []

    def asking(one: Trial) -> Samples:
        asked.append(one)
        return one.samples_us

    verdict = decide(SPEC, [bad, good, far], asking)
    assert verdict is not None
    assert verdict.winner == good
    assert set(asked) == {good}
    assert decide(SPEC, [bad], samples_of) is None


def test_the_order_of_complexity_is_total_and_puts_one_launch_before_several() -> None:
    orders = [complexity(SPEC, schedule) for schedule in SCHEDULES]
    assert len(set(orders)) == len(orders)
    by_blocks = [schedule for schedule in SCHEDULES if schedule.transport == "peer_copy"]
    assert by_blocks[0].overlap == "fused"  # one launch: the unfused and chunked ones have several
    fused = [schedule.chunk_rows for schedule in by_blocks if schedule.overlap == "fused" and schedule.depth == 1]
    assert fused == sorted(fused, reverse=True)  # fewer chunks first
