"""The command `tilescale`: what it prints where, and its exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from process_support import SEARCH_PATH, started
from support import ag_gemm
from typer.testing import CliRunner, Result

import tilescale
from tilescale.cli import app
from tilescale.runtime import emulate as emulate_module
from tilescale.runtime import replay
from tilescale.runtime.emulate import Emulation
from tilescale.schedules.space import Space
from tilescale.schedules.story import Counterexample, Place, Proof
from tilescale.spec import detect
from tilescale.tuner.recipe import read
from tilescale.tuner.record_space import record

RECIPE = """
title = "Small"
[topology]
kind = "scale_model"
name = "8xH200-NVSwitch"
ranks = 2
[[workload]]
name = "up"
op = "ag_gemm"
a = { shape = [512, 256], dtype = "bfloat16", view = "FullRow" }
b = { shape = [256, 512], dtype = "bfloat16", view = "FullCol", order = "col" }
out = "FullCol"
[[workload]]
name = "tokens"
x = { shape = [512, 256], dtype = "bfloat16", view = "FullRow" }
to = "Replicate"
[space]
transport = ["peer_copy"]
chunk_rows = [128, 256]
num_comm_blocks = [2, 4]
[tune]
trials = 12
"""
QUICK = ["--op", "ag_gemm", "--shape", "512x512x256", "--ranks", "2"]


REAL_EMULATE = emulate_module.emulate


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is compiled and proved is kept for all tests here."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own to work in, without a GPU, with the recipe, and a stand-in for the emulator."""
    monkeypatch.setattr(emulate_module, "emulate", lambda *arguments, **options: Emulation(
        True, "stand-in", "small", "lazy", 0, 1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(detect, "model_at_hand", lambda: None)
    (tmp_path / "small.toml").write_text(RECIPE)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def record_spaces() -> None:
    recipe = read("small.toml")
    for spec in recipe.specs.values():
        record(spec, Space(spec, dict(recipe.restrict))).save(replay.user_folder())


def tuned(*more: str) -> Any:
    done = run("tune", "small.toml", "--db", "perf.db", "--json", *more)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["jobs"][0]


# --- tune -------------------------------------------------------------------------------------------------------------


def test_tune_says_where_times_come_from_and_what_became_of_the_winner() -> None:
    record_spaces()
    done = run("tune", "small.toml", "-w", "tokens", "--db", "perf.db")
    assert done.exit_code == 0, done.output
    for text in ("no GPU is at hand", "times are predicted by the analytic model", "fastest schedules (predicted)",
                 "chosen: ", "baseline peer_copy: ", "proof: proved", "emulation: stand-in", "bundle: ",
                 "the same command answers from the database"):
        assert text in done.stdout, text
    assert (Path("bundle") / "small" / "manifest.json").is_file()
    assert run("bundle", "check", "bundle/small").exit_code == 0


def test_tune_again_measures_nothing() -> None:
    record_spaces()
    first, second = tuned("--no-bundle"), tuned("--no-bundle")
    assert [result["evaluated"] for result in first["results"]] == [12, 12]
    assert [result["evaluated"] for result in second["results"]] == [0, 0]
    assert "measured" not in first["results"][0]  # nothing was
    assert {trial["origin"] for trial in first["results"][0]["trials"]} == {"evaluated"}
    for one, other in zip(first["results"], second["results"], strict=True):
        assert (one["best"], one["best_us"]) == (other["best"], other["best_us"])
        assert {trial["source"] for trial in other["trials"]} == {"predicted"}
    assert first["results"][0]["baselines_us"].keys() == {"unfused", "chunked"}


def test_tune_options_come_before_the_recipe() -> None:
    record_spaces()
    job = tuned("--trials", "3", "--seed", "9", "--strategy", "random", "-w", "up", "--no-bundle")
    assert [(result["name"], result["candidates"], result["seed"]) for result in job["results"]] == [("up", 3, 9)]


def test_tune_without_times_fails_with_one_message() -> None:
    done = run("tune", "small.toml", "--db", "perf.db")
    assert done.exit_code == 1
    assert "tilescale space small.toml --record" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_winner_that_is_not_right_is_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Emulation(False, "row 3 differs", "small", "lazy", 0, 1)
    monkeypatch.setattr(emulate_module, "emulate", lambda *arguments, **options: wrong)
    record_spaces()
    done = run("tune", "small.toml", "-w", "tokens", "--db", "perf.db")
    assert done.exit_code == 1
    assert "row 3 differs" in done.stdout
    assert "nothing was exported" in done.stderr
    assert not Path("bundle").exists()


def test_tune_goes_on_without_a_compiler_for_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilescale.errors import MissingDependency

    def missing(*arguments: object, **options: object) -> Emulation:
        raise MissingDependency("emulation needs a C++ compiler", "no g++", "install one")

    monkeypatch.setattr(emulate_module, "emulate", missing)
    record_spaces()
    done = run("tune", "small.toml", "-w", "tokens", "--db", "perf.db", "--no-bundle")
    assert done.exit_code == 0
    assert "not emulated: emulation needs a C++ compiler; got: no g++; install one" in done.stdout


def test_tune_of_a_model_names_what_it_lacks() -> None:
    done = run("tune", "--model", "llama-3-70b", "--tp", "8", "--m", "64", "--db", "perf.db")
    assert done.exit_code == 1
    for op, n, k in (("ag_gemm", 28672, 8192), ("ag_gemm", 10240, 8192), ("gemm_rs", 8192, 8192)):  # and how to record it
        assert f"{op} 64x{n}x{k} bfloat16 w8" in done.stderr
        assert f"tilescale space --op {op} --shape 64x{n}x{k} --ranks 8 --record" in done.stderr
    assert not Path("perf.db").exists()


def test_sigterm_keeps_what_is_finished_and_exits_with_130(here: Path) -> None:
    record_spaces()
    # A replay that tells and then stands still at its fifth measurement.
    script = """
import sys, time
from tilescale.runtime.replay import ReplayRunner
from tilescale.cli import main
plain = ReplayRunner.measure
def slow(self, spec, schedules):
    if self.measured == 5:
        print("standing", flush=True)
        time.sleep(60)
    return plain(self, spec, schedules)
ReplayRunner.measure = slow
sys.argv = ["tilescale", "tune", "small.toml", "--db", "perf.db"]
main()
"""
    with started(script) as process:
        assert process.stdout is not None
        while (line := process.stdout.readline()) and line != "standing\n":
            pass
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130, err
    assert "what is finished is kept in perf.db (up: 5 candidates)" in err
    assert "Traceback" not in err
    assert tuned("--no-bundle")["results"][0]["evaluated"] == 7


# --- the other commands -----------------------------------------------------------------------------------------------


def test_space_counts_and_lists() -> None:
    found = json.loads(run("space", "small.toml", "--list", "--json").stdout)["workloads"]
    for facts in found:
        assert facts["size"] == facts["feasible"] + sum(entry["count"] for entry in facts["rejected"])
        assert len(facts["schedules"]) == facts["feasible"]
    text = run("space", *QUICK).stdout
    assert "feasible schedules" in text
    assert "a library call cannot wait inside" in text


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_space_without_a_schedule_ends_as_a_failure_and_shows_the_rules(form: list[str]) -> None:
    recipe = Path("small.toml").read_text().replace("bfloat16", "float8_e4m3fn").replace('order = "col"', 'order = "row"')
    Path("none.toml").write_text(recipe)
    done = run("space", "none.toml", "-w", "up", *form)
    assert done.exit_code == 1, done.output
    assert "up: no schedule is feasible" in done.output
    assert "declare B with order='col'" in done.output


def test_space_records_what_tune_replays() -> None:
    done = run("space", "small.toml", "-w", "tokens", "--record", "--spaces", "here")
    assert done.exit_code == 0, done.output
    assert run("tune", "small.toml", "-w", "tokens", "--db", "perf.db", "--no-bundle").exit_code == 1
    tune = ("tune", "small.toml", "-w", "tokens", "--db", "perf.db", "--no-bundle", "--spaces", "here")
    assert run(*tune).exit_code == 0


@pytest.mark.parametrize("arguments", [
    ["small.toml", "-w", "tokens"], ["--op", "all_gather", "--shape", "512x256", "--ranks", "2", "--dtype", "float16"],
    ["--op", "ag_gemm", "--shape", "128x256x64", "--topology", "scale_model:8xH100-NVSwitch", "--spaces", "my spaces"]])
def test_the_command_that_an_unrecorded_shape_asks_for_makes_tune_work(arguments: list[str]) -> None:
    if "--spaces" in arguments:
        Path(arguments[-1]).mkdir()
    tune = ["tune", *arguments, "--db", "perf.db", "--no-bundle", "--trials", "2"]
    first = run(*tune)
    assert first.exit_code == 1
    command = first.stderr.strip().rpartition("tune again: ")[2]
    assert run(*shlex.split(command)[1:]).exit_code == 0, command
    done = run(*tune)
    assert done.exit_code == 0, done.output


def test_tune_says_what_the_times_are_how_to_look_and_what_the_bundle_is_for() -> None:
    record_spaces()
    done = run("tune", "small.toml", "-w", "tokens", "--db", "perf.db")
    assert "evaluated now (predicted)" in done.stdout
    assert "measured now" not in done.stdout
    assert "predicted us" not in done.stdout  # the column would be the same again
    assert "perfdb best --source predicted --db perf.db" in done.stdout
    assert "for measuring, not for serving" in done.stdout
    space = replay.find_recorded(read("small.toml").spec("tokens"))
    assert space is not None
    replay.RecordedSpace.of(space.spec, "measured_scale_model", space.rows).save(replay.user_folder())
    again = run("tune", "small.toml", "-w", "tokens", "--db", "perf.db", "--no-bundle")
    assert "evaluated now (replayed)" in again.stdout
    assert "predicted us" in again.stdout
    assert "perfdb best --source replayed --db perf.db" in again.stdout
    assert "for serving" not in again.stdout


def test_an_interruption_before_any_time_says_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    record_spaces()

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(replay.ReplayRunner, "measure", interrupted)
    done = run("tune", "small.toml", "-w", "tokens", "--db", "perf.db")
    assert done.exit_code == 130
    assert "interrupted: tokens: nothing was finished; perf.db keeps what it held" in done.stderr


def test_explain_a_schedule() -> None:
    facts = json.loads(run("explain", *QUICK, "-s", "overlap=fused,transport=tma", "--json").stdout)
    assert facts["schedule"]["knobs"]["overlap"] == "fused"
    assert sum(facts["prediction"]["parts_us"].values()) == pytest.approx(facts["prediction"]["us"])
    assert facts["prediction"]["source"] == "predicted"
    assert facts["proof"]["ok"]
    digest = facts["schedule"]["digest"]
    text = run("explain", *QUICK, "-s", digest[:12]).stdout
    for word in (digest, "longest path", "comm.0", "proved", "tilescale_fused"):
        assert word in text


def test_explain_a_constraint_and_an_infeasible_choice() -> None:
    facts = json.loads(run("explain", *QUICK, "--constraint", "shared_memory", "--json").stdout)
    assert facts["rejected"] > 0
    assert facts["rule"] == "the stages fit the shared memory of a block"
    done = run("explain", *QUICK, "-s", "overlap=fused,compute=library")
    assert done.exit_code == 1
    assert "library_not_fused (a library call cannot wait inside)" in done.stderr


def test_verify_proves_all_or_shows_a_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("verify", "small.toml", "--limit", "12", "--json")
    assert done.exit_code == 0, done.output
    assert [facts["proved"] for facts in json.loads(done.stdout)["workloads"]] == [12, 12]

    from tilescale.schedules import verify

    story = Counterexample("race", "nothing orders these two", (Place(0, "copy"),), timeline="rank 0 puts")
    monkeypatch.setattr(verify, "verify", lambda *arguments, **options: Proof(False, story, ""))
    failed = run("verify", "small.toml")
    assert failed.exit_code == 1
    for text in ("race: nothing orders these two", "rank 0 launch copy", "rank 0 puts", "up: counterexample after 0"):
        assert text in failed.stdout
    assert "tokens" not in failed.stdout  # it stops at the first


def test_emulate_runs_the_text_or_shows_what_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate_module, "emulate", REAL_EMULATE)
    done = run("emulate", "small.toml", "-w", "tokens", "--seeds", "1")
    assert done.exit_code == 0, done.output
    assert "1 of 1 schedules emulated right, 1 runs each" in done.stdout
    assert "right, conforming to the plan" in done.stdout

    seen: list[int] = []

    def third_is_wrong(spec: object, schedule: object, seed: int) -> Emulation:
        seen.append(seed)
        return Emulation(len(seen) != 3, f"report {len(seen)}", "small", "lazy", seed, 1)

    monkeypatch.setattr(emulate_module, "emulate", third_is_wrong)
    failed = run("emulate", "small.toml", "-w", "tokens", "--all", "--seeds", "2")
    assert failed.exit_code == 1
    assert "report 3" in failed.stdout
    assert seen == [0, 1, 0]


def test_emit_prints_the_text_and_writes_the_program(here: Path) -> None:
    text = run("emit", *QUICK, "-s", "overlap=fused,transport=tma")
    assert "struct Config" in text.stdout
    assert "schedule" in text.stderr  # what was chosen; stdout is the text alone
    assert run("emit", *QUICK, "-s", "overlap=fused,transport=tma", "-o", "out").exit_code == 0
    program = json.loads((here / "out" / "program.json").read_text())
    assert program == json.loads(run("emit", *QUICK, "-s", "overlap=fused,transport=tma", "--json").stdout)
    assert len(list((here / "out").glob("*.cu"))) == len(program["kernels"])


def test_compile_prints_binaries() -> None:
    done = run("compile", *QUICK, "-s", "overlap=fused,transport=peer_copy", "--json")
    assert done.exit_code == 0, done.output
    (binary,) = json.loads(done.stdout)["binaries"]
    assert (binary["arch"], binary["spill_bytes"]) == ("sm_90a", 0)


def test_export_and_bundle_commands() -> None:
    record_spaces()
    tuned("--no-bundle")
    done = run("export", "small.toml", "-w", "tokens", "-o", "bundle", "--db", "perf.db", "--json")
    assert done.exit_code == 0, done.output
    (operation,) = json.loads(done.stdout)["operations"]
    assert operation["source"] == "predicted"
    checked = run("bundle", "check", "bundle")
    assert checked.exit_code == 0
    assert "not checked" in checked.stdout
    shown = json.loads(run("bundle", "show", "bundle", "--json").stdout)
    assert [entry["name"] for entry in shown["operations"]] == ["tokens"]
    assert "predicted" in run("bundle", "show", "bundle").stdout
    victim = next(Path("bundle").glob("tables/*"))
    victim.unlink()
    broken = run("bundle", "check", "bundle")
    assert broken.exit_code == 1
    assert victim.name in broken.stdout


def test_export_without_a_database_is_wrong_usage_and_without_rows_a_failure() -> None:
    assert run("export", "small.toml", "-o", "bundle", "--db", "nothing.db").exit_code == 2
    assert not Path("nothing.db").exists()
    record_spaces()
    tuned("--no-bundle", "-w", "up")
    done = run("export", "small.toml", "-o", "bundle", "--db", "perf.db")
    assert done.exit_code == 1
    assert "tune them first" in done.stderr


def test_topology_lists_and_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = json.loads(run("topology", "--json").stdout)
    assert listed["here"] == "no GPU is at hand"
    assert "8xH200-NVSwitch" in [facts["name"] for facts in listed["topologies"]]
    shown = json.loads(run("topology", "scale_model:8xH200-NVSwitch", "--ranks", "4", "--json").stdout)
    assert (shown["ranks"], shown["times_are"]) == (4, "measured_scale_model")
    assert "8xH100-NVSwitch" in run("topology", "8xH100-NVSwitch").stdout


# --- mistakes ---------------------------------------------------------------------------------------------------------

WRONG = [
    (["space"], "a command works on a recipe or on --op"),
    (["space", "small.toml", "--op", "ag_gemm"], "got: both"),
    (["space", "nowhere.toml"], "No such file"),
    (["space", "small.toml", "-w", "upp"], "did you mean 'up'?"),
    (["space", "small.toml", "--ranks", "4"], "--ranks goes with --op"),
    (["space", "--op", "ag_gem", "--shape", "1x1x1"], "did you mean 'ag_gemm'?"),
    (["space", "--op", "ag_gemm"], "--op needs --shape"),
    (["space", "--op", "ag_gemm", "--shape", "64x64"], "--shape of a matmul is MxNxK"),
    (["space", "--op", "ag_gemm", "--shape", "a"], "sizes joined by x"),
    (["space", *QUICK, "--dtype", "bf16"], "a dtype is known"),
    (["space", *QUICK, "--topology", "8xH200"], "did you mean '8xH200-NVSwitch'?"),
    (["space", "--op", "moe_dispatch", "--shape", "512x512"], "declare it in a recipe, as recipes/moe_*"),
    (["emit", "small.toml"], "choose with --workload: up, tokens"),
    (["explain", *QUICK, "-s", "transprt=tma"], "did you mean 'transport'?"),
    (["explain", *QUICK, "-s", "block_m=96"], "block_m is one of"),
    (["explain", *QUICK, "-s", "depth=1,depth=2"], "names a knob once"),
    (["explain", *QUICK, "--constraint", "shared"], "--constraint is known"),
    (["tune"], "tune works on RECIPES, on --model or on --op"),
    (["tune", "small.toml", "--strategy", "modle", "--db", "x.db"], "did you mean 'model'?"),
    (["tune", "--model", "llama"], "did you mean"),
    (["topology", "8xH200"], "did you mean"),
    (["emit", *QUICK, "-s", "zzzz"], "got: 'zzzz'"),
    (["tune", "small.toml", "--db", "."], "is a folder"),
    (["tune", "small.toml", "--db", "small.toml"], "must be a SQLite database"),
    (["tune", "small.toml", "--db", "mysql://x"], "SQLite or PostgreSQL"),
    (["tune", "small.toml", "--db", "small.toml/x.db"], "small.toml is a file"),
    (["export", "small.toml", "-o", "b", "--db", "small.toml"], "must be a SQLite database"),
    (["tune", "small.toml", "--export", "small.toml"], "is something else"),
    (["tune", "small.toml", "--export", "/proc/x"], "can be written"),
    (["emit", *QUICK, "-o", "/proc/x"], "can be written"),
    (["emit", *QUICK, "-o", "small.toml"], "small.toml is a file"),
    (["space", "small.toml", "--record", "--spaces", "/proc"], "can be written"),
    (["space", "small.toml", "--spaces", "there"], "--spaces goes with --record"),
    (["tune", "small.toml", "--spaces", "there"], "--spaces names a folder"),
    (["emulate", "small.toml", "--keep", "/proc/x"], "can be written"),
    (["report", "-o", "/proc/x.html"], "can be written"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=[" ".join(case[0])[:40] for case in WRONG])
def test_wrong_usage_is_one_message_and_exit_2(arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments", [
    ["space", "--nothing"], ["nothing"], ["tune", "small.toml", "--trials", "0"], ["space", *QUICK[:-1], "0"],
    ["topology", "8xH200-NVSwitch", "--ranks", "0"], ["tune", "--model", "llama-3-70b", "--tp", "0"]])
def test_wrong_options_exit_with_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_nothing_is_wrapped_or_cut_when_piped() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tilescale.cli", "space", *QUICK, "--list"], capture_output=True, text=True, check=True,
        env={**os.environ, "COLUMNS": "20", "PYTHONPATH": SEARCH_PATH})
    schedules = ag_gemm((512, 512, 256), ranks=2)
    lines = done.stdout.splitlines()
    for schedule in list(Space(schedules))[::50]:
        assert f"{schedule.digest}  {schedule.label}" in lines
    assert not [line for line in lines if line != line.rstrip() or "…" in line]


