"""Compiled binaries on disk, found by the content that made them.

One file an entry, `<folder>/<first two digits>/<key>.bin`: a line of JSON, then the cubin. It is written aside and
renamed into place, so a reader sees a whole entry or none, and two writers of one key leave one of two equal files. A
digest in the first line covers everything else: a damaged entry is a miss, and is built again.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import platformdirs

from tilescale import canon
from tilescale.caches import bounded

_FORMAT = 1
_LEFTOVER_S = 3600.0  # files that a killed writer left aside


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    `entry`: name to launch. `arch`: as given to the compiler, such as "sm_90a". Registers are a thread's; bytes are of
    spilled registers, stack frame and static shared memory. `log` is the compiler's. `digest` identifies the cubin.
    """

    cubin: bytes
    entry: str
    arch: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    log: str
    digest: str


def default_folder() -> Path:
    """`TILESCALE_CACHE` from the environment, else "binaries" in the user's cache folder of tilescale."""
    named = os.environ.get("TILESCALE_CACHE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("tilescale")) / "binaries"


class BinaryCache:
    """Binaries by key, shared by any number of processes. `folder` is made when the first entry is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._aside = folder / "aside"
        self._warned = False
        self._sweep()

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.bin"

    def get(self, key: str) -> Binary | None:
        """The binary of `key`; None where there is none or the file is damaged (it is removed then)."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        binary = _unpack(data, key)
        if binary is None:
            with contextlib.suppress(OSError):
                path.unlink()
        return binary

    def put(self, key: str, binary: Binary) -> None:
        """Store `binary`; a folder that cannot be written is a warning, once, and nothing is stored."""
        path = self.path(key)
        try:
            self._aside.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(exist_ok=True)
            descriptor, aside = tempfile.mkstemp(prefix=f"{key[:16]}-", dir=self._aside)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_pack(binary, key))
                os.replace(aside, path)
            except BaseException:
                os.unlink(aside)
                raise
            bounded(self.folder)
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(f"compiled binaries are not kept: {error}; set TILESCALE_CACHE", stacklevel=2)

    def _sweep(self) -> None:
        """Remove what writers that were killed left behind."""
        with contextlib.suppress(OSError):
            for file in self._aside.iterdir():
                if file.stat().st_mtime < time.time() - _LEFTOVER_S:
                    file.unlink()


def _pack(binary: Binary, key: str) -> bytes:
    values = {name: value for name, value in asdict(binary).items() if name != "cubin"}
    body = json.dumps({"format": _FORMAT, "key": key, **values}, sort_keys=True).encode() + b"\n" + binary.cubin
    return canon.digest_bytes(body).encode() + b"\n" + body


def _unpack(data: bytes, key: str) -> Binary | None:
    digest, _, body = data.partition(b"\n")
    if canon.digest_bytes(body).encode() != digest:
        return None
    line, _, cubin = body.partition(b"\n")
    values: dict[str, Any] = json.loads(line)  # the digest says that it is what was written
    if values.pop("format") != _FORMAT or values.pop("key") != key:
        return None
    if set(values) | {"cubin"} != {f.name for f in fields(Binary)}:
        return None
    return Binary(cubin=cubin, **values)
