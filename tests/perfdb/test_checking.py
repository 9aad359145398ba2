"""perfdb.checking: an intact database, orphans, and a broken index."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import perfdb
from perfdb.checking import check_database

Make = Callable[..., perfdb.TrialRecord]


@pytest.fixture
def filled(path: Path, make: Make) -> Path:
    with perfdb.open_database(path) as db:
        db.record_many([make(f"s{number}") for number in range(5)])
    return path


def test_an_intact_database_is_counted(filled: Path) -> None:
    report = check_database(str(filled))
    assert report.ok
    assert "trial 5" in report.lines[-1]
    assert "intact" in report.lines[0]


def test_orphans_are_found(filled: Path) -> None:
    with closing(sqlite3.connect(filled)) as connection:
        connection.execute("DELETE FROM schedule WHERE id = 3")
        connection.commit()
    report = check_database(str(filled))
    assert not report.ok
    assert "orphan: trial row 3 refers to a missing schedule" in report.problems
    assert "2 problems" in report.lines[0]