# --- the operating system ---------------------------------------------------------------------------------------------


def shell(command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": SEARCH_PATH, "TILESCALE": f"{sys.executable} -m tilescale"}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)


def test_a_full_disk_is_one_message() -> None:
    done = shell("$TILESCALE space small.toml --list > /dev/full")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the output can be used; got: No space left on device; free some space")
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_leaves_is_no_error() -> None:
    done = shell("set -o pipefail; $TILESCALE space small.toml --list | head -n 1")
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout.startswith("up: ")


def test_what_the_system_refuses_in_the_middle_names_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/where")

    monkeypatch.setattr(Path, "mkdir", refused)
    done = run("emit", *QUICK, "-s", "overlap=fused,transport=tma", "-o", "out")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("error: /some/where can be used; got: Permission denied; choose a place")


def test_version_and_module() -> None:
    done = shell("$TILESCALE --version")
    assert (done.returncode, done.stdout) == (0, f"tilescale {tilescale.__version__}\n")


def test_nothing_is_recorded_where_nothing_is_feasible(here: Path) -> None:
    done = run("space", "--op", "ag_gemm", "--shape", "64x64x64", "--ranks", "3", "--record", "--spaces", "there")
    assert done.exit_code == 1
    assert "break even_columns" in done.stderr
    assert not list(here.glob("there/*"))
