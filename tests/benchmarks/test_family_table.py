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
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with a stand-in for the emulator that finds the last schedule it is given wrong where asked to."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import family_table

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
        assert {spec.op for spec, _ in table.specs(op, (4,))} == {op}  # of which a mesh can be made


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
        assert (row["smallest"], row["largest"]) == ("256x24", "6144x2048")
    line = next(line for line in text.splitlines() if line.startswith("| shift | tma | direct | none |"))
    assert line.endswith(f"| none | {rows['tma', 'none']['feasible']} | 6 of 6 | 4 of 4 | - | 256x24 | 6144x2048 |")


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


def test_what_is_wrong_fails_the_command(table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(table, "emulate", lambda spec, schedule, seed: SimpleNamespace(ok=False, report="row 3 differs"))
    code, found, _ = run(table, monkeypatch, tmp_path)
    assert code == 1
    assert all(row["emulated_right"] == 0 and "row 3 differs" in row["failures"] for row in found["rows"])
