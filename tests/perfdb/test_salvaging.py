"""perfdb.salvaging: what can be read is saved and counted, and the damaged file keeps its bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import perfdb
from perfdb.checking import check_database
from perfdb.salvaging import Saved, salvage

Make = Callable[..., perfdb.TrialRecord]
PAGE = 4096


@pytest.fixture
def filled(path: Path, make: Make) -> Path:
    with perfdb.open_database(path) as db:
        for turn in range(6):
            session = db.start_session(seed=turn)
            trials = [make(f"s{n}", 100.0 + n + turn, samples_us=((1.0 + n,) * 30,) * 4) for n in range(100)]
            db.record_many([replace(trial, session_id=session) for trial in trials])
    assert not Path(f"{path}-wal").exists()
    return path


def by_table(saved: tuple[Saved, ...]) -> dict[str, Saved]:
    return {one.table: one for one in saved}


def test_an_intact_file_is_saved_whole(filled: Path, tmp_path: Path) -> None:
    saved = by_table(salvage(filled, tmp_path / "new.db"))
    assert {name: one.kept for name, one in saved.items() if one.kept} == {
        "workload": 1,
        "topology": 1,
        "environment": 1,
        "schedule": 100,
        "session": 6,
        "trial": 600,
        "samples": 2400,
    }
    assert all((one.lost, one.orphans) == (0, 0) for one in saved.values())
    assert check_database(str(tmp_path / "new.db")).ok
    with perfdb.open_database(filled) as old, perfdb.open_database(tmp_path / "new.db") as new:
        assert perfdb.trials(old).equals(perfdb.trials(new))
        assert perfdb.best(old, limit=100).equals(perfdb.best(new, limit=100))


@pytest.mark.parametrize("keep", [0.95, 0.7, 0.5])
def test_a_truncated_file_gives_what_is_left(filled: Path, tmp_path: Path, keep: float) -> None:
    whole = filled.read_bytes()
    cut = whole[: int(len(whole) * keep)]
    filled.write_bytes(cut)
    saved = by_table(salvage(filled, tmp_path / "new.db"))
    assert filled.read_bytes() == cut
    assert 0 < saved["trial"].kept <= 600
    assert saved["trial"].kept + saved["trial"].lost + saved["trial"].orphans <= 600
    assert check_database(str(tmp_path / "new.db")).ok
    with perfdb.open_database(tmp_path / "new.db") as new:
        trials = perfdb.trials(new)
        assert len(trials) == saved["trial"].kept
        # What was saved is what was recorded.
        assert [value - 100 for value in trials["value_us"]] == [
            int(name[1:]) + (trial - 1) // 100
            for name, trial in zip(trials["schedule"], trials["trial_id"], strict=True)
        ]


@pytest.mark.parametrize("seed", range(4))
def test_overwritten_pages_lose_their_own_rows(filled: Path, tmp_path: Path, seed: int) -> None:
    data = bytearray(filled.read_bytes())
    pages = len(data) // PAGE
    # The first pages hold the schema and the roots; of the others, two in a row are overwritten.
    at = pages // 2 + seed * pages // 12
    data[at * PAGE : (at + 2) * PAGE] = b"\xa5" * (2 * PAGE)
    filled.write_bytes(bytes(data))
    with pytest.raises(perfdb.CorruptDatabase, match="--salvage"):
        check_database(str(filled))
    saved = by_table(salvage(filled, tmp_path / "new.db"))
    assert filled.read_bytes() == bytes(data)
    assert saved["trial"].kept >= 500
    assert saved["samples"].kept >= 2000
    assert check_database(str(tmp_path / "new.db")).ok


def test_nothing_is_overwritten_and_a_lost_schema_is_said(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "new.db").write_text("mine")
    with pytest.raises(perfdb.DatabaseError, match="exists"):
        salvage(filled, tmp_path / "new.db")
    assert (tmp_path / "new.db").read_text() == "mine"
    data = filled.read_bytes()
    filled.write_bytes(b"\xa5" * PAGE + data[PAGE:])
    with pytest.raises(perfdb.CorruptDatabase, match="restore a backup") as caught:
        salvage(filled, tmp_path / "other.db")
    assert str(filled) in str(caught.value)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["new.db", "perf.db"]


def test_an_older_file_is_saved_in_the_present_schema(tmp_path: Path) -> None:
    old = Path(__file__).parent / "data" / "schema-0001.sqlite"
    saved = by_table(salvage(old, tmp_path / "new.db"))
    assert saved["trial"].kept == 120
    assert check_database(str(tmp_path / "new.db")).ok
