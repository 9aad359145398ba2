"""tilescale.tuner.revision, and that a session keeps it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tilescale import __version__
from tilescale.tuner.revision import revision


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout" / "package"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("x = 1\n")
    return folder


def test_a_package_outside_of_a_checkout_has_its_version(package: Path) -> None:
    assert revision(package) == f"v{__version__}"


def test_a_checkout_has_its_commit_and_says_where_files_differ(package: Path) -> None:
    git(package.parent, "init", "-q")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-qm", "first")
    commit = git(package.parent, "rev-parse", "HEAD")
    assert revision(package) == commit
    revision.cache_clear()
    (package / "a.py").write_text("x = 2\n")
    assert revision(package) == f"{commit}+"


def test_a_session_keeps_the_revision(tmp_path: Path) -> None:
    from tuner_support import SMALL, SPEC, guess

    import perfdb
    from tilescale.runtime.fake import FakeRunner
    from tilescale.tuner.tune import tune

    url = str(tmp_path / "perf.db")
    tune(SPEC, trials=2, space=SMALL, predictor=guess, db=url, runner=FakeRunner(guess_us, processes=False))
    with perfdb.open_database(url) as db:
        assert db.rows("SELECT revision FROM session") == [(revision(),)]


def guess_us(spec: object, schedule: object) -> float:
    return 100.0
