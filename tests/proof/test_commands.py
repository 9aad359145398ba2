"""`tilescale verify` and `emulate` over worlds, shipped recipes and replay files."""

from __future__ import annotations

import json
import sys
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handmade import drop, edit, find
from typer.testing import CliRunner

from tilescale.cli import app, main
from tilescale.codegen import rules
from tilescale.commands import bar, prove
from tilescale.runtime import emulate as emulating
from tilescale.runtime import replay_file
from tilescale.schedules import lower as lowering
from tilescale.schedules.plan import Plan, Signal
from tilescale.schedules.space import space
from tilescale.tuner.recipe import read

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "recipes" / "all_gather" / "activations.toml")


@pytest.fixture
def tilescale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command line in a folder of its own that holds the shipped recipes."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, list(words))


def test_every_shipped_recipe_on_other_worlds(tilescale: Any) -> None:
    done = tilescale("verify", "--all", "--worlds", "2,3", "--limit", "2", "--no-cache")
    assert done.exit_code == 0, done.output
    assert "mlp_up_8192 w3 (M 8192 as 8208, N 28672 as 28680): 2 of 2 schedules proved" in done.output
    texts = {path.parent.name: path.read_text() for path in (ROOT / "recipes").rglob("*.toml")}
    workloads = sum(path.read_text().count("[[workload]]") for path in (ROOT / "recipes").rglob("*.toml"))
    blocks = texts["summa"].count("[[workload]]")  # of which two or three ranks make no mesh
    assert done.output.count("2 of 2 schedules proved") == 2 * (workloads - blocks)
    left_out = ", ".join(_names(texts["summa"], (2, 3)))
    assert f"left out, since so many ranks make no mesh for their blocks: {left_out}" in done.output
    assert "kernel texts and the device library: 0 places that break a static rule" in done.output


