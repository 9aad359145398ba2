"""The check on a GPU reaches every operation that has kernels, and counts what is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tilescale.runtime.measure import Measurement
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.operation import OPERATIONS
from tilescale.spec.topology import Topology

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import hardware_check

    return hardware_check


@pytest.mark.parametrize("ranks", [4, 8])
def test_every_operation_with_kernels_is_there(script: Any, ranks: int) -> None:
    found = {spec.op for spec in script.workloads(ROOT / "recipes", Topology.shared_gpu(ranks))}
    assert found == {operation.name for operation in OPERATIONS if operation.kernels}


def test_kinds_of_a_sum_are_all_there(script: Any) -> None:
    specs = script.workloads(ROOT / "recipes", Topology.shared_gpu(4))
    kinds = script.sample(next(spec for spec in specs if (spec.op, spec.placement) == ("gemm_rs", "ordinary")))
    assert {words[0] for words in kinds} >= {"direct", "scatter"}
    assert {words[1] for words in kinds} >= {"peer_copy", "tma", "copy_engine"}
    assert all(schedule.compute == "generated" for schedule in kinds.values())


def test_a_family_is_right_where_both_sides_are(script: Any) -> None:
    assert script.right({"small": "ok", "whole": "ok", "emulated": "ok"})
    for side in ("small", "whole", "emulated"):
        assert not script.right({"small": "ok", "whole": "ok", "emulated": "ok", side: "wrong_result: element 0"})


def test_the_emulator_answers_for_a_schedule(script: Any) -> None:
    specs = script.workloads(ROOT / "recipes", Topology.shared_gpu(4))
    spec = next(spec for spec in specs if spec.op == "all_reduce")
    assert script.emulated(spec, next(iter(script.sample(spec).values()))) == "ok"


class Runner:
    """Right, but for families whose workload is `wrong`; what was measured is in `asked`, and `most` ends the run."""

    asked: list[str] = []
    wrong = ""
    most = 1000

    def __init__(self, topology: Topology, bounds: object = None) -> None:
        pass

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def start(self) -> None:
        pass

    def measure_program(self, spec: Spec, schedule: Schedule, program: object) -> Measurement:
        return Measurement(schedule, "ok", "measured", ((1.0,),))

    def measure(self, spec: Spec, schedules: Sequence[Schedule]) -> list[Measurement]:
        if len(self.asked) == self.most:
            raise KeyboardInterrupt
        self.asked.append(spec.label)
        if spec.label == self.wrong:
            return [Measurement(schedules[0], "wrong_result", "measured", message="element 0") for _ in schedules]
        return [Measurement(schedules[0], "ok", "measured", ((1.0, 2.0),)) for _ in schedules]


@pytest.fixture
def run(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rows of the file after a run; workloads that have no schedules that were enumerated are in `run.left`."""
    monkeypatch.setattr(script, "GpuRunner", Runner)
    monkeypatch.setattr(script, "pool", ThreadPoolExecutor)
    monkeypatch.setattr(script, "emulated", lambda spec, schedule: "ok")
    for name, value in (("asked", []), ("wrong", ""), ("most", 1000)):
        monkeypatch.setattr(Runner, name, value)
    enumerated: list[str] = []
    sample = script.sample
    monkeypatch.setattr(script, "sample", lambda spec: (enumerated.append(spec.op), sample(spec))[1])

    def once(*words: str) -> list[dict[str, Any]]:
        path = tmp_path / "check.json"
        try:
            script.run(script.arguments().parse_args(["--ranks", "4", "--most", "2", *words]), path)
        finally:
            result: dict[str, Any] = json.loads(path.read_text())
        rows: list[dict[str, Any]] = result["rows"]
        assert result["families"] == len(rows)
        return rows

    once.enumerated = enumerated  # type: ignore[attr-defined]
    return once


def test_spaces_are_enumerated_where_a_family_may_be_wanted(run: Any) -> None:
    rows = run("--only", "shift direct,moe_combine")
    assert set(run.enumerated) == {"shift", "moe_combine"}
    assert {row["family"].split()[0] for row in rows} == {"shift", "moe_combine"}
    assert all(row["emulated"] == "ok" for row in rows)
    assert run.enumerated.count("shift") == 2  # operands of both placements


def test_no_name_that_is_wanted_is_left_out_before_it_is_made(script: Any) -> None:
    texts = ("ring", "tma push", "by warp", "t pull", "none in packets", "reduce_scatter d", "by warpgroup ordinary")
    quick = ("all_gather", "all_reduce", "reduce_scatter", "shift", "summa", "moe_dispatch")
    specs = [spec for spec in script.workloads(ROOT / "recipes", Topology.shared_gpu(4)) if spec.op in quick]
    for spec in specs:
        names = [" ".join((spec.op, *spec.then, *words, spec.placement)) for words in script.sample(spec)]
        for text in texts:
            assert script.may_name(spec, [text]) or not any(text in name for name in names)
    assert {text for text in texts for spec in specs if script.may_name(spec, [text])} == set(texts)
    assert {spec.op for spec in specs if script.may_name(spec, ["rmsnorm", "gather tma"])} == {"all_gather", "all_reduce"}


def test_processes_beside_the_ranks_give_way(script: Any) -> None:
    with script.pool(1) as pool:
        assert pool.submit(os.nice, 0).result(timeout=60) == min(os.nice(0) + 10, 19)


def test_a_second_run_emulates_what_the_first_left_out_and_measures_nothing_again(run: Any) -> None:
    first = run("--only", "shift", "--no-emulation")
    assert first
    assert not any("emulated" in row for row in first)
    asked = len(Runner.asked)
    second = run("--only", "shift")
    assert len(Runner.asked) == asked == len(first)
    assert [row["family"] for row in second] == [row["family"] for row in first]
    assert {row["emulated"] for row in second} == {"ok"}


def test_what_was_wrong_is_measured_again_and_what_the_emulator_finds_is_kept(
    script: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run("--only", "shift")
    monkeypatch.setattr(Runner, "wrong", found[0]["workload"])
    monkeypatch.setattr(script.common, "version", lambda: "other sources")
    rows = run("--only", "shift")
    assert {row["whole"] for row in rows} == {"wrong_result: element 0"}
    monkeypatch.setattr(Runner, "wrong", "")
    monkeypatch.setattr(script, "emulated", lambda spec, schedule: "deadlock")
    assert {(row["whole"], row["emulated"]) for row in run("--only", "shift")} == {("ok", "deadlock")}

    def broken(spec: Spec, schedule: Schedule) -> str:
        raise OSError("no compiler")

    monkeypatch.setattr(script, "emulated", broken)
    assert {(row["whole"], row["emulated"]) for row in run("--only", "shift")} == {("ok", "OSError: no compiler")}


def test_a_run_that_is_cut_keeps_what_it_had(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "most", 2)
    with pytest.raises(KeyboardInterrupt):
        run("--only", "shift")
    monkeypatch.setattr(Runner, "most", 1000)
    rows = run("--only", "shift")
    assert len(Runner.asked) == len(rows) > 2
