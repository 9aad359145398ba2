"""The table of the family: what it counts, and where it says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import perfdb
from tilescale import canon
from tilescale.schedules.schedule import Schedule
from tilescale.spec.operation import OPERATIONS

ROOT = Path(__file__).parents[2]
DONE = Schedule(overlap="none", compute="generated", num_comm_blocks=4)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script, with a stand-in for the emulator that finds the last schedule it is given wrong where asked to."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import family_table

    (tmp_path / "results").mkdir()
    monkeypatch.setattr(family_table, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(family_table, "emulate", lambda spec, schedule, seed: SimpleNamespace(ok=True, report=""))
    return family_table


def run(table: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    monkeypatch.setattr(sys, "argv", ["family_table.py", "--op", "shift", "--worlds", "2,3", "-o", str(folder / "t.md"),
                                      *options])
    code = table.main()
    return code, json.loads((folder / "t.json").read_text()), (folder / "t.md").read_text()


def test_every_operation_with_kernels_is_in_the_sample(table: Any) -> None:
    assert set(table.WORKLOADS) == {operation.name for operation in OPERATIONS if operation.kernels}
    for op in table.WORKLOADS:
        for large in (False, True):
            assert {spec.op for spec in table.specs(op, (4,), large)} == {op}  # of which a mesh can be made


def test_rows_count_schedules_proofs_and_emulations(table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, found, text = run(table, monkeypatch, tmp_path)
    assert code == 0
    rows = {(row["transport"], row["overlap"]): row for row in found["rows"]}
    assert set(rows) == {(transport, overlap) for transport in ("copy_engine", "peer_copy", "tma")
                         for overlap in ("none", "fused")}
    for row in rows.values():
        assert (row["op"], row["algorithm"], row["measured"], row["failures"]) == ("shift", "direct", {}, [])
        assert row["proved"] == row["verified"] > 0
        assert row["emulated_right"] == row["emulated"] > 0
        assert row["left_out"] == 0
        assert (row["smallest"], row["largest"]) == ("256x24", "6144x2048")
    line = next(line for line in text.splitlines() if line.startswith("| shift | tma | direct | none |"))
    assert line.endswith(f"| none | {rows['tma', 'none']['feasible']} | 6 of 6 | 3 of 3 | 0 | - | 256x24 | 6144x2048 |")


def test_trials_of_a_database_are_counted_by_source(
        table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = perfdb.ScheduleKey(digest=DONE.digest, label=DONE.label, document=canon.dumps(DONE))
    workload = perfdb.WorkloadKey("w", "shift", "99999x2048", "bfloat16", 4, "shift")
    topology = perfdb.TopologyKey("t", "4xH200", "real", 4, "H200")
    environment = perfdb.EnvironmentKey(
        gpu="H200", arch="sm_90a", power_cap_w=700, driver="1", nvrtc="1", nccl="1", torch="1", gpu_count=4)
    with perfdb.open_database(tmp_path / "perf.db") as database:
        for source, us in (("measured", 10.0), ("measured", 11.0), ("measured_shared_gpu", 12.0), ("measured", None)):
            database.record(perfdb.TrialRecord(workload, topology, environment, key, source=source, value_us=us,
                                               status="ok" if us else "timeout"))
    _, found, text = run(table, monkeypatch, tmp_path, "--db", str(tmp_path / "perf.db"))
    row = next(row for row in found["rows"] if (row["transport"], row["overlap"]) == ("peer_copy", "none"))
    assert row["measured"] == {"measured": 2, "measured_shared_gpu": 1}
    assert row["largest"] == "99999x2048"
    assert "measured 2, measured_shared_gpu 1" in text


def test_rows_of_results_are_counted_by_what_their_labels_say(
        table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = {"workload": "shift 7x7 bfloat16 w4", "small": "ok", "whole": "ok"}
    rows = [{**ran, "schedule": "tma push fused generated c64 b8", "topology": "scale_model"},
            {**ran, "schedule": "tma push fused generated c64 b8", "topology": "shared_gpu", "whole": "timeout"},
            {"workload": "all_reduce+bias 9x9 bfloat16 w4", "schedule": "peer_copy push one_shot none generated b8",
             "ratio": 1.0, "source": "measured_shared_gpu"},
            {"layer": "x", "m": 1, "n": 2, "k": 3, "schedule": "peer_copy push none generated 64x64x64s3g8", "ratio": 1.0},
            {"name": "no schedule", "ratio": 1.0}]
    label = "ag_gemm 8x8x8 bfloat16 w2"
    raced = {"up": {"label": label, "raced": "copy_engine push ring none library", "raced_us": {"tilescale": 1.0}},
             "down": {"label": label, "raced": "", "raced_us": None}}
    (tmp_path / "results" / "a.json").write_text(json.dumps({"rows": rows}))
    several = {"source": "measured", "parts": {"tune": {"workloads": raced}}}
    (tmp_path / "results" / "b.json").write_text(json.dumps(several))
    assert list(table.in_results(tmp_path / "results")) == [
        (("shift", "tma", "direct", "fused"), "7x7", "measured_scale_model", 1),
        (("all_reduce", "peer_copy", "one_shot", "none"), "9x9", "measured_shared_gpu", 1),
        (("gemm", "-", "-", "generated"), "1x2x3", "measured", 1),
        (("ag_gemm", "copy_engine", "ring", "none"), "8x8x8", "measured", 1)]
    _, found, _ = run(table, monkeypatch, tmp_path)
    measured = {(row["transport"], row["overlap"]): row["measured"] for row in found["rows"]}
    assert measured.pop(("tma", "fused")) == {"measured_scale_model": 1}
    assert set(map(str, measured.values())) == {"{}"}
    assert {row["smallest"] for row in found["rows"] if row["measured"]} == {"7x7"}


def test_committed_results_are_read(table: Any) -> None:
    sources = {source for _, _, source, _ in table.in_results(ROOT / "benchmarks" / "results")}
    assert sources == {"measured", "measured_scale_model", "measured_shared_gpu"}


def test_a_second_run_counts_what_is_missing(table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counted: list[str] = []
    count = table.count
    monkeypatch.setattr(table, "count", lambda op, *rest: (counted.append(op), count(op, *rest))[1])
    _, first, text = run(table, monkeypatch, tmp_path)
    _, again, same = run(table, monkeypatch, tmp_path)
    assert (again, same) == (first, text)
    run(table, monkeypatch, tmp_path, "--op", "broadcast", "--jobs", "1")
    assert counted == ["shift", "broadcast"]
    assert {row["op"] for row in json.loads((tmp_path / "t.json").read_text())["rows"]} == {"shift", "broadcast"}
    run(table, monkeypatch, tmp_path, "--worlds", "2")  # other worlds, another table
    assert counted == ["shift", "broadcast", "shift"]


def test_what_has_no_time_is_counted(table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, found, text = run(table, monkeypatch, tmp_path, "--seconds", "-1")
    assert code == 0
    for row in found["rows"]:
        assert (row["verified"], row["emulated"]) == (0, 0)
        assert row["left_out"] >= 6
        assert row["feasible"] > 0
    assert "| 0 of 0 | 0 of 0 | 9 |" in text


def test_block_matrices_are_emulated_once_a_world(table: Any) -> None:
    counted = table.Count("summa", (2, 3, 4, 8))
    jobs = [job for _, job in counted.jobs()]
    ran: list[tuple[int, str, str]] = []
    counted.prove = lambda row, spec, schedule: None
    counted.run = lambda row, spec, schedule: ran.append((spec.world, str(spec.attributes), schedule.label))
    for job in jobs:
        job()
    assert len(ran) == len(set(ran)) > 0
    assert {world for world, _, _ in ran} == {4, 8}


def test_what_is_wrong_fails_the_command(table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(table, "emulate", lambda spec, schedule, seed: SimpleNamespace(ok=False, report="row 3 differs"))
    code, found, _ = run(table, monkeypatch, tmp_path)
    assert code == 1
    assert all(row["emulated_right"] == 0 and "row 3 differs" in row["failures"] for row in found["rows"])
