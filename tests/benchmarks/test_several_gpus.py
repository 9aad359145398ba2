"""The scripts for several GPUs, with ranks that have none: they run whole, save as they go, and score rightly."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from process_support import SEARCH_PATH

import perfdb
import tilescale as ts
from tilescale.runtime.measure import Measurement
from tilescale.schedules.constraints import first_broken
from tilescale.spec.operation import OPERATIONS

ROOT = Path(__file__).parents[2]
KERNELS = {operation.name for operation in OPERATIONS if operation.kernels}


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("PYTHONPATH", SEARCH_PATH)


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "benchmarks" / "several_gpus.sh"), "-o", str(folder), "--short", *options]
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": f"{ROOT}{os.pathsep}{SEARCH_PATH}"}
    return subprocess.run(command, capture_output=True, text=True, timeout=560, env=environment)


@pytest.mark.slow
def test_one_command_does_every_part_and_leaves_its_results(tmp_path: Path) -> None:
    done = run(tmp_path, "--fake", "2", "--seconds", "500")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "several_gpus.json").read_text())
    assert {part: row["status"] for part, row in found["parts"].items()} == dict.fromkeys(
        ["links", "check", "predictions", "fidelity", "tune"], "ok")
    assert found["source"] == "predicted"  # made-up times are never called measured
    checked = found["parts"]["check"]
    assert set(checked["ops"]) | set(checked["without_kernels"]) == set(OPERATIONS.names())
    assert "mesh" in checked["without_kernels"]["summa"], "two ranks make no mesh"
    assert set(checked["ops"]) >= KERNELS - {"summa"}, "an operation with kernels is not checked on real links"
    assert all(op["right"] == op["seen"] > 0 for op in checked["ops"].values())
    for name, workload in found["parts"]["tune"]["workloads"].items():
        if name.startswith("moe"):  # libraries wait for the host, which must know the number of rows
            assert "nccl+cublas" not in workload["over_ours"]
        else:
            assert workload["over_ours"]["nccl+cublas"] > 1
        assert workload["raced_us"]["tilescale"] == min(us for us in workload["raced_us"].values())
    assert found["parts"]["fidelity"]["schedules"] >= 50
    assert found["parts"]["predictions"]["all"]["schedules"] > 0
    link = json.loads((tmp_path / "links.json").read_text())["link"]["measured"]
    assert ts.Topology.load(tmp_path / "topology.toml").link.gbps == link["gbps"] > 300
    with perfdb.open_database(tmp_path / "perf.db") as db:
        ops = set(perfdb.trials(db)["op"])
    assert {"link_put", "link_get", "link_flag"} | KERNELS - {"summa"} <= ops
    lines = done.stdout.splitlines()
    assert lines[-5].split()[:2] == ["links", "ok"]
    assert any(line.startswith("scale model") and "spearman" in line for line in lines[-12:])


@pytest.fixture
def one(tmp_path: Path) -> Any:
    """A run of the parts that are named, as an object."""
    import several_gpus

    def make(*parts: str, seconds: float = 60.0) -> Any:
        return several_gpus.Run(argparse.Namespace(
            output=tmp_path, seconds=seconds, only=",".join(parts), workloads="", trials=4, ranks=None, gpus=None,
            shared=None, fake=2, short=True, predictions=several_gpus.predictions.FOLDER))

    return make


def test_a_part_that_fails_or_hangs_leaves_the_others_their_time(one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import several_gpus

    def hang(self: Any, row: dict[str, Any]) -> None:
        row["half"] = "done"
        while True:
            pass

    def fail(self: Any, row: dict[str, Any]) -> None:
        saved = json.loads((self.folder / "several_gpus.json").read_text())
        assert saved["parts"]["links"]["half"] == "done"  # on the disk before this part began
        raise ValueError("this part is broken")

    monkeypatch.setattr(several_gpus.Run, "links", hang)
    monkeypatch.setattr(several_gpus.Run, "check", fail)
    monkeypatch.setattr(several_gpus.Run, "predictions", lambda self, row: row.update(reached=True))
    monkeypatch.setattr(several_gpus, "GRACE_S", 0.1)
    ran = one("links", "check", "predictions", seconds=2.0)
    assert ran.run() == 1
    parts = json.loads((ran.folder / "several_gpus.json").read_text())["parts"]
    assert (parts["links"]["status"], parts["links"]["error"][:12]) == ("failed", "TimeoutError")
    assert (parts["check"]["status"], parts["check"]["error"]) == ("failed", "ValueError: this part is broken")
    assert (parts["predictions"]["status"], parts["predictions"]["reached"]) == ("ok", True)


def test_a_wrong_result_fails_the_check_and_is_named(one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import several_gpus

    ran = one("check")
    monkeypatch.setattr(several_gpus.FakeGpus, "measure", lambda self, spec, schedules: [
        Measurement(s, "wrong_result", "predicted", message="element (0, 0)") for s in schedules])
    assert ran.run() == 1
    check = ran.result["parts"]["check"]
    assert check["status"] == "failed"
    assert "element (0, 0)" in check["wrong"][0]


def test_predictions_are_those_that_were_written_down(tmp_path: Path) -> None:
    from several import predictions, workloads

    for world, entries in predictions.read(predictions.FOLDER).items():
        topology = ts.Topology.named(predictions.MACHINE, int(world))
        for name, entry in entries.items():
            assert entry["digest"]
            assert entry["written"]
            spec = workloads.TUNED[name](topology)
            rows = predictions.schedules(entry)
            assert all(first_broken(spec, schedule) is None for schedule, _ in rows), name
            assert len({schedule.digest for schedule, _ in rows}) == len(rows)
    path = sorted(predictions.FOLDER.glob("*.json"))[0]
    document = json.loads(path.read_text())
    next(iter(document["worlds"]["2"].values()))["rows"][0]["us"] += 1
    (tmp_path / path.name).write_text(json.dumps(document))
    with pytest.raises(SystemExit, match="what was predicted"):
        predictions.read(tmp_path)


def test_what_is_predicted_already_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from several import predictions, workloads

    monkeypatch.setattr(workloads, "TUNED", {"all_gather.one": workloads.moved("all_gather", 256, 64)})
    first = predictions.write(tmp_path, [2], 4)
    assert first is not None
    assert predictions.write(tmp_path, [2], 4) is None
    monkeypatch.setattr(workloads, "TUNED", {**workloads.TUNED, "all_gather.two": workloads.moved("all_gather", 512, 64)})
    second = predictions.write(tmp_path, [2, 4], 4)
    assert second is not None
    entries = predictions.read(tmp_path)
    both = ["all_gather.one", "all_gather.two"]
    assert {world: sorted(found) for world, found in entries.items()} == {"2": both, "4": both}
    assert entries["2"]["all_gather.one"]["digest"] == first.stem
    assert entries["2"]["all_gather.two"]["digest"] == second.stem


def test_scores() -> None:
    from several import predictions
    from several.statistic import finite, ranks, spearman

    assert ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]
    assert spearman([1.0, 2.0, 3.0, 4.0], [10.0, 40.0, 90.0, 91.0]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert math.isnan(spearman([1.0, 2.0], [1.0, 2.0]))
    assert finite(math.nan) is None
    row = {"us": 110.0, "low_us": 90.0, "high_us": 115.0}
    found = predictions.score([(row, 100.0), (row, 110.0), (row, 220.0)])
    assert (found["schedules"], found["predicted_over_measured"], found["in_interval"]) == (3, 1.0, 0.6667)
    assert predictions.score([]) == {"schedules": 0}


def test_the_scale_model_is_scored_on_what_was_measured_on_both() -> None:
    from several import fidelity

    space = fidelity.recorded(2)
    assert space is not None
    assert fidelity.recorded(7) is None
    spec = fidelity.on(space, ts.Topology.named("8xH200-NVSwitch", 2))
    model = fidelity.chosen(space, spec, 60)
    assert len(model) == 60
    assert [row.value_us for row in model] == sorted(row.value_us for row in model)
    feasible = [row for row in space.rows if row.ok and first_broken(spec, row.schedule) is None]
    assert model[0].value_us == min(row.value_us for row in feasible)
    same = fidelity.score(model, model)
    assert (same["spearman"], same["chosen_over_best"], same["shared_of_first"], same["enough"]) == (1.0, 1.0, 1.0, True)
    turned = fidelity.score(model, model[::-1])
    assert turned["spearman"] == -1.0
    assert turned["chosen_over_best"] > 1


def test_every_operation_that_can_be_declared_has_a_small_shape() -> None:
    from several import workloads

    for world in (2, 3, 6, 8):
        specs, without = workloads.checked(ts.Topology.named("8xH200-NVSwitch", world))
        assert set(specs) | set(without) == set(OPERATIONS.names())
        assert all("no small shape" not in why for why in without.values())
        assert all(spec.world == world for spec in specs.values())


def test_links_says_that_fake_times_are_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import links

    path, base, toml = tmp_path / "links.json", tmp_path / "l.db", tmp_path / "l.toml"
    assert links.main(["--fake", "3", "-o", str(path), "--db", str(base), "--toml", str(toml)]) == 0
    found = json.loads(path.read_text())
    assert (found["source"], found["distinct_gpus"]) == ("predicted", 3)
    assert {(row["from"], row["to"]) for row in found["rows"]} == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (-1, -1)}
    assert "flag there and back: 1.60 to 1.60 us; 3 GPUs" in capsys.readouterr().out
    with perfdb.open_database(base) as db:
        assert set(perfdb.trials(db)["source"]) == {"predicted"}
    assert ts.Topology.load(toml).link.gbps == found["link"]["measured"]["gbps"]
