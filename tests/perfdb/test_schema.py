"""perfdb.schema: recognise, refuse, initialise, back up, migrate (cases D3 and the damaged files)."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

import perfdb
from perfdb import schema
from perfdb.engine import parse_url
from perfdb.models import Base
from tests.perfdb import postgres_server

Make = Callable[..., perfdb.TrialRecord]

SECOND = """
import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade():
    with op.batch_alter_table("trial") as batch:
        batch.add_column(sa.Column("extra", sa.Text(), nullable=False, server_default="new"))
    {then}
"""


def script(path: Path, code: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(code)


def statements(path: Path) -> list[str]:
    """The parts of the schema's SQL, sorted: white space, quotes and the order of columns are no differences."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL AND name <> 'alembic_version'")
        return sorted(",".join(sorted(re.split(r"\s*[,()]\s*", re.sub(r"[\s\"]+", " ", row[0])))) for row in rows)


@pytest.fixture
def filled(path: Path, make: Make) -> Path:
    with perfdb.open_database(path) as db:
        for number in range(300):
            db.record(make(f"s{number}", 100.0 + number, samples_us=((1.0, 2.0),) * 4))
    return path


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This perfdb becomes one whose newest schema is 0003; returns the migration's file."""
    migrations = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, migrations)
    second = migrations / "versions" / "v0003_next.py"
    second.write_text(SECOND.format(then=""))
    monkeypatch.setattr(schema, "MIGRATIONS", migrations)
    monkeypatch.setattr(schema, "VERSIONS", ("0001", "0002", "0003"))
    return second


def test_the_migrated_schema_equals_the_models(local: perfdb.Database, path: Path, tmp_path: Path) -> None:
    with local.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    # The comparison above knows nothing of CHECK constraints and partial indexes: compare the SQL too.
    modelled = tmp_path / "modelled.db"
    Base.metadata.create_all(sa.create_engine(f"sqlite:///{modelled}"))
    assert statements(path) == statements(modelled)


def test_the_versions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    revisions = [found.revision for found in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(revisions)) == schema.VERSIONS


def test_an_older_schema_is_backed_up_and_migrated_with_equal_values(filled: Path, next_version: Path) -> None:
    with perfdb.open_database(filled) as db:
        assert len(perfdb.trials(db)) == 300
        assert sorted(perfdb.trials(db)["value_us"]) == [100.0 + number for number in range(300)]
        assert len(perfdb.samples(db, 300)) == 8
        with db.read() as connection:
            assert connection.exec_driver_sql("SELECT DISTINCT extra FROM trial").scalars().all() == ["new"]
    (backup,) = filled.parent.glob("perf.db.schema-0002.*.bak")
    with closing(sqlite3.connect(backup)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("0002",)]
        assert connection.execute("SELECT count(*), sum(value_us) FROM trial").fetchone() == (300, 74850.0)
    perfdb.open_database(filled).close()
    assert len(list(filled.parent.glob("*.bak"))) == 1


def test_a_migration_that_fails_changes_nothing(filled: Path, next_version: Path) -> None:
    next_version.write_text(SECOND.format(then="raise RuntimeError('planted')"))
    before = statements(filled)
    with pytest.raises(RuntimeError, match="planted"):
        perfdb.open_database(filled)
    assert statements(filled) == before
    with closing(sqlite3.connect(filled)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("0002",)]


def test_a_migration_that_loses_a_reference_is_undone(filled: Path, next_version: Path) -> None:
    next_version.write_text(SECOND.format(then="op.execute('DELETE FROM schedule WHERE id = 7')"))
    with pytest.raises(perfdb.CorruptDatabase, match="keeps every reference"):
        perfdb.open_database(filled)
    with closing(sqlite3.connect(filled)) as connection:
        assert connection.execute("SELECT count(*) FROM schedule").fetchone() == (300,)


def test_an_older_schema_can_be_refused(filled: Path, next_version: Path) -> None:
    with pytest.raises(perfdb.SchemaTooOld, match="schema 0002, this perfdb 0003"):
        schema.prepare(parse_url(filled), migrate=False)
    assert not list(filled.parent.glob("*.bak"))


