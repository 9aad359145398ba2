"""tilescale.codegen.cache: binaries by content, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
import warnings
from pathlib import Path

import pytest
from process_support import start_script

from tilescale import canon
from tilescale.codegen.cache import Binary, BinaryCache, default_folder

KEY = hashlib.sha256(b"key").hexdigest()


def make_binary(cubin: bytes = b"\x7fELF\n\0\n" * 100) -> Binary:
    return Binary(cubin, "k", "sm_90a", 40, 0, 8, 1024, "line 1\nline 2 \u00e9", canon.digest_bytes(cubin))


def test_returns_what_was_stored(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path)
    assert cache.get(KEY) is None
    cache.put(KEY, make_binary())
    assert BinaryCache(tmp_path).get(KEY) == make_binary()
    assert cache.get(hashlib.sha256(b"other").hexdigest()) is None


def test_nothing_is_made_before_something_is_stored(tmp_path: Path) -> None:
    assert BinaryCache(tmp_path / "folder").get(KEY) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", [0, 5, 20, 60, 400, -1])
def test_a_damaged_entry_is_a_miss_and_can_be_stored_again(tmp_path: Path, where: int) -> None:
    cache = BinaryCache(tmp_path)
    cache.put(KEY, make_binary())
    data = bytearray(cache.path(KEY).read_bytes())
    data[where] ^= 1
    cache.path(KEY).write_bytes(data)
    assert cache.get(KEY) is None
    assert not cache.path(KEY).exists()
    cache.put(KEY, make_binary())
    assert cache.get(KEY) == make_binary()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.99])
def test_an_entry_cut_short_is_a_miss(tmp_path: Path, share: float) -> None:
    cache = BinaryCache(tmp_path)
    cache.put(KEY, make_binary())
    data = cache.path(KEY).read_bytes()
    cache.path(KEY).write_bytes(data[: int(len(data) * share)])
    assert cache.get(KEY) is None


def test_an_entry_under_a_wrong_name_is_a_miss(tmp_path: Path) -> None:
    cache, other = BinaryCache(tmp_path), hashlib.sha256(b"other").hexdigest()
    cache.put(KEY, make_binary())
    cache.path(other).parent.mkdir(exist_ok=True)
    cache.path(KEY).rename(cache.path(other))
    assert cache.get(other) is None


WRITER = """
import sys, time
from pathlib import Path
sys.path.insert(0, HERE)
from test_cache import KEY, make_binary
from tilescale.codegen.cache import BinaryCache
cache = BinaryCache(Path(FOLDER))
print("ready", flush=True)
end = time.monotonic() + 1.0
while time.monotonic() < end:
    cache.put(KEY, make_binary(bytes(range(256)) * 2000))
    assert cache.get(KEY) == make_binary(bytes(range(256)) * 2000)
"""


def test_writers_and_readers_of_one_key_never_see_half_an_entry(tmp_path: Path) -> None:
    script = WRITER.replace("HERE", repr(str(Path(__file__).parent))).replace("FOLDER", repr(str(tmp_path)))
    writers: list[subprocess.Popen[str]] = [start_script(script) for _ in range(3)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    cache, expected, seen = BinaryCache(tmp_path), make_binary(bytes(range(256)) * 2000), 0
    while any(writer.poll() is None for writer in writers):
        found = cache.get(KEY)
        assert found in (None, expected)
        assert found is None or (seen := seen + 1)
        assert not (seen and found is None)  # once there, it stays there
    for writer in writers:
        assert writer.communicate() == ("", "")
        assert writer.returncode == 0
    assert seen > 0
    assert list((tmp_path / "aside").iterdir()) == []


def test_what_killed_writers_left_is_removed_later(tmp_path: Path) -> None:
    BinaryCache(tmp_path).put(KEY, make_binary())
    old, new = tmp_path / "aside" / "old", tmp_path / "aside" / "new"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    cache = BinaryCache(tmp_path)
    assert not old.exists()
    assert new.exists()  # perhaps being written now
    assert cache.get(KEY) == make_binary()


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = BinaryCache(tmp_path / "file")
    with pytest.warns(UserWarning, match="TILESCALE_CACHE"):
        cache.put(KEY, make_binary())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(KEY, make_binary())
    assert cache.get(KEY) is None


def test_the_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TILESCALE_CACHE", raising=False)
    assert default_folder() == tmp_path / "tilescale" / "binaries"
    monkeypatch.setenv("TILESCALE_CACHE", str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine"
