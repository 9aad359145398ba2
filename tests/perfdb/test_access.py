"""perfdb.access: a database that may only be read is read, and says so when it is written to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import perfdb
from perfdb import access
from perfdb.engine import parse_url
from perfdb.schema import prepare

Make = Callable[..., perfdb.TrialRecord]
DATA = Path(__file__).parent / "data"


def read_and_write(path: Path) -> str:
    """What a reader sees and what a writer is told."""
    try:
        with perfdb.open_database(path, create=False) as db:
            seen = f"{len(perfdb.best(db))} {len(perfdb.trials(db))}"
            try:
                db.start_session()
            except perfdb.DatabaseError as error:
                return f"{seen}; {error}"
            return f"{seen}; written"
    except perfdb.DatabaseError as error:
        return str(error)


def as_another_user(path: Path) -> str:
    """The same without root's right to write anywhere; everything is imported before the user changes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(write, read_and_write(path).encode())
        except BaseException as error:  # noqa: BLE001 - the parent is told, and this copy of it ends here
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as said:
        return said.read().decode()


@pytest.fixture
def filled(path: Path, make: Make) -> Path:
    with perfdb.open_database(path) as db:
        db.record_many([make("s1"), make("s2", 90.0)])
    return path


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As if this test's folder were on a file system that is mounted read-only; root may write anywhere else."""
    real = os.access

    def no_write(place: object, mode: int, **options: object) -> bool:
        return real(place, mode) and not (mode & os.W_OK and str(place).startswith(str(tmp_path)))  # type: ignore[call-overload]

    monkeypatch.setattr("perfdb.access.os.access", no_write)
    return tmp_path


def test_what_may_be_written_to_is_opened_for_writing(filled: Path) -> None:
    assert not access.is_read_only(filled)
    assert not access.is_read_only(filled.with_name("new.db"))


def test_a_file_that_may_only_be_read_answers_and_refuses_to_be_written(
    filled: Path, locked: Path, make: Make
) -> None:
    assert access.is_read_only(filled)
    assert access.read_only_uri(filled).endswith("perf.db?mode=ro&immutable=1")
    before = {file.name: file.read_bytes() for file in locked.iterdir()}
    with perfdb.open_database(filled) as db:
        trial = make()
        assert list(perfdb.best(db)["schedule"]) == ["s2", "s1"]
        assert perfdb.exact(db, trial.workload, trial.topology, trial.environment, "s1") is not None
        with pytest.raises(perfdb.DatabaseError, match=r"perf\.db.*it can only be read here"):
            db.record(trial)
    assert {file.name: file.read_bytes() for file in locked.iterdir()} == before


def test_the_newest_commits_are_read_from_the_log(filled: Path, make: Make, request: pytest.FixtureRequest) -> None:
    with perfdb.open_database(filled) as writer:
        writer.record(make("s3", 80.0))
        request.getfixturevalue("locked")
        assert access.read_only_uri(filled).endswith("perf.db?mode=ro")
        with perfdb.open_database(filled) as db:
            assert list(perfdb.best(db)["schedule"]) == ["s3", "s2", "s1"]


def test_a_log_without_its_index_is_refused_with_the_way_out(filled: Path, locked: Path) -> None:
    Path(f"{filled}-wal").write_bytes(b"\x37\x7f\x06\x82")
    with pytest.raises(perfdb.DatabaseError, match=r"copy perf\.db and perf\.db-wal into a folder of your own"):
        perfdb.open_database(filled)


def test_an_older_schema_that_may_only_be_read_is_refused_unchanged(path: Path, locked: Path) -> None:
    path.write_bytes((DATA / "schema-0001.sqlite").read_bytes())
    with pytest.raises(perfdb.SchemaTooOld, match="copy it into a folder of your own"):
        prepare(parse_url(path))
    assert path.read_bytes() == (DATA / "schema-0001.sqlite").read_bytes()


def test_a_file_that_is_gone_is_no_empty_database(filled: Path) -> None:
    with perfdb.open_database(filled) as db:
        filled.unlink()
        with pytest.raises(perfdb.DatabaseError, match="must be usable"):
            perfdb.best(db)
        with pytest.raises(perfdb.DatabaseError, match="must be usable"):
            db.start_session()
    assert not filled.exists()


def test_nothing_is_made_where_nothing_may_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(perfdb.DatabaseError, match="must be usable"):
        perfdb.open_database(tmp_path / "file" / "sub" / "perf.db")
    with pytest.raises(perfdb.DatabaseError, match="must be usable"):
        perfdb.open_database(tmp_path / ("x" * 300))


@pytest.mark.parametrize("mode", ["file", "folder", "both", "unreadable"])
def test_another_user_reads_what_permissions_let_it(make: Make, mode: str) -> None:
    with tempfile.TemporaryDirectory(prefix="perfdb-access-") as name:
        folder, path = Path(name), Path(name) / "perf.db"
        with perfdb.open_database(path) as db:
            db.record_many([make("s1"), make("s2", 90.0)])
        assert read_and_write(path) == "2 2; written"
        path.chmod({"file": 0o444, "folder": 0o666, "both": 0o444, "unreadable": 0o000}[mode])
        folder.chmod(0o777 if mode == "file" else 0o555)
        said = as_another_user(path)
        folder.chmod(0o755)
    if mode == "unreadable":
        assert said.startswith("the database file must be usable; got: ")
        assert "Permission denied" in said
    else:
        assert said.startswith("2 2; the database file must be usable; got: ")
        assert "it can only be read here" in said