def test_a_workload_on_a_world(tilescale: Any) -> None:
    done = tilescale("verify", RECIPE, "-w", "decode_64x8192", "--worlds", "8", "--limit", "3", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    (facts,) = said["workloads"]
    assert (facts["name"], facts["proved"], facts["counterexample"]) == ("decode_64x8192 w8", 3, None)
    assert said["rules"]["violations"] == []
    assert said["rules"]["texts"] > 0


def test_a_text_that_breaks_a_rule_is_told_with_its_place(tilescale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [(name, text.replace("fence_system();", "")) for name, text in rules.library_text(rules.INCLUDE)]
    monkeypatch.setattr(rules, "library_text", lambda include: tuple(broken))
    done = tilescale("verify", RECIPE, "-w", "decode_64x8192", "--limit", "3", "--no-cache")
    assert done.exit_code == 1
    assert "3 of 3 schedules proved" in done.output
    assert "fence_before_signal: a signal follows stores without a system fence between (comm.cuh:" in done.output


def _names(text: str, worlds: tuple[int, ...]) -> list[str]:
    names = [entry["name"] for entry in tomllib.loads(text)["workload"]]
    return [f"{name} w{world}" for world in worlds for name in names]


@pytest.mark.parametrize("command", ["verify", "emulate"])
def test_interrupting_tells_what_was_finished(tilescale: Any, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    began: list[str] = []

    def once(target: Any, schedules: Any, *given: Any) -> dict[str, Any]:
        began.append(target.name)
        if len(began) > 1:
            raise KeyboardInterrupt
        return {"name": target.name, "schedules": 3, "proved": 3, "right": 3, "counterexample": None, "ok": True}

    monkeypatch.setattr(prove, f"_{command}", once)
    done = tilescale(command, RECIPE, "--limit", "3")
    assert done.exit_code == 130
    assert f"interrupted: {began[0]}: 3 of 3" in done.output


@pytest.mark.parametrize(
    "words", [("--worlds", "two"), ("--worlds", "9"), ("--worlds", "2", "-w", "nobody"), ("--worlds", "0")])
def test_worlds_that_are_none_are_usage_errors(tilescale: Any, words: tuple[str, ...]) -> None:
    assert tilescale("verify", RECIPE, *words).exit_code == 2


def test_a_counterexample_is_told_with_its_timeline(tilescale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = lowering.lower

    def wrong(*arguments: Any) -> Plan:
        plan = right(*arguments)
        return edit(plan, 1, find(plan, 1, Signal), drop)

    monkeypatch.setattr(lowering, "lower", wrong)
    done = tilescale("verify", RECIPE, "-w", "decode_64x8192", "--schedule", "overlap=none,direction=push", "--no-cache")
    assert done.exit_code == 1
    assert "counterexample after 0 proved" in done.output
    assert "deadlock: rank" in done.output
    assert "now for ever" in done.output


def test_a_failed_emulation_leaves_a_file_that_makes_it_again(tilescale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = emulating.emulate

    def wrong(*arguments: Any, **options: Any) -> Any:
        return replace(right(*arguments, **options), ok=False, report="planted")

    monkeypatch.setattr(emulating, "emulate", wrong)
    done = tilescale("emulate", RECIPE, "-w", "decode_64x8192", "--limit", "1", "--keep", "kept")
    assert done.exit_code == 1
    (path,) = Path("kept").iterdir()
    assert f"tilescale emulate --replay {path}" in done.output
    assert replay_file.read(path).report == "planted"
    again = tilescale("emulate", "--replay", str(path))
    assert again.exit_code == 0, again.output
    assert "right, conforming to the plan" in again.output


@pytest.mark.parametrize("damage", [b"\xff\x00", b"[" * 100_000, b"{}", b'{"format": 1'])
def test_a_damaged_replay_file_is_wrong_usage(tilescale: Any, tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "damaged.json").write_bytes(damage)
    done = tilescale("emulate", "--replay", "damaged.json")
    assert done.exit_code == 2, done.output
    assert "damaged.json is a replay file" in done.output


def test_a_replay_file_with_conditions_that_no_run_has_is_wrong_usage(tilescale: Any) -> None:
    spec = read(RECIPE).specs["decode_64x8192"]
    emulation = emulating.Emulation(False, "", "", "lazy", 0, 1)
    conditions = emulating.Conditions(late_rank=99)
    path = replay_file.write(Path(), spec, next(iter(space(spec))), emulation, conditions)
    done = tilescale("emulate", "--replay", str(path))
    assert done.exit_code == 2, done.output
    assert done.output.count("\n") == 1
    assert f"--replay: replay file {path}: late_rank of a run is an integer from -1 to 3; got: 99" in done.output


def test_a_folder_for_proofs_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(sys, "argv", ["tilescale", "verify", RECIPE, "--limit", "4"])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command sets another
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(SystemExit) as ended:
            main()
    said = capsys.readouterr()
    assert ended.value.code == 0
    assert "4 of 4 schedules proved" in said.out
    folder = tmp_path / "file" / "tilescale" / "proofs"
    assert said.err == (f"warning: proofs are not kept in {folder}: Not a directory; set XDG_CACHE_HOME to a folder that "
                        "can be written, or use --no-cache\n")


def test_progress_of_emulation_counts_runs(tilescale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bar, "LINE_EVERY_S", 0.0)
    emulation = emulating.Emulation(True, "right", "", "lazy", 0, 1)
    monkeypatch.setattr(emulating, "emulate", lambda *arguments, **options: emulation)
    done = tilescale("emulate", RECIPE, "-w", "decode_64x8192", "--limit", "2", "--seeds", "3")
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith("runs of")]
    assert lines[0] == "runs of decode_64x8192: 0 of 6, time left unknown, schedule 1 of 2, seed 0"
    assert [line.split(",")[0] for line in lines] == [f"runs of decode_64x8192: {done} of 6" for done in range(7)]
    assert lines[5].endswith("schedule 2 of 2, seed 2")


STEERING = "a\x1b[2J\nb\u202e"  # clears a terminal, begins a line, turns what follows around


@pytest.mark.parametrize("words", [
    ("space",), ("verify", "--limit", "1", "--no-cache"), ("verify", "--worlds", "2", "--limit", "1", "--no-cache"),
    ("verify", "-w", STEERING, "--limit", "1", "--no-cache"), ("emulate", "--limit", "1"), ("explain",),
    ("emit", "-w", "nothing"), ("verify", "-w", f"{STEERING}?"), ("tune", "--trials", "1", "--db", "x.db")])
def test_what_a_terminal_acts_on_is_printed_as_escapes(
    tilescale: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(bar, "LINE_EVERY_S", 0.0)
    text = Path(RECIPE).read_text().replace('"decode_64x8192"', json.dumps(STEERING))
    (tmp_path / "it.toml").write_text(text)
    done = tilescale(words[0], "it.toml", *words[1:])
    for line in done.output.splitlines():
        assert line.isprintable(), line
    assert "a\\x1b[2J\\nb\\u202e" in done.output, done.output


def test_a_replay_takes_all_from_its_file(tilescale: Any) -> None:
    done = tilescale("emulate", RECIPE, "--replay", "kept.json")
    assert done.exit_code == 2
    assert "--replay takes all from its file; got: RECIPE" in done.output


def test_a_workload_of_any_shipped_recipe(tilescale: Any) -> None:
    done = tilescale("verify", "--all", "-w", "decode_64x8192", "--limit", "1", "--no-cache")
    assert done.exit_code == 0, done.output
    assert "decode_64x8192: 1 of 1 schedules proved" in done.output
    unknown = tilescale("verify", "--all", "-w", "decode_64", "--limit", "1")
    assert unknown.exit_code == 2
    assert "one of" in unknown.output
    assert "decode_64x8192" in unknown.output


@pytest.mark.parametrize("worlds", ["0", "99999999999999999999999"])
def test_numbers_of_ranks_that_no_topology_has(tilescale: Any, worlds: str) -> None:
    done = tilescale("verify", RECIPE, "--worlds", worlds)
    assert done.exit_code == 2
    assert "from 1 to 1024" in done.output


@pytest.mark.parametrize("command", ["verify", "tune"])
def test_what_a_recipe_declares_is_no_option(tilescale: Any, command: str) -> None:
    done = tilescale(command, RECIPE, "--dtype", "float32")
    assert done.exit_code == 2
    assert "--dtype goes with --op; got: float32" in done.output


def test_brackets_in_brackets_are_no_recipe(tilescale: Any, tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("x=" + "[" * 5000)
    done = tilescale("verify", "deep.toml")
    assert done.exit_code == 2
    assert "deep.toml is TOML" in done.output


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream_is_no_failure(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tilescale", "verify", RECIPE, "-w", "decode_64x8192", "--limit", "1", "--no-cache"])
    monkeypatch.setattr(sys, closed, None)
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
