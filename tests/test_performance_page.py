"""docs/performance.md says what the committed results say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def test_the_page_is_that_of_the_results() -> None:
    command = [sys.executable, "benchmarks/performance.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def row(label: str, ours: float, peer: str, **peers: float) -> dict[str, Any]:
    times = {name.replace("__", "."): us for name, us in peers.items()}
    return {"label": label, "ours_us": ours, "theirs_us": times[peer], "ratio": times[peer] / ours, "peer": peer,
            "peers_us": times, "schedule": "s"}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The section of a table that has these rows."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import performance

    monkeypatch.setattr(performance, "RESULTS", tmp_path)

    def section(name: str, *rows: dict[str, Any]) -> list[str]:
        head = {"command": "python", "version": "v", "environment": {}, "geomean_ratio": 1.0, "min_ratio": 1.0}
        (tmp_path / f"{name}.json").write_text(json.dumps({**head, "rows": rows}))
        return list(performance._table(name))

    return section


def test_the_ratio_to_symmetric_memory_stands_beside_that_to_the_best_peer(page: Any) -> None:
    lines = page("fused_gemm_rs", row("gemm_rs mlp_down M=512 ranks=2", 10.0, "unfused", unfused=11.0, torch__symm_mem=20.0,
                                      torch__symm_mem__one_shot=15.0))
    assert "| workload | ours, us | peer, us | ratio | torch.symm_mem | peer | schedule |" in lines
    assert "| gemm_rs mlp_down M=512 ranks=2 | 10.0 | 11.0 | 1.100 | 1.500 | unfused | s |" in lines


def test_rows_that_were_not_measured_are_named(page: Any) -> None:
    label = "all_reduce 512 KB ranks=8"
    complete = page("all_reduce_small", row(label, 1.0, "p", p=2.0))
    lacking = page("all_reduce_small", row("all_reduce 8 KB ranks=2", 1.0, "p", p=2.0))
    assert not any("Not measured" in line and label in line for line in complete)
    assert any(line.startswith("Not measured: ") and label in line for line in lacking)
    named = next(line for line in page("gemm", {**row("", 1.0, "p", p=2.0), "label": "none"}) if "Not measured" in line)
    assert "llama-3-8b mlp_up 512x1792x4096" in named


def test_what_hides_least_comes_first_and_says_what_it_is_a_share_of(page: Any) -> None:
    rows = [{**row(name, ours, "unfused", unfused=unfused, compute_only=10.0), "hidden": hidden, "computing_is_larger": yes}
            for name, ours, unfused, hidden, yes in (
                ("well", 11.0, 20.0, 0.9, False), ("badly", 20.0, 40.0, 0.667, True), ("nothing", 5.0, 6.0, None, True))]
    lines = page("overlap", *rows)
    assert [line.split(" | ")[0] for line in lines if line.startswith("| ")][1:] == ["| badly", "| well", "| nothing"]
    assert "| badly | 20.0 | 40.0 | 2.000 | 0.667 | 10.0 | yes | unfused | s |" in lines