def test_a_newer_schema_is_refused_naming_both_versions(filled: Path) -> None:
    script(filled, "UPDATE alembic_version SET version_num = '0007'")
    before = filled.read_bytes()
    with pytest.raises(perfdb.SchemaTooNew, match=r"schema 0007, this perfdb knows up to 0002"):
        perfdb.open_database(filled)
    assert filled.read_bytes() == before


@pytest.mark.parametrize("there", ["missing", "empty", "no tables"])
def test_an_empty_file_is_initialised(path: Path, make: Make, there: str) -> None:
    if there == "empty":
        path.touch()
    elif there == "no tables":
        script(path, "PRAGMA journal_mode = WAL; CREATE TABLE t (x); DROP TABLE t")
    with perfdb.open_database(path) as db:
        assert db.record(make()) == 1


def test_a_missing_file_is_made_only_on_request(path: Path) -> None:
    with pytest.raises(perfdb.MissingDatabase, match=str(path)):
        perfdb.open_database(path, create=False)
    assert not path.exists()


@pytest.mark.parametrize("content", [b"PK\x03\x04 something else", b'{"best": 12}', b"\0" * 8192, b"SQLite"])
def test_a_file_of_another_format_is_refused_and_kept(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(perfdb.DatabaseError, match=str(path)) as caught:
        perfdb.open_database(path)
    assert isinstance(caught.value, perfdb.NotADatabase | perfdb.CorruptDatabase)
    assert caught.value.remedy
    assert path.read_bytes() == content


def test_the_database_of_another_application_is_refused_and_kept(path: Path) -> None:
    script(path, "CREATE TABLE studies (x); CREATE TABLE alembic_version (version_num); CREATE TABLE trial (x)")
    before = path.read_bytes()
    with pytest.raises(perfdb.NotADatabase, match="studies"):
        perfdb.open_database(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("keep", [1, 50, 100, 4096, 5000, 0.5, 0.99])
def test_a_truncated_file_is_an_error_with_the_way_out(filled: Path, keep: float) -> None:
    whole = filled.read_bytes()
    cut = whole[: int(keep if keep >= 1 else len(whole) * keep)]
    filled.write_bytes(cut)
    with pytest.raises(perfdb.CorruptDatabase, match=str(filled)) as caught:
        perfdb.open_database(filled)
    assert "restore" in caught.value.remedy
    assert filled.read_bytes() == cut


def test_an_overwritten_page_is_an_error_and_the_backup_is_named(filled: Path) -> None:
    backup = filled.with_name("perf.db.schema-0000.20250101T000000Z.bak")
    backup.touch()
    with filled.open("r+b") as file:
        file.seek(4096 * 4)
        file.write(b"\xa5" * 4096 * 20)
    with pytest.raises(perfdb.CorruptDatabase, match=str(filled)) as caught:
        perfdb.open_database(filled)
    assert str(backup) in caught.value.remedy


def test_damage_found_only_while_reading_is_the_same_error(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A large file is not read through at every opening.
    monkeypatch.setattr(schema, "QUICK_CHECK_BYTES", 0)
    size = filled.stat().st_size
    with filled.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xa5" * (size // 2))
    with pytest.raises(perfdb.CorruptDatabase, match=str(filled)), perfdb.open_database(filled) as db:
        perfdb.trials(db)


def test_a_log_without_its_database_is_not_an_empty_database(filled: Path) -> None:
    filled.write_bytes(b"")
    Path(f"{filled}-wal").write_bytes(b"something")
    with pytest.raises(perfdb.CorruptDatabase, match="-wal"):
        perfdb.open_database(filled)


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_many_may_start_a_database_at_a_time(
    request: pytest.FixtureRequest, path: Path, make: Make, engine: str
) -> None:
    where = str(path)
    if engine == "postgresql":
        server = str(request.getfixturevalue("postgres")).rsplit("/", 1)[0]
        where = postgres_server.make_database(server, "perfdb_fresh")

    def start(number: int) -> int:
        with perfdb.open_database(where) as db:
            return db.record(make(f"s{number}"))

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(start, range(8))) == list(range(1, 9))
