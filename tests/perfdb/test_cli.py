"""The command `perfdb`: output for people and machines, exit codes 0, 1 and 2."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import perfdb
from perfdb.cli import app

Make = Callable[..., perfdb.TrialRecord]
LONG = "peer_copy push depth=4 chunk_rows=256 comm_blocks=16 block_m=128 block_n=256 stages=4 warpgroups=2 cluster=2x1"


@pytest.fixture
def filled(path: Path, make: Make) -> str:
    with perfdb.open_database(path) as db:
        first = make("s1", 100.125)
        db.record(
            perfdb.TrialRecord(
                first.workload,
                first.topology,
                first.environment,
                perfdb.ScheduleKey("s1", LONG),
                "measured",
                "ok",
                100.125,
            )
        )
        db.record(make("s2", 99.0, power_cap_w=500))
        db.record(make("s3", 1.0, source="predicted"))
        db.record(make("s4", None, status="timeout", message="rank 2\nwaited [bold]step 3[/bold]\x1b[31m " + "x" * 300))
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_best_is_a_table_of_whole_lines(filled: str) -> None:
    result = run("best", "--db", filled, "--op", "ag_gemm")
    assert result.exit_code == 0
    header, *rows = result.stdout.splitlines()
    assert header.split()[:2] == ["rank", "source"]
    assert "differs" not in header
    assert len(rows) == 2
    assert LONG in rows[0]
    assert "100.12" in rows[0]
    assert " 700 " in rows[0]
    assert " 500 " in rows[1]
    assert "predicted" not in result.stdout
    assert "2 power caps (500 W, 700 W)" in result.stderr


def test_json_and_csv_hold_every_column(filled: str) -> None:
    rows = json.loads(run("best", "--db", filled, "--json", "--source", "predicted").stdout)
    assert [(row["source"], row["value_us"], row["power_cap_w"], row["session_id"]) for row in rows] == [
        ("predicted", 1.0, 700, None)
    ]
    assert rows[0]["recorded_at"].endswith("Z")
    table = list(csv.DictReader(io.StringIO(run("history", "--db", filled, "--csv").stdout)))
    assert [row["value_us"] for row in table] == ["100.125", "99.0"]
    (failed,) = json.loads(run("failures", "--db", filled, "--json").stdout)
    assert failed["message"].startswith("rank 2\nwaited [bold]")


def test_failures_show_an_example_on_one_line(filled: str) -> None:
    result = run("failures", "--db", filled)
    assert result.exit_code == 0
    _, row = result.stdout.splitlines()
    assert "timeout" in row
    assert "rank 2 waited [bold]step 3[/bold]" in row
    assert row.rstrip().endswith("x" * 300)
    assert "\x1b" not in row
    nothing = run("failures", "--db", filled, "--source", "replayed")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "no failed trial matches" in nothing.stderr


def test_history_lists_points(filled: str) -> None:
    result = run("history", "--db", filled, "--gpu", "H200")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 3


def test_no_match_is_exit_1_and_lists_the_nearest(filled: str) -> None:
    result = run("best", "--db", filled, "--gpu", "H200_NVL")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "no exact match for gpu H200_NVL, source measured" in result.stderr
    assert "nearest GPU models, not used: H200" in result.stderr
    labelled = run("best", "--db", filled, "--gpu", "H200_NVL", "--nearest")
    assert labelled.exit_code == 0
    assert "nearest to H200 NVL" in labelled.stdout
    assert "times of H200" in labelled.stderr
    shape = run("best", "--db", filled, "--shape", "4096x10240x4096", "--json")
    assert (shape.exit_code, json.loads(shape.stdout)) == (1, [])
    assert "nearest shapes, not used: ag_gemm 4096x10240x8192" in shape.stderr
    source = run("history", "--db", filled, "--source", "replayed")
    assert source.exit_code == 1
    assert "not used: measured, predicted" in source.stderr
    assert "stored operations: ag_gemm" in run("best", "--db", filled, "--op", "gemm_rs").stderr


@pytest.mark.parametrize("command", ["best", "history", "failures", "check", "migrate"])
def test_a_missing_file_is_wrong_usage_and_stays_missing(tmp_path: Path, command: str) -> None:
    missing = tmp_path / "no.db"
    result = run(command, "--db", str(missing))
    assert result.exit_code == 2
    assert "the database file must exist" in result.stderr
    assert str(missing) in result.stderr
    assert not missing.exists()


@pytest.mark.parametrize(
    "arguments", [["best", "--limit", "0"], ["best", "--json", "--csv"], ["best", "--source", "guessed"], ["worst"]]
)
def test_wrong_usage_is_exit_2(filled: str, arguments: list[str]) -> None:
    assert run(*arguments, *(["--db", filled] if arguments != ["worst"] else [])).exit_code == 2


def test_a_foreign_file_is_exit_1(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database")
    for command in ("best", "check", "migrate"):
        result = run(command, "--db", str(path))
        assert result.exit_code == 1
        assert str(path) in result.stderr
    assert path.read_text() == "not a database"


def test_check_and_migrate_report(filled: str) -> None:
    assert "intact" in run("check", "--db", filled).stdout
    assert run("migrate", "--db", filled).stdout == "schema 0002: nothing to do\n"
    broken = Path(filled)
    data = broken.read_bytes()
    broken.write_bytes(data[: len(data) // 2])
    result = run("check", "--db", filled)
    assert result.exit_code == 1
    assert "restore" in result.stderr


def test_the_default_database_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    result = run("best")
    assert result.exit_code == 2
    assert str(tmp_path / "tilescale" / "perf.db") in result.stderr


def test_piped_output_is_neither_folded_nor_coloured(filled: str) -> None:
    code = "from perfdb.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "best", "--db", filled], capture_output=True, text=True, env={"COLUMNS": "40"}
    )
    assert done.returncode == 0, done.stderr
    assert LONG in done.stdout
    assert len(done.stdout.splitlines()) == 3
    assert "\x1b" not in done.stdout


def test_salvage_writes_where_there_is_no_folder_yet(filled: str, tmp_path: Path) -> None:
    target = tmp_path / "new" / "saved.db"
    assert run("check", "--db", filled, "--salvage", str(target)).exit_code == 0
    assert run("check", "--db", str(target)).exit_code == 0
    again = run("check", "--db", filled, "--salvage", str(Path(filled) / "saved.db"))
    assert again.exit_code == 1
    assert "salvage reads a file and writes a new one" in again.stderr
    assert run("check", "--db", filled, "--salvage", str(tmp_path / "x.db"), "--repair").exit_code == 2


def test_an_error_about_another_database_names_it(filled: str, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    for content in (b"", b"not a database", b"SQLite format 3\0" + b"x" * 5000):
        other.write_bytes(content)
        result = run("merge", str(other), "--db", filled)
        assert result.exit_code in (1, 2)
        assert str(other) in result.stderr
        assert "perfdb-merge-" not in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert other.read_bytes() == content


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_is_full_is_said(filled: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "perfdb", "best", "--db", filled, "--csv"],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    assert done.returncode == 1
    assert "error: the output must be written; got: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
