"""perfdb.asked, through the commands: no option takes a value that it cannot have, and none is silently ignored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import perfdb
from perfdb import asked
from perfdb.cli import app

Make = Callable[..., perfdb.TrialRecord]
SIDES = ["--before", "driver=580", "--after", "driver=590"]


@pytest.fixture
def filled(url: str, make: Make) -> str:
    with perfdb.open_database(url) as db:
        session = db.start_session(revision="abc")
        db.record_many([make("s1", session_id=session), make("s2", shape="512x10240x8192"), make("s3", gpu="H100")])
        db.record(make("s4", None, op="all_gather", shape="4096x8192"))
    return url


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize(
    "shape", ["banana", "4096X10240X8192", "4096,10240,8192", "0x1", "x", "4096x", "-1x2", "", "4096x 8"]
)
def test_a_shape_is_sizes(filled: str, shape: str) -> None:
    for command in (["best"], ["history"], ["failures"], ["recommendations"], ["nearest", "--op", "ag_gemm"]):
        result = run(*command, "--db", filled, "--shape", shape)
        assert result.exit_code == 2, command
        assert f"a shape is sizes above 0 joined by x; got: {shape!r}" in result.stderr
        assert "4096x10240x8192" in result.stderr
    assert run("compare", *SIDES, "--db", filled, "--shape", shape).exit_code == 2


def test_the_remedy_is_what_was_meant_and_the_nearest(filled: str) -> None:
    error = run("best", "--db", filled, "--shape", "600*10240*8192").stderr
    assert "write 600x10240x8192; nearest stored: 512x10240x8192, 4096x10240x8192, 4096x8192" in error


def test_a_shape_that_another_tool_stored_may_be_asked_for(filled: str, make: Make) -> None:
    with perfdb.open_database(filled) as db:
        db.record(make("s1", shape="m=any"))
    assert run("best", "--db", filled, "--shape", "m=any").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["best", "--op", "ag gemm"], "an operation is one word; got: 'ag gemm'; nearest: ag_gemm"),
        (["best", "--op", ""], "an operation is one word"),
        (["best", "--gpu", " "], "a GPU model has a name"),
        (["best", "--world", "0"], "--world"),
        (["best", "--world", "99999999999"], "--world"),
        (["best", "--power-cap", "-5"], "--power-cap"),
        (["best", "--limit", "99999999999"], "--limit"),
        (["nearest", "--op", "ag_gemm", "--shape", "1x2x3", "--dtype", "bf16"], "a dtype is one of torch's; got: 'bf16'"),
        (["history", "--policy", "worst"], "--policy"),
        (["history", "--since", "yesterday"], "--since"),
        (["failures", "--session", "0"], "--session"),
        (["failures", "--session", "99999999999999999999"], "--session"),
        (["regressions", "--source", "guessed"], "source must be of measured"),
        (["regressions", "--detector", "best"], "quiet"),
        (["regressions", "--policy", "worst"], "a schedule policy is best or schedule:DIGEST"),
        (["regressions", "--days", "nan"], "--days"),
        (["regressions", "--days", "inf"], "--days"),
        (["regressions", "--alpha", "nan"], "--alpha"),
        (["regressions", "--until", "0001-01-05"], "a period lies after the year 1"),
        (["regressions", "--until", "soon"], "--until"),
        (["regressions", "--confirm-with", "tilescale"], "give --confirm too"),
        (["regressions", "--markdown", "-", "--json"], "all write to stdout"),
        (["annotate", "x", "--from", "2026-02-01", "--to", "2026-01-01"], "a span of time begins before it ends"),
        (["annotate", "x", "--series", "77"], "refers to stored rows"),
        (["annotate", " ", "--from", "2026-02-01"], "an annotation says why"),
        (["compare", "--before", "driver", "--after", "driver=1"], "expected NAME=VALUE"),
        (["compare", "--before", "colour=1", "--after", "driver=1"], "a side is of gpu"),
        (["compare", "--before", "power_cap_w=x", "--after", "power_cap_w=1"], "power_cap_w is a whole number"),
        (["compare", "--before", "driver=1", "--before", "driver=2", "--after", "driver=3"], "driver is given twice"),
    ],
)
def test_what_cannot_be_is_wrong_usage(filled: str, arguments: list[str], said: str) -> None:
    result = run(*arguments, "--db", filled)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["best", "--world", "8"], "no stored number of ranks is 8; nearest: 4"),
        (["best", "--power-cap", "600"], "no stored power cap is 600; nearest: 700"),
        (["history", "--schedule", "s9"], "no stored schedule digest is s9; nearest: s1, s2, s3, s4"),
        (["history", "--since", "2099-01-01"], "since 2099-01-01"),
        (["failures", "--op", "ag_gem"], "no stored operation is ag_gem; nearest: ag_gemm, all_gather"),
        (["failures", "--gpu", "H20"], "no stored GPU model is H20; nearest: H200, H100"),
        (["failures", "--session", "5"], "no stored session is 5; nearest: 1"),
        (["training", "--op", "gemm"], "no stored operation is gemm"),
        (["predictions", "--model", "m"], "no stored model is m; none is stored"),
        (["recommendations", "--gpu", "H20"], "no stored GPU model is H20"),
        (["regressions", "--policy", "schedule:s9"], "no stored schedule digest is s9"),
        (["compare", "--before", "driver=1", "--after", "commit=b"], "no stored driver is 1; stored: 580.65"),
        (["compare", "--before", "driver=1", "--after", "commit=b"], "no stored commit is b; stored: abc"),
    ],
)
def test_what_is_not_stored_is_named_with_the_nearest(filled: str, arguments: list[str], said: str) -> None:
    result = run(*arguments, "--db", filled)
    assert result.exit_code == 1, result.output
    assert said in " ".join(result.stderr.split())


def test_what_is_stored_passes(filled: str) -> None:
    with perfdb.open_database(filled) as db:
        asked.require(db, op="ag_gemm", shape="1x2x3", gpu="any", dtype="float8_e4m3fn")
        assert asked.unknown(db, {"op": "ag_gemm", "gpu": "NVIDIA H200", "session": 1, "schedule": None}) == []


def test_a_confirmer_that_is_not_installed_is_said_at_once(filled: str) -> None:
    result = run("regressions", "--db", filled, "--confirm", "--confirm-with", "nobody")
    assert result.exit_code == 1
    assert "asked for nobody, installed:" in result.stderr


def test_a_summary_that_cannot_be_written_is_said(filled: str, tmp_path: Path) -> None:
    result = run("regressions", "--db", filled, "--markdown", str(tmp_path / "no" / "x.md"))
    assert result.exit_code == 1
    assert "the summary must be written" in result.stderr


def test_facts_of_an_import_are_checked(filled: str, tmp_path: Path) -> None:
    file = tmp_path / "E=8,N=256,device_name=NVIDIA_H200.json"
    file.write_text('{"1": {"BLOCK_SIZE_M": 16}}')
    assert "power_cap_w is a whole number" in run("import", str(file), "--db", filled, "--set", "power_cap_w=x").stderr
    assert run("import", str(file), "--db", filled, "--set", "power_cap_w=x").exit_code == 2
    assert run("import", str(tmp_path), "--db", filled).exit_code in (1, 2)
    assert run("import", str(file), "--db", filled, "--op", "no op").exit_code == 2
    assert run("import", str(file), "--db", filled).exit_code == 0
