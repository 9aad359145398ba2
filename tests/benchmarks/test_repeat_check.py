"""benchmarks/repeat_check.py: sees bits that change and sums that are rounded more than once, and runs on ranks."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deploy.fakes import one_schedule
from runtime.gpu_fakes import Ranks
from runtime.test_gpu_rank import race
from support import ag_gemm, gemm_rs, reduction, routed

from tilescale.codegen.emit import emit
from tilescale.runtime.gpu_check import CALLS, Workload, place_on
from tilescale.runtime.measure import Measurement
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

ROOT = Path(__file__).parents[2]
WORLD = 4


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import repeat_check

    monkeypatch.setattr(repeat_check, "CALLS", 5)
    return repeat_check


def repeated(script: Any, spec: Spec, fault: str = "") -> dict[str, int]:
    """Rank 0 of an operation of sums on the host; `fault` is what is wrong with it."""
    work = script.ExactSums(torch, spec, 0, 3, place_on(torch, "cpu"))
    every = [script.ExactSums(torch, spec, rank, 3, place_on(torch, "cpu")) for rank in range(spec.world)]
    calls = [0] * CALLS

    def enqueue(call: int) -> None:
        calls[call] += 1
        parts = []
        for one in every:
            first, *rest = one.calls[call].inputs
            parts.append(first.float() @ rest[0].float() if rest else first.float())
        if fault == "often":
            parts = [part.bfloat16() for part in parts]
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        out = total[: work.calls[call].out.shape[0]]
        if fault == "changes" and calls[call] == 3:
            out = out + 1
        work.calls[call].out.copy_(out)

    found: dict[str, int] = script.repeated(torch, work, enqueue, lambda: None, lambda: None)
    return found


SUMS = [reduction((64, 512)), reduction((64, 512), to="FullRow"), gemm_rs((64, 64, 512)),
        gemm_rs((64, 64, 512), out="Replicate")]


@pytest.mark.parametrize("spec", SUMS, ids=lambda spec: f"{spec.op}")
def test_what_is_right_has_no_difference_and_another_rounding_would_show(script: Any, spec: Spec) -> None:
    found = repeated(script, spec)
    assert (found["different_bytes"], found["not_rounded_once"]) == (0, 0)
    assert found["would_show"] > found["elements"] // 100
    assert found["control_bytes"] > found["bytes"] // 2


def test_an_output_that_changes_is_seen(script: Any) -> None:
    assert repeated(script, SUMS[0], "changes")["different_bytes"] > 0


@pytest.mark.parametrize("spec", SUMS, ids=lambda spec: f"{spec.op}")
def test_addends_that_are_rounded_are_seen(script: Any, spec: Spec) -> None:
    found = repeated(script, spec, "often")
    assert found["not_rounded_once"] == found["would_show"] > 0


def on_ranks(script: Any, spec: Spec, **knobs: object) -> dict[str, int]:
    class Rank(script.RepeatRank):  # type: ignore[misc,name-defined]
        def sleep(self, cycles: int) -> None:
            assert 0 <= cycles < script.HELD_CYCLES

    ranks = Ranks(spec.world)
    ranks.workers = [Rank(ranks._context(rank), ranks._open) for rank in range(spec.world)]
    ranks.facts()
    reports = ranks.run(*race(spec, {"it": emit(spec, one_schedule(spec, **knobs))}))
    assert {report.status for report in reports} == {"ok"}, reports
    found: dict[str, int] = json.loads(json.loads(reports[0].message)["facts"][script.FOUND])
    return found


def test_ranks_call_a_program_again_and_again(script: Any) -> None:
    for spec in (reduction((160, 64), 2), reduction((160, 64), 3), gemm_rs((160, 64, 128), 2)):
        found = on_ranks(script, spec)
        assert (found["different_bytes"], found["not_rounded_once"], found["unseen"]) == (0, 0, 0)
        assert found["elements"] == (1 if spec.op == "gemm_rs" else spec.world) * 160 * 64
        assert found.get("would_show", 0) > 0 or (spec.op, spec.world) == ("all_reduce", 2)
    gathered = on_ranks(script, ag_gemm((128, 64, 64), 2))
    assert "elements" not in gathered
    assert (gathered["different_bytes"], gathered["unseen"]) == (0, 0)


def test_a_rank_whose_outputs_never_differ_cannot_tell(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Workload._fresh
    monkeypatch.setattr(Workload, "_fresh", lambda self, local, call, *rest: fresh(self, local, min(call, 1), *rest))
    found = on_ranks(script, ag_gemm((128, 64, 64), 2))
    assert found["unseen"] == 2
    assert not script.right(found)


def test_every_operation_that_sums_is_there_and_has_schedules(script: Any) -> None:
    found = script.specs(Topology.shared_gpu(WORLD))
    ops = ["reduce_scatter", "all_reduce", "gemm_rs", "gemm_ar", "ag_gemm", "moe_gemm_combine"]
    assert [spec.op for spec in found] == ops
    assert all(spec.deterministic for spec in found)
    assert [script.adds_up(spec) for spec in found] == [True] * 4 + [False] * 2
    assert not script.adds_up(routed("combine"))
    schedules = script.chosen(found[1], 5)
    assert 3 <= len(schedules) == len({script.kind(schedule) for schedule in schedules}) <= 5


def test_rows_are_kept_and_wrong_ones_are_measured_again(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    good = {"bytes": 8, "different_bytes": 0, "control_bytes": 8, "unseen": 0}
    told: list[dict[str, int]] = [good, {**good, "different_bytes": 1}]

    class Runner:
        def __init__(self, topology: Topology, bounds: object, worker: str) -> None:
            assert worker == f"{script.RepeatRank.__module__}:RepeatRank"

        def __enter__(self) -> Runner:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def start(self) -> None:
            pass

        def prefetch(self, spec: Spec, schedules: object) -> None:
            pass

        def measure(self, spec: Spec, schedules: Any) -> list[Measurement]:
            asked.append(schedules[0].label)
            found = json.dumps(told[len(asked) - 1] if len(asked) <= len(told) else good)
            return [Measurement(schedules[0], "ok", "measured_shared_gpu", ((1.0,),), environment=((script.FOUND, found),))]

    monkeypatch.setattr(script, "GpuRunner", Runner)
    monkeypatch.setattr(script, "pool", ThreadPoolExecutor)
    given: Any = SimpleNamespace(ranks=[2], only=["all_reduce"], most=2, limit=100.0)
    rows = script.run(given, tmp_path / "r.json")
    assert [script.right(row) for row in rows] == [True, False]
    rows = script.run(given, tmp_path / "r.json")
    assert asked == [asked[0], asked[1], asked[1]]
    assert all(script.right(row) for row in rows)
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["rows_right"], result["ops"]) == (2, {"all_reduce ranks=2": 2})
    given.limit = -1.0
    assert script.run(given, tmp_path / "other.json") == []
