"""tilescale.runtime.fake: given times and faults, in real processes."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from process_support import by_chunk, end_and_list_orphans, make_schedules, run_script, running
from support import ag_gemm

from tilescale import canon
from tilescale.errors import RunnerError
from tilescale.runtime.fake import FAULTS, FakeRunner, Fault
from tilescale.runtime.measure import Measurement
from tilescale.runtime.runner import Runner

SPEC = ag_gemm(ranks=4)


def measure_all(faults: dict[str, Fault | str] | None = None, count: int = 10, **options: Any) -> list[Measurement]:
    with FakeRunner(by_chunk, noise=0.05, seed=3, faults=faults, **options) as runner:
        return runner.measure(SPEC, make_schedules(count))


def test_is_a_runner() -> None:
    with FakeRunner(by_chunk) as runner:
        assert isinstance(runner, Runner)
        assert {found.source for found in runner.measure(SPEC, make_schedules(2))} == {runner.source}


def test_c2_failures_are_classified_and_good_timings_are_those_of_a_clean_run() -> None:
    schedules = make_schedules(7)
    kinds = [Fault("compile_crash"), Fault("segv", rank=1, run=6), Fault("launch_error"), Fault("exception", rank=3)]
    faults: dict[str, Fault | str] = {s.digest: f for s, f in zip(schedules, kinds, strict=False)}
    found = measure_all(faults, count=7, samples=8)
    clean = measure_all(None, count=7, samples=8)
    statuses = ["compile_error", "launch_error", "launch_error", "launch_error", "ok", "ok", "ok"]
    assert [m.status for m in found] == statuses
    assert found[4:] == clean[4:]
    for text, failed in zip(("SIGABRT", "SIGSEGV", "too much shared memory", "ValueError"), found, strict=False):
        assert text in failed.message
    assert min((m for m in found if m.ok), key=lambda m: m.value_us).schedule == schedules[4]


def test_c3_compiles_that_sleep_for_ever_cost_their_limit_and_leave_no_process() -> None:
    schedules = make_schedules(10)
    faults: dict[str, Fault | str] = {schedules[number].digest: "compile_hang" for number in (0, 4, 9)}
    with FakeRunner(by_chunk, faults=faults, workers=2, compile_limit_s=1.0) as runner:
        found = runner.measure(SPEC, schedules)
        pids = runner.pids
    assert [number for number, m in enumerate(found) if m.status == "compile_timeout"] == [0, 4, 9]
    assert "1 s" in found[0].message
    assert all(m.ok for number, m in enumerate(found) if number not in (0, 4, 9))
    assert len(pids) >= 4  # the ranks, at least
    assert running(pids) == []


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_every_fault_is_reported_as_declared_with_and_without_processes(kind: str) -> None:
    schedules = make_schedules(2)
    faults: dict[str, Fault | str] = {schedules[0].digest: Fault(kind, rank=1, run=2, seconds=0.1)}
    real = measure_all(faults, count=2, limit_s=1.5, compile_limit_s=1.5)
    simulated = measure_all(faults, count=2, processes=False)
    assert real[0].status == simulated[0].status == FAULTS[kind]
    assert bool(real[0].message) is bool(simulated[0].message) is (FAULTS[kind] != "ok")
    assert real[0].samples_us == simulated[0].samples_us
    assert real[1] == simulated[1]
    assert real[1].ok


@pytest.mark.parametrize("processes", [True, False])
def test_too_slow_is_a_timeout(processes: bool) -> None:
    runner_faults: dict[str, Fault | str] = {make_schedules(1)[0].digest: Fault("slow", seconds=5.0)}
    (found,) = measure_all(runner_faults, count=1, limit_s=0.3, processes=processes)
    assert found.status == "timeout"


def test_samples_depend_on_seed_schedule_and_rank_alone() -> None:
    schedules = make_schedules(6)
    with FakeRunner(by_chunk, noise=0.05, seed=3) as runner:
        batch = runner.measure(SPEC, schedules)
        single = [runner.measure(SPEC, [schedule])[0] for schedule in reversed(schedules)]
        other_world = runner.measure(ag_gemm(ranks=2), schedules)
    assert batch == single[::-1]
    assert [m.samples_us[:2] for m in batch] == [m.samples_us for m in other_world]
    with FakeRunner(by_chunk, noise=0.05, seed=4, processes=False) as runner:
        assert all(a.samples_us != b.samples_us for a, b in zip(batch, runner.measure(SPEC, schedules), strict=True))
    for m in batch:
        assert len(set(m.samples_us)) == 4  # ranks differ
        assert len(set(m.samples_us[0])) == 5


C8 = """
import json
from process_support import by_chunk, make_schedules
from support import ag_gemm
from tilescale import canon
from tilescale.runtime.fake import FakeRunner
schedules = make_schedules(8)
faults = {schedules[2].digest: "compile_error", schedules[5].digest: "exception"}
with FakeRunner(by_chunk, noise=0.1, seed=11, workers=WORKERS, faults=faults) as r:
    print(json.dumps([canon.encode(m) for m in r.measure(ag_gemm(), schedules)]))
