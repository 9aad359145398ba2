"""Bundles on disk: written aside and renamed into place, read back as values.

    manifest.json                    see manifest.py; holds size and SHA-256 of every other file
    cubin/<digest>.<arch>.cubin      binaries
    text/<digest>.cu                 what they were compiled from
    include/tilescale/*.cuh          the device library the texts include, to read and to compile them again
    tables/<operation>.json          programs: launches of every rank with their tables ("<operation>.<i>.json" from the
                                     second shape on)
    tilescale_bundle.h               entry points and binary layouts, for C and C++
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tilescale import canon
from tilescale.codegen.program import Program
from tilescale.deploy.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    OperationEntry,
    Variant,
    dump,
    is_manifest,
    parse,
)
from tilescale.errors import BundleError, TilescaleError, nearest

HEADER = "tilescale_bundle.h"
_LEFTOVER_S = 10.0  # a writer locks its folder within this time of making it
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read: its folder and manifest. Files are read when asked for."""

    root: Path
    manifest: Manifest

    def read(self, path: str) -> bytes:
        """Bytes of a file of the manifest, checked against its digest. Raises BundleError."""
        entry = next((file for file in self.manifest.files if file.path == path), None)
        if entry is None:
            raise BundleError("the manifest lists every file", path, "export the bundle again")
        try:
            data = (self.root / path).read_bytes()
        except OSError as error:
            raise BundleError(f"{path} is in the bundle", error.strerror or str(error), "export it again") from None
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise BundleError(f"{path} is as it was exported", "another SHA-256", "export the bundle again")
        return data

    def operation(self, name: str) -> OperationEntry:
        """Raises BundleError naming the nearest operation."""
        for entry in self.manifest.operations:
            if entry.name == name:
                return entry
        known = [entry.name for entry in self.manifest.operations]
        raise BundleError("the operation is in the bundle", name, nearest(name, known))

    def program(self, variant: Variant) -> Program:
        """The program of a variant; raises BundleError where it is not the one in the manifest."""
        try:
            program = canon.loads(Program, self.read(variant.table).decode())
        except BundleError:
            raise
        except (TilescaleError, UnicodeDecodeError) as error:
            raise BundleError(f"{variant.table} holds a program", str(error), "export the bundle again") from None
        if (program.binary_digest, program.table_digest) != (variant.binary_digest, variant.table_digest):
            actual = f"{program.digest}, not {variant.program_digest}"
            raise BundleError(f"{variant.table} holds the program of the manifest", actual, "export the bundle again")
        return program

    def binaries(self, variant: Variant) -> dict[str, bytes]:
        """Cubins of a variant by the digest of their kernel."""
        return {digest: self.read(self.manifest.kernel(digest).cubin) for digest in variant.kernels}


def read(path: str | Path) -> Bundle:
    """The bundle in the folder `path`; only its manifest is read and checked. Raises BundleError."""
    root = Path(path).absolute()
    try:
        text = (root / MANIFEST).read_bytes()
    except OSError as error:
        rule, actual = f"a bundle is a folder with a {MANIFEST}", f"{root / MANIFEST}: {error.strerror}"
        raise BundleError(rule, actual, "name the folder that was exported") from None
    return Bundle(root, parse(text))


def write(directory: str | Path, manifest: Manifest, files: Iterable[tuple[str, bytes]]) -> Manifest:
    """Write a bundle to `directory`; returns the manifest with the entries of `files` (path, bytes) filled in.

    Until all is written, `directory` is what it was; then it is replaced at once. A folder that holds something else
    than a bundle is refused with BundleError. Whatever interrupts this leaves no half bundle; a folder that a killed
    writer left aside is removed by the next one.
    """
    target = Path(directory).absolute()
    check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    with _aside(target) as aside:
        entries = sorted((_write_file(aside, path, data) for path, data in files), key=lambda entry: entry.path)
        manifest = replace(manifest, files=tuple(entries))
        _write_file(aside, MANIFEST, dump(manifest))
        _put_in_place(aside, target)
    return manifest


def check_replaceable(target: Path) -> None:
    """BundleError unless `target` is missing, an empty folder, or a bundle."""
    if not target.exists() and not target.is_symlink():
        return
    rule = "an export makes a folder, or replaces an older bundle"
    if not target.is_dir() or target.is_symlink():
        raise BundleError(rule, f"{target} is something else", "choose another path")
    if not any(target.iterdir()):
        return
    with contextlib.suppress(OSError):
        if is_manifest((target / MANIFEST).read_bytes()):
            return
    raise BundleError(rule, f"{target} holds files of something else", "choose another path, or empty that folder")


def _aside_prefix(target: Path) -> str:
    return f".{target.name}.aside-"


@contextlib.contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A locked folder beside `target`, gone afterwards with whatever it then holds."""
    folder = target.parent / f"{_aside_prefix(target)}{uuid.uuid4().hex[:12]}"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # the kernel drops it with this process, however that ends
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _sweep(target: Path) -> None:
    """Remove what killed writers left beside `target`."""
    for folder in target.parent.glob(f"{_aside_prefix(target)}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime > time.time() - _LEFTOVER_S:
                continue
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _write_file(root: Path, path: str, data: bytes) -> FileEntry:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(path, len(data), hashlib.sha256(data).hexdigest())


def _put_in_place(aside: Path, target: Path) -> None:
    """Make `aside` the new `target`; what was there ends up in `aside`."""
    if not target.exists():
        with contextlib.suppress(FileExistsError):  # another writer was faster: replace what it wrote
            aside.rename(target)
            return
    if not _exchange(aside, target):
        rename_twice(aside, target)


def rename_twice(aside: Path, target: Path) -> None:
    """Where a file system cannot swap two folders: for a moment there is none. The old one is put back on failure."""
    old = aside.with_name(aside.name + "-old")
    target.rename(old)
    try:
        aside.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))
