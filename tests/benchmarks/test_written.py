"""benchmarks/written.py: rows are joined by what they are called, and each names the sources it was measured with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import written

    return written


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_row_is_in_the_file_when_it_is_added_and_a_second_run_goes_on(script: Any, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "table.json"
    table = script.Written(path, {"name": "t", "version": "a"})
    table.add({"label": "x", "ratio": 2.0})
    assert read(path)["rows"] == [{"label": "x", "ratio": 2.0, "sources": "a"}]
    again = script.Written(path, {"name": "t", "version": "a"})
    assert again.done == {("x",)}
    again.add({"label": "y", "ratio": 0.5})
    assert read(path) == {"name": "t", "version": "a", "geomean_ratio": 1.0, "min_ratio": 0.5, "rows": [
        {"label": "x", "ratio": 2.0, "sources": "a"}, {"label": "y", "ratio": 0.5, "sources": "a"}]}
    assert not list(path.parent.glob("*.new"))


def test_a_row_that_failed_replaces_none_that_did_not(script: Any, tmp_path: Path) -> None:
    table = script.Written(tmp_path / "t.json", {"version": "a"})
    table.add({"label": "x", "error": "no"})
    assert table.done == set()
    table.add({"label": "x", "ratio": 1.0})
    table.add({"label": "x", "error": "no"})
    assert [row.get("ratio") for row in read(tmp_path / "t.json")["rows"]] == [1.0]


@pytest.mark.parametrize("keep", [True, False])
def test_rows_of_other_sources_stay_where_that_is_asked_for(script: Any, tmp_path: Path, keep: bool) -> None:
    path = tmp_path / "t.json"
    rows = [{"m": 1, "n": 1, "ratio": 1.0}, {"m": 1, "n": 2, "ratio": 1.0, "sources": "oldest"},
            {"m": 1, "n": 3, "ratio": 1.0, "sources": "new"}]
    path.write_text(json.dumps({"version": "old", "rows": rows}))
    table = script.Written(path, {"version": "new"}, ("m", "n"), keep_older=keep)
    assert table.done == {(1, 3)}
    table.add({"m": 1, "n": 2, "ratio": 3.0})
    found = {row["n"]: (row["ratio"], row["sources"]) for row in read(path)["rows"]}
    assert found == {**({1: (1.0, "old")} if keep else {}), 2: (3.0, "new"), 3: (1.0, "new")}


def test_a_table_without_rows_is_one(script: Any, tmp_path: Path) -> None:
    table = script.Written(tmp_path / "t.json", {"version": "a"})
    table.write()
    assert read(tmp_path / "t.json") == {"version": "a", "geomean_ratio": None, "min_ratio": None, "rows": []}
