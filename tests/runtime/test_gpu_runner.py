"""tilescale.runtime.gpu_runner: the parent's side, with ranks that have no GPU and a stand-in for MPS."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deploy.fakes import ag_gemm, all_gather, kinds, one_schedule
from process_support import SEARCH_PATH, end_and_list_orphans, run_script, wait_until_gone
from runtime.gpu_worker import WORKER

import tilescale as ts
from tilescale.deploy.multicast import SWITCHES
from tilescale.errors import RunnerError
from tilescale.runtime.device_lock import DeviceLock
from tilescale.runtime.gpu_runner import GpuRunner
from tilescale.runtime.runner import Runner
from tilescale.runtime.sampling import Bounds

PATH = os.pathsep.join([str(Path(__file__).parent / "fake_mps"), os.environ["PATH"]])
FEW = Bounds(minimum=3, maximum=3)
SPEC = all_gather()
Make = Callable[..., GpuRunner]
HOLD = f"""
import os, sys
os.environ["PATH"] = {PATH!r}
os.environ["PYTHONPATH"] = {SEARCH_PATH!r}
from deploy.fakes import all_gather, one_schedule
from tilescale.runtime.gpu_runner import GpuRunner
spec = all_gather()
with GpuRunner(spec.topology, worker={WORKER!r}, workers=1, cache_dir=sys.argv[1] if sys.argv[1:] else None) as runner:
    runner.measure(spec, [one_schedule(spec, transport="peer_copy")])
    print(*runner.pids, flush=True)
    while True:
        runner.measure(spec, [one_schedule(spec, transport="peer_copy")])
