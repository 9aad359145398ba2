"""tilescale.runtime.group: one decision for all ranks, and no rank left behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from process_support import SEARCH_PATH, end_and_list_orphans, run_script, running, wait_until_gone

from tilescale.errors import RunnerError
from tilescale.runtime.fake import FAULTS
from tilescale.runtime.fake_rank import WORKER
from tilescale.runtime.group import Group, Outcome

WORLD = 4
HEAVY = ("sqlalchemy", "optuna", "pandas", "sklearn", "torch", "cuda", "numpy", "tilescale.tuner", "perfdb")


@pytest.fixture
def group() -> Iterator[Group]:
    with Group(WORLD, WORKER) as group:
        yield group


@pytest.fixture
def crew() -> Iterator[Group]:
    """Ranks with the worker of rank_support."""
    variables = {"PYTHONPATH": SEARCH_PATH}
    with Group(WORLD, "rank_support:Worker", settings={"colour": "green"}, environment=variables) as group:
        yield group


def fake_job(name: str, fault: str = "", rank: int = 2, run: int = 1, seconds: float = 0.0) -> dict[str, Any]:
    found = {"kind": fault, "rank": rank, "run": run, "seconds": seconds} if fault else None
    return {"digest": name, "time_us": 10.0, "noise": 0.1, "seed": 0, "samples": 3, "fault": found}


def run_fake(group: Group, name: str, fault: str = "", limit_s: float = 10.0) -> Outcome:
    return group.run(fake_job(name, fault), name, limit_s=limit_s)


def do(group: Group, what: str, rank: int = 2, blob: bytes = b"", limit_s: float = 10.0) -> Outcome:
    return group.run({"do": what, "rank": rank, "digest": "d"}, "d", blob=blob, limit_s=limit_s)


def assert_all_recorded(group: Group, *statuses: str) -> None:
    """Every rank is at the same step and has recorded these outcomes."""
    for rank, state in enumerate(group.states()):
        assert (state.rank, state.step) == (rank, len(statuses))
        assert tuple(status for _, _, status in state.history) == statuses
        assert [step for step, _, _ in state.history] == list(range(len(statuses)))


def test_b2_a_hang_on_one_rank_is_a_failure_of_all_and_the_group_goes_on(group: Group) -> None:
    assert run_fake(group, "a").ok
    before = group.pids
    outcome = run_fake(group, "b", "hang", limit_s=1.0)
    assert outcome.status == "timeout"
    assert outcome.reports == ()
    assert "rank 2" in outcome.message
    assert not any(f"rank {rank}" in outcome.message for rank in (0, 1, 3))
    assert wait_until_gone(before) == []
    assert_all_recorded(group, "ok", "timeout")
    after = run_fake(group, "c")  # its runs start behind barriers
    assert after.ok
    assert after.step == 2
    assert_all_recorded(group, "ok", "timeout", "ok")
    assert group.restarts == 1


@pytest.mark.parametrize("fault", ["exit", "segv", "garble", "disagree", "exception", "launch_error", "wrong_result"])
def test_b2_every_kind_of_failure_is_one_of_all_ranks(group: Group, fault: str) -> None:
    outcome = run_fake(group, "a", fault)
    assert outcome.status == FAULTS[fault]
    assert outcome.message.startswith("rank 2 ")
    assert outcome.samples_us == ()
    assert_all_recorded(group, FAULTS[fault])
    assert run_fake(group, "b").ok
    assert_all_recorded(group, FAULTS[fault], "ok")


def test_what_happened_to_a_rank_is_told(group: Group) -> None:
    assert "code 13: fake: leaving" in run_fake(group, "a", "exit").message
    assert "SIGSEGV" in run_fake(group, "b", "segv").message
    assert "ValueError: fake: a Python exception" in run_fake(group, "c", "exception").message
    assert "agreed on step 3 digest d" in run_fake(group, "d", "disagree").message


@pytest.mark.parametrize(("fault", "kept"), [("exception", True), ("launch_error", True), ("wrong_result", False)])
def test_ranks_are_kept_unless_their_state_is_in_doubt(group: Group, fault: str, kept: bool) -> None:
    run_fake(group, "a")
    before = group.pids
    run_fake(group, "b", fault)
    run_fake(group, "c")
    assert (group.pids == before) is kept
    assert group.restarts == (0 if kept else 1)


def test_a_rank_that_dies_between_jobs_costs_no_job(group: Group) -> None:
    run_fake(group, "a")
    os.kill(group.pids[1], signal.SIGKILL)
    wait_until_gone(group.pids[1:2])
    assert run_fake(group, "b").ok
    assert_all_recorded(group, "ok", "ok")


def test_samples_are_kept_by_rank(crew: Group) -> None:
    outcome = do(crew, "barrier")
    assert outcome.samples_us == ((1.0,), (2.0,), (3.0,), (4.0,))
    assert {report.message for report in outcome.reports} == {"{'colour': 'green'}"}


def test_exchange_gives_every_rank_the_values_and_blobs_of_all(crew: Group) -> None:
    outcome = do(crew, "exchange", blob=b"!")
    values = tuple({"rank": rank} for rank in range(WORLD))
    blobs = tuple(bytes([rank]) * rank + b"!" for rank in range(WORLD))
    expected = f"{values} {blobs} {(WORLD,) * WORLD}"
    assert [report.message for report in outcome.reports] == [expected] * WORLD


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("leave", "have left without"),
        ("meet elsewhere", "elsewhere"),
        ("unknown status", "splendid"),
        ("fail to prepare", "rank 2 RuntimeError: no memory"),
    ],
)
def test_ranks_that_disagree_fail_at_once(crew: Group, what: str, says: str) -> None:
    outcome = do(crew, what, limit_s=60.0)
    assert outcome.status == "launch_error"
    assert says in outcome.message
    assert do(crew, "barrier").ok


def test_a_rank_may_ask_for_new_ranks(crew: Group) -> None:
    assert do(crew, "condemn").ok
    assert crew.pids == ()
    assert do(crew, "barrier").ok


def test_output_of_libraries_does_not_disturb_the_messages(crew: Group) -> None:
    assert do(crew, "print").ok


def test_ranks_import_nothing_heavy(crew: Group) -> None:
    for report in do(crew, "modules").reports:
        loaded = report.message.split(",")
        assert "tilescale.runtime.rank" in loaded
        assert [name for name in loaded if name.split(".")[0] in HEAVY or name in HEAVY] == []


def test_the_fake_rank_imports_nothing_heavy() -> None:
    loaded = run_script("import sys, tilescale.runtime.fake_rank; print(*sys.modules)").split()
    assert [name for name in loaded if name.split(".")[0] in HEAVY] == []


def test_a_worker_that_cannot_be_made_is_an_error_with_its_reason() -> None:
    with Group(2, "tilescale.runtime.fake_rank:Nobody") as group, pytest.raises(RunnerError) as error:
        group.run({}, "d", limit_s=1.0)
    assert "rank 0" in str(error.value)
    assert "has no attribute 'Nobody'" in str(error.value)
    assert group.pids == ()


def test_a_closed_group_has_no_ranks_and_takes_no_jobs(group: Group) -> None:
    run_fake(group, "a")
    pids = group.pids
    group.close()
    assert running(pids) == []
    with pytest.raises(RunnerError, match="closed"):
        run_fake(group, "b")
    group.close()


def test_an_exception_leaves_no_rank(group: Group) -> None:
    run_fake(group, "a")
    pids = group.pids
    with pytest.raises(TypeError):
        group.run({"digest": object()}, "b", limit_s=1.0)
    assert running(pids) == []
    assert run_fake(group, "c").ok


def test_ranks_outlive_the_thread_that_started_them(group: Group) -> None:
    # The parent-death signal is sent when the starting thread ends, unless workers are started with care.
    starter = threading.Thread(target=run_fake, args=(group, "a"))
    starter.start()
    starter.join()
    before = group.pids
    assert run_fake(group, "b").ok
    assert group.pids == before


HANGING = """
import threading, time
from tilescale.runtime.fake_rank import WORKER
from tilescale.runtime.group import Group
group = Group(3, WORKER)
job = {"digest": "a", "time_us": 1.0, "noise": 0.0, "seed": 0, "samples": 1, "fault": None}
group.run(job, "a", limit_s=10)
def tell():
    time.sleep(0.3)
    print(*group.pids, flush=True)
threading.Thread(target=tell).start()
with group:
    group.run({**job, "fault": {"kind": "hang", "rank": 1, "run": 0, "seconds": 0}}, "a", limit_s=1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_rank_outlives_its_parent(number: signal.Signals) -> None:
    left, code = end_and_list_orphans(HANGING, number)
    assert left == []
    assert code == -number
