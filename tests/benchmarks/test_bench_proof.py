"""What ends is kept: a run that was interrupted goes on behind it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("tests/schedules", "tests/proof", "benchmarks", "benchmarks/proof"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    monkeypatch.delitem(sys.modules, "common", raising=False)


def test_scores_survive_a_file_and_are_added_up() -> None:
    from bench_proof import as_json, merge
    from suite import Score

    part, total = Score(), Score()
    part.add("text: lost wait", "here", "emulator: deadlock", "")
    part.add("text: lost wait", "there", "", "it polls")
    part.add("text: lost copy", "elsewhere", "", "")
    for _ in range(2):
        merge(total, json.loads(json.dumps(as_json(part))))
    assert (total.mutants, total.caught) == (6, 2)
    assert total.kinds == Counter({"text: lost wait": 4, "text: lost copy": 2})
    assert total.caught_by == Counter({"emulator: deadlock": 2})
    assert total.equivalent == [("text: lost wait: there", "it polls")] * 2
    assert total.missed == ["text: lost copy: elsewhere"] * 2


def test_a_part_that_has_ended_is_not_done_again(tmp_path: Path) -> None:
    from bench_proof import Kept

    done = []

    def work(number: int) -> list[int]:
        done.append(number)
        return [number]

    for _ in range(2):  # as two runs
        with ThreadPoolExecutor(1) as pool:
            found = Kept(tmp_path).of(pool, work, 3)
            assert found() == [3]
    assert done == [3]
    with ThreadPoolExecutor(1) as pool:
        assert Kept(tmp_path).of(pool, work, 4)() == [4]
    assert done == [3, 4]


def test_a_part_is_done_again_where_what_it_depends_on_has_changed(tmp_path: Path) -> None:
    from bench_proof import Kept

    done = []

    def work(recipe: Path) -> int:
        done.append(recipe)
        return len(done)

    recipe = ROOT / "recipes" / "any.toml"
    with ThreadPoolExecutor(1) as pool:
        assert [Kept(tmp_path).of(pool, work, recipe, on=text)() for text in (b"a", b"b", b"a")] == [1, 2, 1]


def test_text_mutants_depend_on_what_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import bench_proof

    before = [bench_proof.on_texts(first, every=1) for first in (0, 1)]
    assert before == [bench_proof.on_texts(first, every=1) for first in (0, 1)]
    used = bench_proof.all_text_mutants()[0].runs[0]
    monkeypatch.setitem(bench_proof.RUNS, used, bench_proof.RUNS["few rows"])
    assert bench_proof.on_texts(0, every=1) != before[0]


def test_a_part_that_fails_is_not_kept(tmp_path: Path) -> None:
    from bench_proof import Kept

    def work() -> None:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        Kept(tmp_path).of(pool, work)()
    assert list(tmp_path.rglob("*.json")) == []