"""


def test_c8_same_seed_same_measurements_for_any_hash_seed_and_number_of_workers() -> None:
    runs = {
        run_script(C8.replace("WORKERS", workers), {"PYTHONHASHSEED": seed})
        for seed, workers in (("0", "1"), ("1", "8"), ("77", "8"))
    }
    assert len(runs) == 1
    (rows,) = runs
    assert [row["status"] for row in json.loads(rows)].count("ok") == 6
    assert dict(map(tuple, json.loads(rows)[0]["environment"]))["seed"] == "11"


def test_without_noise_the_value_is_the_given_time() -> None:
    schedules = make_schedules(3)
    with FakeRunner(by_chunk, processes=False) as runner:
        assert [m.value_us for m in runner.measure(SPEC, schedules)] == [101.0, 102.0, 103.0]


def test_timers_are_functions_import_paths_or_times_by_digest() -> None:
    schedules = make_schedules(2)
    with FakeRunner("process_support:by_chunk", processes=False) as runner:
        assert [m.value_us for m in runner.measure(SPEC, schedules)] == [101.0, 102.0]
    with FakeRunner({schedules[0].digest: 7}, processes=False) as runner:
        found = runner.measure(SPEC, schedules)
    assert found[0].value_us == 7.0
    assert found[1].status == "illegal"
    for wrong in ("process_support:nothing", "no_such_module:f", ":"):
        with pytest.raises(RunnerError, match="module:function"):
            FakeRunner(wrong)


def test_counts_what_it_measures_failures_included() -> None:
    schedules = make_schedules(3)
    with FakeRunner(by_chunk, faults=lambda s: "exit" if s == schedules[1] else None, processes=False) as runner:
        runner.measure(SPEC, schedules)
        runner.measure(SPEC, schedules[:1])
        assert runner.measured == 4
        assert runner.digests == [s.digest for s in (*schedules, schedules[0])]


def test_restarts_are_counted_over_worlds() -> None:
    schedules = make_schedules(2)
    with FakeRunner(by_chunk, faults={schedules[0].digest: "exit"}) as runner:
        runner.measure(ag_gemm(ranks=2), schedules)
        runner.measure(ag_gemm(ranks=4), schedules)
        assert runner.restarts == 2
        pids = runner.pids
    assert running(pids) == []


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(RunnerError, match=r"known kind.*did you mean 'segv'"):
        Fault("segw")
    with pytest.raises(RunnerError, match="source"):
        FakeRunner(by_chunk, source="fake")
    with pytest.raises(RunnerError, match="at least one sample"):
        FakeRunner(by_chunk, samples=0)
    runner = FakeRunner(by_chunk)
    runner.close()
    runner.close()
    with pytest.raises(RunnerError, match="closed"):
        runner.measure(SPEC, make_schedules(1))


def test_measurements_survive_canonical_json() -> None:
    for found in measure_all({make_schedules(1)[0].digest: "exception"}, count=2):
        assert canon.loads(Measurement, canon.dumps(found)) == found


HANGING = """
import threading, time
from process_support import by_chunk, make_schedules
from support import ag_gemm
from tilescale.runtime.fake import FakeRunner
schedules = make_schedules(2)
runner = FakeRunner(by_chunk, faults={schedules[1].digest: "KIND"}, limit_s=1000, compile_limit_s=1000)
runner.measure(ag_gemm(), schedules[:1])
def tell():
    time.sleep(0.5)
    print(*runner.pids, flush=True)
threading.Thread(target=tell).start()
with runner:
    runner.measure(ag_gemm(), schedules)
"""


@pytest.mark.timeout(120)  # the limit of the hanging candidate is longer
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("kind", ["hang", "compile_hang"])
def test_nothing_outlives_a_runner_that_is_ended(kind: str, number: signal.Signals) -> None:
    left, code = end_and_list_orphans(HANGING.replace("KIND", kind), number)
    assert left == []
    assert code == -number
