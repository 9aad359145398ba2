"""tilescale.caches: the least recently used files go, and only where there are too many bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilescale import caches
from tilescale.codegen.cache import BinaryCache
from tilescale.schedules.proof_cache import ProofCache


def fill(folder: Path, number: int, size: int = 100) -> list[Path]:
    """Files that were used one after the other."""
    found = []
    for at in range(number):
        path = folder / f"{at % 3}" / f"{at}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (1000 + at, 1000 + at))
        found.append(path)
    return found


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    files = fill(tmp_path, 12)
    assert caches.trim(tmp_path, most_bytes=1000) == 5  # 1200 bytes, until at most 750 are left
    assert [path.exists() for path in files] == [False] * 5 + [True] * 7


def test_a_file_that_was_read_lately_stays(tmp_path: Path) -> None:
    files = fill(tmp_path, 12)
    os.utime(files[0], (5000, 1000))  # read after it was written
    caches.trim(tmp_path, most_bytes=1000)
    assert files[0].exists()
    assert not files[1].exists()


def test_a_folder_below_its_size_is_left_alone(tmp_path: Path) -> None:
    files = fill(tmp_path, 10)
    assert caches.trim(tmp_path, most_bytes=1000) == 0
    assert all(path.exists() for path in files)


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert caches.trim(tmp_path / "none", most_bytes=0) == 0


@pytest.mark.parametrize("kind", ["binaries", "proofs", "priors"])
def test_every_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    from tilescale.costmodel import memo
    from tilescale.schedules.story import Stats

    seen: list[Path] = []
    for room in ("codegen.cache", "schedules.proof_cache", "costmodel.memo"):
        monkeypatch.setattr(f"tilescale.{room}.bounded", seen.append)
    if kind == "binaries":
        from tilescale.codegen.cache import Binary

        BinaryCache(tmp_path).put("0" * 64, Binary(b"x", "entry", "sm_90a", 1, 0, 0, 0, "", "d"))
    elif kind == "proofs":
        ProofCache(tmp_path).put("digest", 3, Stats(1))
    else:
        memo._write(tmp_path / "source" / "spec.json", {})
    assert seen == [tmp_path]
