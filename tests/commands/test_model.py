"""`tilescale model fit|eval`, and the benchmark that writes the search quality."""

from __future__ import annotations

import json
import runpy
from functools import cache
from pathlib import Path

import pytest
from click.testing import Result
from costmodel_support import made_up, measured
from support import ag_gemm
from tuner_support import SMALL, fake, guess
from typer.testing import CliRunner

import perfdb
from tilescale.commands.model import app
from tilescale.costmodel import model_file, paths
from tilescale.runtime import replay
from tilescale.runtime.replay import RecordedSpace
from tilescale.spec.op import Spec
from tilescale.tuner.tune import tune

SHAPES = ((2048, 4096, 2048), (4096, 2048, 4096))
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "search_quality.py"


@cache
def recorded(at: int) -> RecordedSpace:
    return made_up(ag_gemm(SHAPES[at]), 80)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return [str(recorded(at).save(tmp_path / "spaces")) for at in range(2)]


@pytest.fixture
def db(tmp_path: Path) -> str:
    def timer(spec: Spec, schedule: object) -> float:
        return measured(spec, schedule).value_us  # type: ignore[arg-type]

    path = tmp_path / "perf.db"
    for shape in SHAPES:
        runner = fake(timer, source="measured_scale_model")
        tune(ag_gemm(shape), trials=30, db=path, runner=runner, space={**SMALL, "depth": [1]}, predictor=guess)
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def with_spaces(files: list[str]) -> list[str]:
    return [word for file in files for word in ("--space", file)]


def test_fit_learns_from_a_database_and_says_how_well(db: str, tmp_path: Path) -> None:
    path = tmp_path / "m.model"
    result = run("fit", "--db", db, "-o", str(path))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "measured_scale_model: 60 good and 0 failed rows of 2 workloads (ag_gemm on H200)"
    assert lines[1].startswith("median error of the analytic prior: ")
    assert lines[3].startswith("of the model, held-out workloads: ")
    model = model_file.load(path)
    assert (model.rows, model.source) == (60, "measured_scale_model")


def test_fit_writes_the_users_own_model_and_json(files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "user_path", lambda source: tmp_path / f"{source}.model")
    result = run("fit", *with_spaces(files), "--json")
    assert result.exit_code == 0, result.output
    (facts,) = json.loads(result.stdout)["models"]
    assert facts["path"] == str(tmp_path / "measured_scale_model.model")
    assert facts["rows"] == sum(row.ok for at in range(2) for row in recorded(at).rows)
    assert facts["rows"] + facts["failures"] == 160
    assert facts["new_error"] < facts["prior_error"]
    assert model_file.load(facts["path"]).rows == facts["rows"]


def test_what_teaches_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "perf.db"
    tune(ag_gemm(SHAPES[0]), trials=5, db=path, runner=fake(source="replayed"), space=SMALL, predictor=guess)
    result = run("fit", "--db", str(path))
    assert result.exit_code == 1
    assert "a model needs measurements; got: none of measured, " in result.stderr
    predicted = made_up(ag_gemm(SHAPES[0]), 5, source="predicted").save(tmp_path)
    result = run("fit", "--space", str(predicted))
    assert (result.exit_code, "got: predicted" in result.stderr) == (1, True)
    result = run("fit", "--db", str(path), "--source", "replayed")
    assert (result.exit_code, "--source is one of" in result.stderr) == (2, True)


def test_eval_leaves_workloads_out_and_searches_spaces(files: list[str]) -> None:
    result = run("eval", *with_spaces(files), "--seeds", "4", "--measurements", "12", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["seeds"], found["measurements"]) == (4, 12)
    held = found["leave_one_out"]["measured_scale_model"]
    assert [one["rows"] for one in held] == [sum(row.ok for row in recorded(at).rows) for at in range(2)]
    assert all(one["model"]["error"] < one["prior"]["error"] for one in held)
    assert [one["rows"] for one in found["search"]] == [80, 80]
    text = run("eval", *with_spaces(files), "--seeds", "4", "--measurements", "12", "--strategy", "model")
    assert "leave one workload out (measured_scale_model):" in text.stdout
    assert text.stdout.count("learned+transfer") == text.stdout.count("\nmodel ") == 2


def test_eval_of_a_database_searches_the_shipped_spaces(
    db: str, tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SHIPPED", tmp_path / "none")
    result = run("eval", "--db", db, "--seeds", "2")
    assert result.exit_code == 0, result.output
    assert "no recorded space of measured times" in result.stderr
    assert result.stdout.count("model") >= 2
    monkeypatch.setattr(replay, "SHIPPED", tmp_path / "spaces")
    with perfdb.open_database(tmp_path / "empty.db"):
        pass
    result = run("eval", "--db", str(tmp_path / "empty.db"), "--seeds", "2", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["leave_one_out"], len(found["search"])) == ({}, 2)


def test_an_unknown_strategy_is_refused_with_the_known_ones(files: list[str]) -> None:
    result = run("eval", *with_spaces(files), "--strategy", "lerned")
    assert result.exit_code == 2
    assert "did you mean 'learned'?" in result.stderr


def test_the_benchmark_writes_what_eval_finds(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(BENCHMARK))["main"]
    output = tmp_path / "results" / "search_quality.json"
    assert main([*files, "-o", str(output), "--seeds", "3"]) == 0
    found = json.loads(output.read_text())
    assert [one["file"] for one in found["spaces"]] == [Path(file).name for file in files]
    assert {one["source"] for one in found["spaces"]} == {"measured_scale_model"}
    assert [one["way"] for one in found["search"][0]["ways"]] == ["random", "prior", "learned", "learned+transfer"]
    predicted = made_up(ag_gemm(SHAPES[0]), 5, source="predicted").save(tmp_path)
    assert main([str(predicted), "-o", str(output)]) == 1
    assert "got: predicted" in capsys.readouterr().err
