"""perfdb.merging: everything once, ids translated, times kept, on both engines; old files are not changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import perfdb
from perfdb.checking import check_database
from perfdb.merging import merge
from perfdb.regressions import annotate
from perfdb.summaries import differences

Make = Callable[..., perfdb.TrialRecord]
START = datetime(2026, 1, 1, tzinfo=UTC)
OLD = Path(__file__).parent / "data" / "schema-0001.sqlite"


@pytest.fixture
def other(tmp_path: Path, make: Make) -> Path:
    """A database whose ids are not those of the target."""
    path = tmp_path / "other.db"
    with perfdb.open_database(path) as db:
        db.record(make("alone", 50.0, recorded_at=START))
        session = db.start_session(seed=4, command="other", revision="abc")
        first, second = db.record_many(
            make(f"s{n}", 90.0 + n, session_id=session, samples_us=((1.0, 2.0), (), (0.1,)), binary_digest="b",
                 message=f"m{n}", recorded_at=START + timedelta(hours=n))
            for n in range(2)
        )  # fmt: skip
        db.record(make("bad", None, status="timeout", session_id=session, recorded_at=START))
        db.end_session(session)
        one = make("s0")
        key = (one.workload, one.topology)
        db.record_prediction(perfdb.PredictionRecord(*key, one.schedule, "analytic", 95.0, recorded_at=START))
        decision = perfdb.DecisionRecord(*key, one.environment, "measured", first, (second,), "simpler", session)
        db.record_decision(decision)
        annotate(db, "new kernel", trial=second, author="me")
    return path


def test_everything_arrives_once(db: perfdb.Database, make: Make, other: Path) -> None:
    for number in range(5):
        db.record(make(f"mine{number}", 100.0 + number))
    before = other.read_bytes()
    counts = merge(db, other)
    assert (counts.stored["trial"], counts.stored["session"], counts.stored["decision"]) == (4, 1, 1)
    assert other.read_bytes() == before
    trials = perfdb.trials(db).set_index("schedule")
    assert len(trials) == 9
    row = trials.loc["s1"]
    assert (row["value_us"], row["message"], row["binary_digest"]) == (91.0, "m1", "b")
    assert row["recorded_at"] == START + timedelta(hours=1)
    samples = perfdb.samples(db, int(row["trial_id"]))
    assert list(samples[["rank", "us"]].itertuples(index=False, name=None)) == [(0, 1.0), (0, 2.0), (2, 0.1)]
    (decision,) = db.rows("SELECT winner_trial_id, tie_trial_ids, session_id FROM decision")
    assert decision[0] == trials.loc["s0"]["trial_id"]
    assert decision[1] == f"[{row['trial_id']}]"
    assert db.rows("SELECT revision FROM session WHERE id = ?", (decision[2],)) == [("abc",)]
    assert db.rows("SELECT trial_id FROM annotation") == [(row["trial_id"],)]
    again = merge(db, other)
    assert sum(again.stored.values()) == 0
    assert again.known["trial"] == 4
    assert len(perfdb.trials(db)) == 9
    with db.read() as connection:
        assert set(differences(connection).values()) == {0}


def test_an_older_trial_replaces_no_newer_answer(db: perfdb.Database, make: Make, other: Path) -> None:
    mine = make("s0", 80.0)
    db.record(mine)
    merge(db, other)
    row = perfdb.exact(db, mine.workload, mine.topology, mine.environment, "s0")
    assert row is not None
    assert (row.trial_id, row.value_us) == (1, 80.0)


def test_a_file_of_an_older_schema_is_read_and_not_changed(db: perfdb.Database) -> None:
    before = OLD.read_bytes()
    counts = merge(db, OLD)
    assert counts.stored["trial"] == 120
    assert OLD.read_bytes() == before
    assert not list(OLD.parent.glob("*.bak"))
    assert len(perfdb.trials(db)) == 120


def test_a_server_can_be_merged_into_a_file(postgres_url: str, local: perfdb.Database, other: Path) -> None:
    with perfdb.open_database(postgres_url) as team:
        merge(team, other)
    assert merge(local, postgres_url).stored["trial"] == 4
    assert sum(merge(local, other).stored.values()) == 0
    assert check_database(str(local.path)).ok


def test_merging_with_itself_is_refused(local: perfdb.Database, path: Path, tmp_path: Path) -> None:
    with pytest.raises(perfdb.RecordError, match="another one"):
        merge(local, path)
    with pytest.raises(perfdb.MissingDatabase):
        merge(local, tmp_path / "none.db")
