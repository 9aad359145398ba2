"""Searches with a runner whose ranks and compilers are real processes, and whose candidates fail in real ways."""

from __future__ import annotations

import time

from process_support import wait_until_gone
from tuner_support import SMALL, SPEC, guess, small_space, time_us

from tilescale.runtime.fake import FakeRunner, Fault
from tilescale.tuner.tune import tune


def test_b2_a_hang_of_one_rank_is_a_failure_of_all_and_the_search_goes_on() -> None:
    fastest_first = sorted(small_space(), key=lambda schedule: time_us(SPEC, schedule))
    hanging = fastest_first[0].digest
    with FakeRunner(time_us, faults={hanging: Fault("hang", rank=2, run=1)}, samples=3, limit_s=1.0) as runner:
        result = tune(SPEC, trials=20, runner=runner, space=SMALL, predictor=guess)
        pids = runner.pids
        assert len(pids) == SPEC.world
    assert wait_until_gone(pids) == []
    row = result.trials.set_index("schedule").loc[hanging]
    assert row.status == "timeout"
    assert "2" in row.message
    assert result.failures == {"timeout": 1}
    after = result.trials[result.trials.number > row.number]
    assert len(after) > 0
    assert (after.status == "ok").all()


def test_c3_compiles_that_never_end_cost_their_limit_alone() -> None:
    hanging = [schedule.digest for schedule in sorted(small_space(), key=lambda s: time_us(SPEC, s))[:3]]
    started = time.monotonic()
    with FakeRunner(time_us, faults=dict.fromkeys(hanging, "compile_hang"), samples=2, compile_limit_s=0.5) as runner:
        result = tune(SPEC, trials=200, runner=runner, space=SMALL, predictor=guess)
        pids = runner.pids
    assert wait_until_gone(pids) == []
    assert result.failures == {"compile_timeout": 3}
    assert set(result.trials[result.trials.status == "compile_timeout"].schedule) == set(hanging)
    # A bound on hanging, not a speed: three limits of half a second, not three times for ever.
    assert time.monotonic() - started < 60
