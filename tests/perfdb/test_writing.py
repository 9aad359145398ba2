"""perfdb.writing: samples come back as they were, in the smaller encoding that keeps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import perfdb
from perfdb import summaries
from perfdb.writing import pack, unpack

Make = Callable[..., perfdb.TrialRecord]


@pytest.mark.parametrize(
    ("values", "encoding"),
    [((1.0, 0.5, 1234.25), "<f4"), ((0.1, 1.0), "<f8"), ((1e300,), "<f8"), ((), "<f4")],
)
def test_samples_are_packed_without_loss(values: tuple[float, ...], encoding: str) -> None:
    packed = pack(values)
    assert packed[0] == encoding
    assert packed[1] == len(values)
    data = packed[2]
    assert isinstance(data, bytes)
    assert len(data) == len(values) * int(encoding[-1])
    assert unpack(encoding, data) == list(values)


def test_the_bytes_are_little_endian() -> None:
    assert pack((1.0,))[2] == b"\x00\x00\x80\x3f"


def test_keys_are_stored_once(db: perfdb.Database, make: Make) -> None:
    for _ in range(3):
        db.record(make(binary_digest="b", table_digest="t"))
    with db.read() as connection:
        for table in ("workload", "topology", "environment", "schedule", "artifact"):
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 1
        assert connection.exec_driver_sql("SELECT count(*) FROM trial").scalar() == 3


def test_many_at_once_are_what_they_are_one_by_one(url: str, make: Make) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with perfdb.open_database(url) as db:
        sessions = [db.start_session(), db.start_session(), None]
        trials = [
            replace(
                make(f"s{n % 7}", None if n % 11 == 0 else 100.0 + n * 37 % 13, gpu=f"G{n % 2}"),
                session_id=sessions[n % 3],
                # Out of order, and some at the same moment.
                recorded_at=start + timedelta(seconds=n * 29 % 17),
                samples_us=((1.0, n + 0.1), (), (2.0,)),
            )
            for n in range(90)
        ]
        trials += [make("s1", None, status="interrupted")] * 5
        ids = db.record_many(trials)
        assert ids == sorted(set(ids))
        with db.read() as connection:
            assert set(summaries.differences(connection).values()) == {0}
        rows = db.rows("SELECT id, value_us, message FROM trial ORDER BY id")
        assert [(row[0], row[1]) for row in rows] == list(zip(ids, (one.value_us for one in trials), strict=True))
        assert list(perfdb.samples(db, ids[41])["us"]) == [1.0, 41.1, 2.0]
        for trial in trials:
            db.record(trial)
        with db.read() as connection:
            assert set(summaries.differences(connection).values()) == {0}


def test_many_at_once_are_stored_all_or_not_at_all(url: str, make: Make) -> None:
    with perfdb.open_database(url) as db:
        bad = [make(f"s{n}", session_id=12345 if n == 40 else None) for n in range(60)]
        with pytest.raises(perfdb.RecordError, match="refers to stored rows"):
            db.record_many(bad)
        assert db.rows("SELECT count(*) FROM trial") == [(0,)]
        assert len(db.record_many(bad[:40])) == 40
        assert perfdb.known(db, bad[0].workload, bad[0].topology, bad[0].environment)["s39"].value_us == 100.0
