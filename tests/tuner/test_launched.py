"""tilescale.tuner.launched: every rank calls tune, rank 0 decides; with threads, and once under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from process_support import SEARCH_PATH

import tilescale as ts
from tilescale.errors import RunnerError
from tilescale.spec.op import Spec
from tilescale.tuner import launched
from tilescale.tuner.launched import Launch, together

REAL = ts.Topology.named("8xH200-NVSwitch", 2)


def gather(topology: ts.Topology = REAL, rows: int = 256) -> Spec:
    return ts.redistribute(ts.Tensor((rows, 64), "bfloat16", ts.FullRow), ts.Replicate, topology)


class MemoryStore:
    """Of all ranks of a test."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, 10.0), key
            return self.values[key]

    def set_timeout(self, timeout: timedelta) -> None:
        pass


def on_ranks(act: Callable[[int], Any], specs: Callable[[int], Spec], monkeypatch: pytest.MonkeyPatch,
             gpus: Callable[[int], list[str]] = lambda rank: []) -> list[Any]:
    """What each of two ranks gets, or the exception it sees."""
    store = MemoryStore()
    local = threading.local()
    monkeypatch.setattr(launched, "_visible", lambda: gpus(local.rank))
    monkeypatch.setattr(launched, "next", lambda calls: 0, raising=False)

    def one(rank: int) -> Any:
        local.rank = rank
        try:
            return together(Launch(rank, 2, 2), {"it": specs(rank)}, lambda: act(rank), lambda: store)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def test_rank_0_searches_and_all_get_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def act(rank: int) -> Any:
        searched.append(rank)
        return gather()

    assert on_ranks(act, lambda rank: gather(), monkeypatch) == [gather()] * 2
    assert searched == [0]


def test_a_failure_of_rank_0_is_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(rank: int) -> Any:
        raise KeyboardInterrupt("nothing was finished")

    first, second = on_ranks(act, lambda rank: gather(), monkeypatch)
    assert isinstance(first, KeyboardInterrupt)
    assert isinstance(second, RunnerError)
    assert "KeyboardInterrupt: nothing was finished" in str(second)


def test_ranks_that_ask_for_different_things_are_refused_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on_ranks(lambda rank: 1, lambda rank: gather(rows=256 * (rank + 1)), monkeypatch)
    assert all(isinstance(error, RunnerError) and "rank 1: " in str(error) for error in found)


def test_case_b9_a_launcher_that_leaves_all_ranks_on_one_gpu_is_refused_with_the_list(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    found = on_ranks(lambda rank: 1, lambda rank: gather(), monkeypatch, lambda rank: ["GPU-a"])
    assert all("rank 0: GPU-a, rank 1: GPU-a" in str(error) for error in found)
    shared = ts.Topology.shared_gpu(2)
    assert on_ranks(lambda rank: 1, lambda rank: gather(shared), monkeypatch, lambda rank: ["GPU-a"]) == [1, 1]


def test_case_b9_ranks_that_see_a_gpu_each_are_measured_on_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    seen = on_ranks(lambda rank: os.environ["CUDA_VISIBLE_DEVICES"], lambda rank: gather(), monkeypatch,
                    lambda rank: [["GPU-b"], ["GPU-a"]][rank])
    assert seen == ["GPU-b,GPU-a"] * 2
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    seen = on_ranks(lambda rank: os.environ["CUDA_VISIBLE_DEVICES"], lambda rank: gather(), monkeypatch,
                    lambda rank: ["GPU-a", "GPU-b"])
    assert seen == ["GPU-b"] * 2  # all see all: what this process sees is right


def test_several_hosts_are_refused() -> None:
    with pytest.raises(RunnerError, match="16 ranks, 8 on this one"):
        together(Launch(0, 16, 8), {"it": gather()}, lambda: 1)


def test_only_torchrun_makes_a_launch() -> None:
    started = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert Launch.here(started) == Launch(1, 2, 2)
    assert Launch.here({**started, "WORLD_SIZE": "1"}) is None
    assert Launch.here({"RANK": "1", "WORLD_SIZE": "2"}) is None
    assert together(None, {"it": gather()}, lambda: 3) == 3


SCRIPT = """
import json, os, sys
import tilescale as ts
from tilescale.runtime.fake import FakeRunner
spec = ts.redistribute(ts.Tensor((256, 64), "bfloat16", ts.FullRow), ts.Replicate, ts.Topology.named("8xH200-NVSwitch", 2))
rank = int(os.environ["RANK"])
runner = FakeRunner(lambda spec, schedule: 100.0 + 50 * rank + schedule.num_comm_blocks, processes=False)
result = ts.tune(spec, trials=6, db=sys.argv[1] + "/perf.db", runner=runner)
again = ts.tune({"one": spec}, trials=6, db=sys.argv[1] + "/perf.db", runner=runner)["one"]
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump([result.best.digest, result.best_us, runner.measured, again.best.digest, again.measured], file)
"""


@pytest.mark.slow
def test_under_torchrun_rank_0_measures_and_stores_for_all(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": SEARCH_PATH, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first[:2] == second[:2]
    assert (first[2], second[2]) == (6, 0)
    assert first[3:] == second[3:]
    assert first[4] == 0  # the second call is answered by the database
