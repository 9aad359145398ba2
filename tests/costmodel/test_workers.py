"""tilescale.costmodel.workers: processes predict what this one would, and what they do not answer is predicted here."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import tilescale as ts
from tilescale.costmodel import memo, workers
from tilescale.costmodel.analytic import predict
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

TOPOLOGY = ts.Topology.named("8xH200-NVSwitch", 4)
SPEC = ts.redistribute(ts.Tensor((512, 1024), "bfloat16", ts.FullRow), ts.Replicate, TOPOLOGY)


def schedules(number: int) -> list[Schedule]:
    return list(itertools.islice(ts.space(SPEC), number))


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(memo, "_path", lambda spec: None)
    memo.forget()
    yield
    memo.forget()


@pytest.mark.usefixtures("two_cores")
def test_workers_answer_what_this_process_would() -> None:
    wanted, counted = schedules(workers.LEAST + 3), list[int]()
    found = workers.predict_all(SPEC, wanted, counted.append)
    assert found == {schedule.digest: predict(SPEC, schedule) for schedule in wanted}
    assert sorted(counted) == list(range(1, len(wanted) + 1))


def test_few_schedules_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_started", pytest.fail)
    assert workers.predict_all(SPEC, schedules(workers.LEAST - 1), pytest.fail) == {}


@pytest.mark.usefixtures("two_cores")
def test_processes_that_end_early_cost_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(spec: Spec, schedules: object, progress: object) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(memo, "predict_all", broken)
    wanted = schedules(workers.LEAST)
    memo.ahead(SPEC, wanted)
    assert memo.prior(SPEC, wanted[0]) == predict(SPEC, wanted[0])


@pytest.mark.usefixtures("two_cores")
def test_a_worker_that_says_nonsense_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", "print('nonsense')"], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(workers, "_started", started)
    assert workers.predict_all(SPEC, schedules(workers.LEAST), pytest.fail) == {}


@pytest.mark.usefixtures("two_cores")
def test_what_was_predicted_ahead_is_not_predicted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = schedules(workers.LEAST)
    memo.ahead(SPEC, wanted)
    monkeypatch.setattr(memo, "predict", pytest.fail)
    assert all(memo.prior(SPEC, schedule).us > 0 for schedule in wanted)