"""


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    monkeypatch.setenv("PATH", PATH)
    monkeypatch.setenv("PYTHONPATH", SEARCH_PATH)
    made: list[GpuRunner] = []

    def build(topology: ts.Topology = SPEC.topology, **told: Any) -> GpuRunner:
        monkeypatch.setenv("FAKE_GPU", json.dumps(told))
        cache = tmp_path_factory.getbasetemp() / "binaries"
        made.append(GpuRunner(topology, bounds=FEW, worker=WORKER, workers=1, cache_dir=cache))
        return made[-1]

    yield build
    for runner in made:
        runner.close()


def test_measures_in_order_with_its_source_and_what_ran(make: Make) -> None:
    runner = make()
    assert isinstance(runner, Runner)
    assert runner.source == "measured_scale_model"
    schedules = kinds(SPEC)[:4]
    found = runner.measure(SPEC, schedules)
    assert [each.schedule for each in found] == schedules
    assert {(each.status, each.value_us, len(each.samples_us)) for each in found} == {("ok", 101.0, 2)}
    environment = dict(found[0].environment)
    assert (environment["gpu"], environment["uuids"], environment["sm_mhz"]) == ("H200", "gpu-test", "1980-1980")
    assert all(each.table_digest for each in found)


def test_what_cannot_be_emitted_is_illegal_and_leaves_the_others(make: Make) -> None:
    good = one_schedule(SPEC, transport="peer_copy")
    bad = dataclasses.replace(one_schedule(SPEC, overlap="fused"), num_comm_blocks=10_000)
    found = make().measure(SPEC, [bad, good])
    assert [each.status for each in found] == ["illegal", "ok"]
    assert ": " in found[0].message


def test_b9_ranks_that_share_a_gpu_by_accident_are_refused_with_their_gpus(make: Make) -> None:
    real = ts.Topology.named("8xH200-NVSwitch").with_ranks(2)
    with pytest.raises(RunnerError, match="rank 0: gpu-a, rank 1: gpu-a") as caught:
        make(real, uuids=["gpu-a", "gpu-a"], sms=132).start()
    assert "local rank" in caught.value.remedy
    facts = make(real, uuids=["gpu-c", "gpu-a"], sms=132).start()
    assert [fact.uuid for fact in facts] == ["gpu-c", "gpu-a"]


def test_multimem_is_measured_where_the_owner_allows_it_and_every_rank_has_tried_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TILESCALE_MULTICAST", "TILESCALE_PEER_MEMORY", *SWITCHES):
        monkeypatch.delenv(name, raising=False)
    real = ts.Topology.named("8xH200-NVSwitch").with_ranks(2)

    def has(topology: ts.Topology, multicast: list[str]) -> tuple[bool, set[str]]:
        """Whether a runner has it, and how its ranks share memory; no rank is started for asking."""
        told: dict[str, Any] = {"multicast": multicast}
        if topology is real:
            told |= {"uuids": ["gpu-a", "gpu-b"], "sms": 132}
        runner = make(topology, **told)
        found = runner.multicast, {facts.peer_memory for facts in runner.facts}
        runner.close()
        return found

    works, fails = ["works", "works"], ["works", "rank 1: it cannot be bound"]
    assert has(real, works) == (False, set())
    monkeypatch.setenv("TILESCALE_MULTICAST", "1")
    assert has(real, works) == (True, {"vmm"})
    assert has(real, fails) == (False, {"vmm"})
    assert has(SPEC.topology, works) == (False, set())
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    assert has(real, works) == (False, set())


@pytest.mark.parametrize("world", [3, 6])
def test_b8_any_number_of_gpus_of_a_host_is_measured_on(make: Make, world: int) -> None:
    real = ts.Topology.named("8xH200-NVSwitch").with_ranks(world)
    spec = ts.redistribute(ts.Tensor((96 * world, 64), "bfloat16", ts.FullRow), to=ts.Replicate, topology=real)
    uuids = [f"gpu-{world - rank}" for rank in range(world)]
    (found,) = make(real, uuids=uuids, sms=132).measure(spec, [one_schedule(spec, transport="peer_copy")])
    assert (found.status, found.source, found.value_us) == ("ok", "measured", 100.0 + world - 1)
    assert dict(found.environment)["uuids"] == ",".join(uuids)


@pytest.mark.parametrize(("told", "rule"), [
    ({"uuids": ["gpu-a", "gpu-b"]}, "share one GPU"), ({"sms": 66}, "may use 64 SMs"), ({"absent": [0, 3]}, "3 absent"),
])
def test_ranks_that_are_not_placed_as_the_topology_says_are_refused(make: Make, told: dict[str, Any], rule: str) -> None:
    runner = make(**told)
    with pytest.raises(RunnerError, match=rule):
        runner.measure(SPEC, [one_schedule(SPEC)])
    assert runner.pids == runner._compiler.pids


@pytest.mark.parametrize(("fault", "keeps"), [("timeout", True), ("wrong_result", True), ("exit", False)])
def test_a_failure_costs_a_new_group_and_the_session_goes_on(make: Make, fault: str, keeps: bool) -> None:
    first, second = kinds(SPEC)[:2]
    runner = make(at=first.digest, fault=fault)
    assert runner.measure(SPEC, [second])[0].ok
    daemon, ranks = runner._mps.pids, runner._known
    failed, good = runner.measure(SPEC, [first, second])
    assert failed.status == ("launch_error" if fault == "exit" else fault)
    assert "rank 1" in failed.message
    assert good.ok
    assert runner.restarts == 1
    assert wait_until_gone(ranks) == []
    assert (runner._mps.pids == daemon) == keeps  # a crash may have taken the daemon's server along


def test_baselines_have_a_status_each(make: Make) -> None:
    spec = ag_gemm()
    found = make().baselines(spec)
    assert {name: each.value_us for name, each in found.items()} == {"unfused": 101.0, "compute_only": 101.0}
    shared = all_gather_on(ts.Topology.shared_gpu(2))
    timings = make(shared.topology, uuids=["gpu-2", "gpu-2"]).baselines(shared)
    assert timings["unfused"].ok
    assert (timings["torch.symm_mem"].status, timings["torch.symm_mem"].message) == ("launch_error", "not here")


def all_gather_on(topology: ts.Topology) -> Any:
    return ts.redistribute(ts.Tensor((256, 64), "bfloat16", ts.FullRow), to=ts.Replicate, topology=topology)


def test_baselines_that_would_mislead_are_refused(make: Make) -> None:
    runner = make()
    with pytest.raises(RunnerError, match="links"):
        runner.baselines(SPEC, ["torch.symm_mem"])
    with pytest.raises(RunnerError, match="NCCL needs a GPU a rank"):
        runner.baselines(SPEC, ["nccl+cublas"])
    with pytest.raises(RunnerError, match="did you mean"):
        runner.baselines(SPEC, ["unfuse"])


def test_a_race_gives_samples_of_every_round(make: Make) -> None:
    schedules = kinds(SPEC)[:2]
    rounds = make().race(SPEC, schedules, ["unfused"], rounds=3)
    assert [set(each) for each in rounds] == [{schedules[0].digest, schedules[1].digest, "unfused"}] * 3
    assert rounds[2][schedules[0].digest] == ((102.0,) * 3, (103.0,) * 3)


def test_a_race_with_a_wrong_schedule_is_an_error(make: Make) -> None:
    schedule = kinds(SPEC)[0]
    with pytest.raises(RunnerError, match="wrong_result"):
        make(at=schedule.digest, fault="wrong_result").race(SPEC, [schedule])


def test_measuring_holds_the_gpu_until_the_runner_closes(make: Make) -> None:
    runner = make(uuids=["gpu-held", "gpu-held"])
    runner.start()
    with pytest.raises(RunnerError, match="gpu-held"):
        DeviceLock().acquire(["gpu-held"], 0)
    runner.close()
    lock = DeviceLock()
    lock.acquire(["gpu-held"], 0)
    lock.release()


def test_a_closed_runner_has_no_process_and_measures_nothing(make: Make) -> None:
    runner = make()
    runner.measure(SPEC, [one_schedule(SPEC)])
    pids = runner.pids
    runner.close()
    runner.close()
    assert wait_until_gone(pids) == []
    with pytest.raises(RunnerError, match="closed"):
        runner.measure(SPEC, [])


def test_a_spec_of_another_topology_is_refused(make: Make) -> None:
    with pytest.raises(RunnerError, match="make one for it"):
        make().measure(all_gather(ranks=4), [])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_nothing_outlives_the_parent(number: signal.Signals) -> None:
    assert end_and_list_orphans(HOLD, number)[0] == []


def test_the_parent_loads_no_torch_and_the_rank_no_database() -> None:
    shown = run_script("import sys, tilescale.runtime.gpu_runner; print(*sorted({m.split('.')[0] for m in sys.modules}))")
    assert not {"torch", "cuda", "sqlalchemy", "optuna", "pandas"} & set(shown.split())
    shown = run_script("import sys, torch, tilescale.runtime.gpu_rank, tilescale.runtime.rank; print(*sys.modules)")
    assert not {"sqlalchemy", "optuna", "pandas", "perfdb", "tilescale.tuner"} & set(shown.split())
