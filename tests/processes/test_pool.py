"""tilescale.processes: children and pools, with the fake runner's compiler as the worker."""

from __future__ import annotations

import os
import select
import signal
import threading
from pathlib import Path

import pytest
from process_support import running, wait_until_gone

from tilescale.errors import RunnerError
from tilescale.processes.child import Child, WorkerLost, kill_all, stop_all, wait_ready
from tilescale.processes.frames import Message
from tilescale.processes.pool import Job, Lost, Pool

WORKER = "tilescale.runtime.fake_compiler"


def job(fault: str = "") -> Job:
    return Job({"kind": "compile", "fault": fault})


def test_answers_come_in_the_order_of_jobs_and_are_told_as_they_come() -> None:
    told: dict[int, Message | Lost] = {}
    with Pool(WORKER, 2, limit_s=1.0) as pool:
        jobs = [job(fault) for fault in ("compile_hang", "", "compile_error", "compile_crash", "")]
        answers = pool.run(jobs, told.__setitem__)
        pids = pool.pids
        assert 1 <= len(pids) <= 2
    first, second, third, fourth, fifth = answers
    assert isinstance(first, Lost)
    assert first.timed_out
    assert isinstance(second, Message)
    assert second.header["error"] == ""
    assert isinstance(third, Message)
    assert third.header["error"]
    assert isinstance(fourth, Lost)
    assert not fourth.timed_out
    assert "SIGABRT" in fourth.message
    assert isinstance(fifth, Message)
    assert [told[number] for number in range(5)] == answers
    assert next(iter(told)) != 0  # the hanging one was not waited for
    assert running(pids) == []


def test_a_worker_heeds_sigint_where_its_parent_ignores_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = Child(WORKER)
        try:
            assert wait_ready([child], 30.0) == [child]
            assert [message.kind for message in child.receive()] == ["hello"]
            status = Path(f"/proc/{child.pid}/status").read_text()
        finally:
            kill_all([child])
    finally:
        signal.signal(signal.SIGINT, before)
    ignored = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn"))
    assert not ignored >> (signal.SIGINT - 1) & 1


def test_workers_are_kept_between_calls_and_no_more_are_made_than_jobs() -> None:
    with Pool(WORKER, 8, limit_s=10) as pool:
        assert pool.run([]) == []
        assert pool.pids == ()
        pool.run([job()])
        pids = pool.pids
        assert len(pids) == 1
        pool.run([job()])
        assert pool.pids == pids


def test_an_exception_of_the_listener_leaves_no_process() -> None:
    with Pool(WORKER, 1, limit_s=10) as pool:
        pool.run([job()])
        pids = pool.pids

        def fail(index: int, answer: Message | Lost) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pool.run([job(), job()], fail)
        assert running(pids) == []
        assert len(pool.run([job()])) == 1


def test_a_worker_that_cannot_start_is_an_error_with_its_reason() -> None:
    with Pool("tilescale.no_such_module", 2, limit_s=1) as pool:
        with pytest.raises(RunnerError, match="no_such_module"):
            pool.run([job()])
        assert pool.pids == ()


@pytest.mark.parametrize(("workers", "limit_s"), [(0, 1.0), (1, 0.0)])
def test_wrong_arguments_are_refused(workers: int, limit_s: float) -> None:
    with pytest.raises(RunnerError, match="at least one worker"):
        Pool(WORKER, workers, limit_s)


def test_workers_outlive_the_thread_that_started_them() -> None:
    with Pool(WORKER, 1, limit_s=10) as pool:
        starter = threading.Thread(target=pool.run, args=([job()],))
        starter.start()
        starter.join()
        pids = pool.pids
        pool.run([job()])
        assert pool.pids == pids


def test_a_worker_ends_when_its_pipe_is_closed_even_if_it_is_busy() -> None:
    child = Child(WORKER)
    child.send({"kind": "compile", "fault": "compile_hang"})
    select.select([child], [], [], 20)  # hello
    child._process.stdin.close()  # type: ignore[union-attr]
    assert wait_until_gone([child.pid]) == []
    kill_all([child])


def test_a_worker_refuses_a_parent_that_is_gone() -> None:
    # Started for another parent than the one that did: what a worker sees whose parent has just died.
    child = Child(WORKER, ["--parent", str(os.getpid() + 1)])
    assert wait_until_gone([child.pid]) == []
    with pytest.raises(WorkerLost, match="exited with code 0"):
        child.receive()
    kill_all([child])


def test_a_worker_that_does_not_read_does_not_block_its_parent() -> None:
    child = Child(WORKER)
    os.kill(child.pid, 19)  # SIGSTOP
    with pytest.raises(WorkerLost, match="does not read"):
        child.send({"kind": "compile", "fault": ""}, bytes(1 << 20), limit_s=0.2)
    kill_all([child])
    assert running([child.pid]) == []
    kill_all([child])


def test_stopping_ends_the_willing_and_the_busy() -> None:
    children = [Child(WORKER) for _ in range(2)]
    children[1].send({"kind": "compile", "fault": "compile_hang"})
    for child in children:
        select.select([child], [], [], 20)
    stop_all(children, grace_s=0.3)
    assert running([child.pid for child in children]) == []
    assert "code 0" in children[0].ending()
    assert "SIGKILL" in children[1].ending()
