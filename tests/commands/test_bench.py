"""tilescale bench: rows, ratios and formats, with a runner that gives times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tilescale.commands import bench
from tilescale.runtime import gpu_runner
from tilescale.runtime.baselines import Timing
from tilescale.schedules.schedule import Schedule
from tilescale.spec import detect
from tilescale.spec.op import Spec

ARGUMENTS = ["--op", "all_gather", "--shape", "256x64", "--ranks", "2"]


class FakeRunner:
    """Ours takes 10 us on the slowest rank, "unfused" 20; everything else cannot run."""

    source = "measured_scale_model"

    def __init__(self, topology: Any) -> None: ...

    def __enter__(self) -> FakeRunner:
        return self

    def __exit__(self, *error: object) -> None: ...

    def baselines(self, spec: Spec, names: Sequence[str]) -> dict[str, Timing]:
        good = ((20.0,), (19.0,))
        return {n: Timing(n, "ok", self.source, good) if n == "unfused" else
                Timing(n, "launch_error", self.source, message="not here") for n in names}

    def race(self, spec: Spec, schedules: Sequence[Schedule], names: Sequence[str], rounds: int) -> Any:
        times = {schedules[0].digest: ((9.0, 10.0), (10.0, 8.0)), **dict.fromkeys(names, ((20.0, 20.0), (1.0, 1.0)))}
        return [times] * rounds


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(gpu_runner, "GpuRunner", FakeRunner)
    monkeypatch.setattr(detect, "model_at_hand", lambda: "H200")
    monkeypatch.setattr(detect, "devices", lambda: (object(),))
    app = typer.Typer()
    app.command("bench")(bench.bench)
    return lambda *extra: CliRunner().invoke(app, [*ARGUMENTS, *extra])


def test_the_table_has_times_over_ours_and_says_what_could_not_run(run: Any) -> None:
    shown = run("--against", "unfused,compute_only", "--rounds", "3")
    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[1] == ["all_gather", "tilescale", "10.00", "1.00", "6"]
    assert lines[2] == ["all_gather", "unfused", "20.00", "2.00", "6"]
    assert lines[3] == ["all_gather", "compute_only", "0", "not", "here"]
    assert "measured_scale_model" in shown.stderr


def test_json_holds_every_sample(run: Any) -> None:
    said = json.loads(run("--against", "unfused", "--rounds", "2", "--json").stdout)
    assert said["source"] == "measured_scale_model"
    assert said["rows"][0]["samples_us"] == [[9.0, 10.0, 9.0, 10.0], [10.0, 8.0, 10.0, 8.0]]


def test_nccl_tests_counts_bandwidth_as_it_does(run: Any) -> None:
    lines = run("--against", "unfused", "--format", "nccl-tests").stdout.splitlines()
    ours = next(line for line in lines if line.endswith("# tilescale")).split()
    size = 256 * 64 * 2
    assert ours[:3] == [str(size), str(size // 2 // 2), "bfloat16"]
    assert float(ours[6]) == pytest.approx(size / 10 / 1e3, abs=0.01)
    assert float(ours[7]) == pytest.approx(size / 10 / 1e3 / 2, abs=0.01)


def test_an_unknown_format_is_a_usage_error(run: Any) -> None:
    assert run("--format", "xml").exit_code == 2


def test_without_a_gpu_that_is_said_before_anything_is_predicted(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "model_at_hand", lambda: None)
    monkeypatch.setattr(bench, "best_predicted", lambda *arguments: pytest.fail("predicted"))
    done = run()
    assert done.exit_code == 1
    assert done.stderr.startswith("error: bench times schedules on a GPU of the topology; got: no GPU is at hand")
    assert len(done.stderr.splitlines()) == 1
