"""perfdb.engine: how a database is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfdb
from perfdb.engine import parse_url, sqlite_path


def test_paths_and_urls_name_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ("perf.db", tmp_path / "perf.db", "sqlite:///perf.db", f"sqlite:///{tmp_path}/perf.db", "~/perf.db")
    assert {sqlite_path(parse_url(name)) for name in names} == {tmp_path / "perf.db"}


def test_a_path_may_hold_any_character(tmp_path: Path) -> None:
    odd = tmp_path / "a b%20?c#d.db"
    perfdb.open_database(odd).close()
    assert odd.exists()


@pytest.mark.parametrize("url", ["postgres://me:secret@host/name", "postgresql://me:secret@host/name"])
def test_a_server_is_postgresql(url: str) -> None:
    parsed = parse_url(url)
    assert parsed.get_backend_name() == "postgresql"
    assert sqlite_path(parsed) is None
    assert "secret" not in parsed.render_as_string()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://host/name", "://x"])
def test_what_cannot_keep_anything_is_refused(url: str) -> None:
    with pytest.raises(perfdb.DatabaseError, match="got: "):
        parse_url(url)
