"""benchmarks/beside.py: rows are written as they come, kept by a second run, and a row that fails ends nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tilescale.errors import RunnerError, TopologyError
from tilescale.runtime.baselines import Timing, names_for
from tilescale.runtime.measure import Measurement
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

ROOT = Path(__file__).parents[2]
OURS_US, PEER_US, BOUND_US, UNFUSED_US = 10.0, 14.0, 8.0, 9.0
BOUND = "compute_only"
ENVIRONMENT = {"gpu": "H200", "arch": "sm_90a", "power_cap_w": "700", "driver": "1", "nvrtc": "1", "torch": "1",
               "clock_policy": "default", "gpu_count": "1"}


class Runner:
    """Times are constants; `broken` rows raise in the race; all that raced with peers is in `raced`."""

    raced: list[str] = []
    broken: tuple[str, ...] = ()

    def __init__(self, topology: Topology, bounds: object = None) -> None:
        self._ranks, self.source, self.environment = topology.ranks, topology.source, ENVIRONMENT

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def prefetch(self, spec: Spec, schedules: Sequence[Schedule]) -> None:
        pass

    def measure(self, spec: Spec, schedules: Sequence[Schedule]) -> list[Measurement]:
        return [Measurement(schedule, "ok", self.source, ((OURS_US, OURS_US),) * self._ranks) for schedule in schedules]

    def race(self, spec: Spec, schedules: Sequence[Schedule], names: Sequence[str], rounds: int) -> list[Mapping[str, Any]]:
        if spec.label in self.broken:
            raise RunnerError("ranks live", "rank 1 is gone", "start them again")
        if names:  # else the finalists of a search do
            self.raced.append(spec.label)
        times = {schedule.digest: ((OURS_US,),) * self._ranks for schedule in schedules}
        known = {BOUND: BOUND_US, "unfused": UNFUSED_US}
        times |= {name: ((known.get(name, PEER_US),),) * self._ranks for name in names
                  if name != "torch.symm_mem.two_shot"}
        return [times] * rounds

    def baselines(self, spec: Spec, names: Sequence[str]) -> dict[str, Timing]:
        return {name: Timing(name, "launch_error", self.source, message="not here") for name in names}


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import beside as script

    return script


@pytest.fixture
def run(beside: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(beside, "GpuRunner", Runner)
    monkeypatch.setattr(beside, "ProcessPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(beside, "_foresee", lambda spec: ())
    monkeypatch.setattr(beside, "_round_trip", lambda topology: {"round_trip_us": 2.0})
    monkeypatch.setattr(beside.ts.Topology, "detect", lambda: Topology.named("8xH200-NVSwitch"))
    monkeypatch.setattr(Runner, "raced", [])
    monkeypatch.setattr(Runner, "broken", ())

    def once(*more: str) -> dict[str, Any]:
        words = ["-o", str(tmp_path / "table.json"), "--ranks", "2", "--trials", "2", *more]
        given = beside.arguments("", trials=2).parse_args(words)
        beside.run([beside.all_reduce_small(given.ranks)], given)
        found: dict[str, Any] = json.loads((tmp_path / "table.json").read_text())
        return found

    return once


def test_the_ratio_is_that_of_the_fastest_peer_and_what_cannot_run_is_named(run: Any) -> None:
    (row,) = run("--only", " 8 KB")["rows"]
    assert (row["ours_us"], row["theirs_us"], row["ratio"]) == (OURS_US, PEER_US, 1.4)
    assert row["peer"] == "torch.symm_mem.one_shot"
    assert row["peers_us"]["unfused"] == UNFUSED_US  # faster, and beside: it is a schedule of our own
    assert row["not_run"] == {"torch.symm_mem.two_shot": "not here"}
    assert row["round_trips"] == OURS_US / 2.0


def test_a_row_that_fails_is_written_and_the_others_are_measured(
    run: Any, beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "broken", ("all_reduce 4x4096 bfloat16 w2",))
    result = run()
    assert [row["label"] for row in result["rows"] if "error" in row] == ["all_reduce 32 KB ranks=2"]
    assert "rank 1 is gone" in next(row["error"] for row in result["rows"] if "error" in row)
    assert sum("ratio" in row for row in result["rows"]) == len(beside.MESSAGES) - 1
    assert result["min_ratio"] == 1.4


def test_a_second_run_measures_what_is_missing(run: Any, beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "broken", ("all_reduce 4x4096 bfloat16 w2",))
    run()
    monkeypatch.setattr(Runner, "broken", ())
    Runner.raced.clear()
    rows = run()["rows"]
    assert Runner.raced == ["all_reduce 4x4096 bfloat16 w2"]
    assert len(rows) == len({row["label"] for row in rows}) == len(beside.MESSAGES)
    assert all("ratio" in row for row in rows)


def test_without_a_gpu_nothing_is_made_ahead(run: Any, beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Topology:
        raise TopologyError("a GPU is here", "none")

    foreseen: list[Spec] = []
    monkeypatch.setattr(beside, "_foresee", foreseen.append)
    monkeypatch.setattr(beside.ts.Topology, "detect", absent)
    with pytest.raises(TopologyError, match="a GPU is here"):
        run()
    assert foreseen == []


def test_what_was_not_begun_is_dropped_where_ranks_do_not_start(
    run: Any, beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def foresee(spec: Spec) -> tuple[Schedule, ...]:
        foreseen.append(spec)
        time.sleep(0.2)
        return ()

    def absent(self: Runner) -> None:
        raise RunnerError("ranks start", "no MPS")

    foreseen: list[Spec] = []
    monkeypatch.setattr(beside, "_foresee", foresee)
    monkeypatch.setattr(Runner, "start", absent)
    with pytest.raises(RunnerError, match="ranks start"):
        run()
    assert len(foreseen) < len(beside.MESSAGES)


@pytest.mark.parametrize("words", [("--only", "9 KB"), ("--ranks", "3", "--only", "ranks=4")])
def test_rows_that_no_table_has_are_an_error(run: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(RunnerError, match=r"a row is named.*all_reduce 8 KB ranks="):
        run(*words)


def test_a_table_is_written_among_the_results_unless_told_elsewhere(beside: Any) -> None:
    given = beside.arguments("", trials=2).parse_args([])
    table = beside.all_reduce_small([2])
    assert beside._path(given, table, 1) == ROOT / "benchmarks" / "results" / "all_reduce_small.json"


SCRIPTS = ("all_reduce_small", "family_rows", "fused_ag_gemm", "fused_gemm_ar", "fused_gemm_rs", "overlap", "shared_gpu")


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_goes_wrong_is_a_line(name: str, tmp_path: Path) -> None:
    command = [sys.executable, f"benchmarks/{name}.py", "--ranks", "2", "--only", "nothing", "-o", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: a row is named; got: --only nothing")
    assert list(tmp_path.iterdir()) == []


def test_rows_of_other_sources_stay_until_they_are_measured_again(
    run: Any, beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside.common, "version", lambda: "before")
    run()
    monkeypatch.setattr(beside.common, "version", lambda: "after")
    result = run("--only", "512 KB")
    sources = {row["label"]: row["sources"] for row in result["rows"]}
    assert sources.pop("all_reduce 512 KB ranks=2") == result["version"] == "after"
    assert set(sources.values()) == {"before"}


def test_the_family_is_raced_with_all_operators_that_torch_has_for_it(beside: Any) -> None:
    rows = {row.label: row for row in beside.family([2, 8], placements=("ordinary", "symmetric")).rows}
    assert len(rows) == 2 * len(beside.MOVES) * len(beside.SIZES) * 2
    for label, row in rows.items():
        op, number, unit = label.split()[:3]
        sizes = row.spec.inputs[0].sizes
        assert row.spec.op == op
        assert sizes[0] * sizes[1] * 2 == int(number) * {"KB": 1 << 10, "MB": 1 << 20}[unit]
        assert row.spec.placement == ("symmetric" if label.endswith("symmetric") else "ordinary")
        assert row.bounds == (beside.BOUNDS if number in ("16", "64") and unit == "MB" else beside.SMALL_BOUNDS)
    peers = {row.spec.op: set(names_for(row.spec)) - {"unfused"} for row in rows.values()}
    copies, reads, two = "torch.symm_mem", "torch.symm_mem.one_shot", "torch.symm_mem.two_shot"
    assert peers == {"all_gather": {copies}, "reduce_scatter": {copies, reads}, "all_reduce": {reads, two}}


def test_a_row_without_a_peer_that_runs_says_why(run: Any, beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "names_for", lambda spec: ("unfused", "torch.symm_mem.two_shot"))
    (row,) = run("--only", " 8 KB")["rows"]
    assert "a row has a peer that runs" in row["error"]
    assert "torch.symm_mem.two_shot" in row["error"]
    assert "not here" in row["error"]


def test_a_group_of_ranks_times_rows_of_its_bounds(
    beside: Any, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    class Bounded(Runner):
        def __init__(self, topology: Topology, bounds: object = None) -> None:
            super().__init__(topology, bounds)
            made.append(bounds)

    monkeypatch.setattr(beside, "GpuRunner", Bounded)
    given = beside.arguments("", trials=2).parse_args(
        ["-o", str(tmp_path / "family.json"), "--ranks", "2", "--trials", "2"])
    beside.run([beside.family([2], ["all_gather"], ["64 KB", "1 MB", "16 MB"])], given)
    assert made == [beside.SMALL_BOUNDS, beside.BOUNDS]
    rows = json.loads((tmp_path / "family.json").read_text())["rows"]
    assert [row["label"] for row in rows] == [f"all_gather {size} ranks=2" for size in ("64 KB", "1 MB", "16 MB")]
    assert {row["peer"] for row in rows} == {"torch.symm_mem"}


def test_every_table_has_its_section_on_the_page(beside: Any) -> None:
    import performance

    assert set(beside.TABLES) <= set(performance.TITLES)


def test_the_scale_model_says_how_much_is_hidden(beside: Any) -> None:
    row = {"ours_us": 11.0, "peers_us": {"unfused": 20.0, beside.BOUND: 10.0}}
    beside.overlap([4]).finish(row)
    assert row["hidden"] == 0.9
    assert row["computing_is_larger"] is False


def test_a_plain_schedule_that_a_search_timed_counts_as_a_peer_of_the_page(beside: Any) -> None:
    import performance

    def row(label: str, tried: dict[str, float | None]) -> dict[str, Any]:
        return {"label": label, "ours_us": 100.0, "theirs_us": 120.0, "peers_us": {"unfused": 130.0, "compute_only": 90.0},
                "hidden": 0.75, "tried_us": tried}

    some = {"peer_copy pull none library": 110.0, "peer_copy push none library b8": None, "tma push fused generated": 1.0}
    rows = [row("one", some), row("two", {})]
    told = "".join(performance._against_plain(rows))
    assert told.startswith("In 1 rows the search timed a plain schedule")
    assert "the geometric mean is 1.149, the worst row 1.100" in told  # of 110 and 120 us beside 100
    assert "computing is larger in 2 rows, in which 0.50 to 0.75 are hidden, at least 0.85 in 0" in told
    assert list(performance._against_plain(rows[1:])) == []
