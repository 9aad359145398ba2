"""Databases of every released schema, checked in: each is backed up, migrated, and answers as it did (case D3)."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

import perfdb
from perfdb.checking import check_database
from perfdb.schema import VERSIONS
from perfdb.summaries import differences

DATA = Path(__file__).parent / "data"
START = datetime(2026, 1, 1, tzinfo=UTC)


def test_every_released_schema_is_checked_in() -> None:
    assert sorted(path.stem.removeprefix("schema-") for path in DATA.glob("schema-*.sqlite")) == list(VERSIONS)


@pytest.fixture(params=VERSIONS)
def released(request: pytest.FixtureRequest, path: Path) -> Path:
    shutil.copyfile(DATA / f"schema-{request.param}.sqlite", path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(request.param,)]
    return path


def test_it_answers_as_when_it_was_written(released: Path) -> None:
    with perfdb.open_database(released) as db:
        trials = perfdb.trials(db)
        assert len(trials) == 120
        assert trials["value_us"].sum() == pytest.approx(sum(100 + n + day / 8 for n in range(8) for day in range(12)))
        assert trials["status"].value_counts().to_dict() == {"ok": 96, "timeout": 12, "interrupted": 12}
        best = perfdb.best(db, op="ag_gemm", shape="1024x8x8")
        assert list(best["schedule"]) == ["s0", "s3", "s6"]
        assert best["value_us"].iloc[0] == 101.375
        row = perfdb.exact(db, "w1", "t1", str(best["environment"].iloc[0]), "s0")
        assert row is not None
        assert (row.value_us, row.recorded_at.date()) == (101.375, datetime(2026, 1, 12).date())
        assert len(perfdb.history(db, op="ag_gemm")) == 36
        assert list(perfdb.samples(db, 1)["us"]) == [1.5, 2.25, 0.1, 0.2]
        with db.read() as connection:
            assert set(differences(connection).values()) == {0}
        assert db.rows("SELECT count(*) FROM prediction") == db.rows("SELECT count(*) FROM decision") == [(1,)]
    assert check_database(str(released)).ok


def test_the_backup_is_the_file_as_it_was(path: Path) -> None:
    shutil.copyfile(DATA / f"schema-{VERSIONS[0]}.sqlite", path)
    with closing(sqlite3.connect(path)) as connection:
        before = list(connection.iterdump())
    perfdb.open_database(path).close()
    (backup,) = path.parent.glob(f"*.schema-{VERSIONS[0]}.*.bak")
    with closing(sqlite3.connect(backup)) as connection:
        assert list(connection.iterdump()) == before
