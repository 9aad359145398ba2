"""Builds the emulator's runtime library and kernels for the CPU, cached by content.

Libraries are built aside and renamed into place, so concurrent builders leave one of two equal files. A kernel links
against the runtime of the same folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tilescale.codegen.cache import default_folder
from tilescale.errors import CompileError, EmulationError, MissingDependency

HOST = Path(__file__).parent
INCLUDE = HOST.parent / "include"
_COMMON = (
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-U_FORTIFY_SOURCE",
)
# A kernel never throws, and needs no start-up code. Most of its time passes in the runtime: -O1 compiles faster.
_KERNEL = (
    *_COMMON,
    "-O1",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-DTS_HOST",
    "-w",
    "-Wno-psabi",
    "-Wl,-z,defs",
    "-Wl,-rpath,$ORIGIN",
    "-nostartfiles",
)
_RUNTIME = (*_COMMON, "-O2", "-w", "-Wno-psabi")
_LIMIT_S = 300


@functools.cache
def compiler() -> tuple[str, str]:
    """Path and version of the C++ compiler ("g++", "clang++" or "c++"). Raises MissingDependency without one."""
    for name in ("g++", "clang++", "c++"):
        path = shutil.which(name)
        if path:
            answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
            return path, answer.stdout.splitlines()[0] if answer.stdout else name
    raise MissingDependency(
        "emulation compiles kernels with a C++ compiler",
        "none of g++, clang++, c++ is on the PATH",
        "install g++; without one only emulation is missing: space, verify, emit and compile still work",
    )


def build_runtime(folder: Path | None = None) -> Path:
    """The runtime library in `folder` (default: "host" in the cache of compiled binaries), built if it is not there.

    Raises MissingDependency without a compiler, EmulationError where it cannot be built.
    """
    folder = folder or default_folder() / "host"
    key = _digest(_RUNTIME, _headers((HOST, INCLUDE)))
    target = folder / f"runtime-{key}.so"
    if not target.exists():
        includes = (f"-I{HOST}", f"-I{INCLUDE}")
        failure = _build((*_RUNTIME, *includes, f"-Wl,-soname,{target.name}", str(HOST / "runtime.cpp")), target)
        if failure:
            raise EmulationError("the emulator's runtime compiles", failure, "use a C++17 compiler such as g++ 11")
    return target


def build_candidate(text: str, include_dirs: Iterable[Path] = (), folder: Path | None = None) -> Path:
    """The kernel `text` as a library for `Machine.add_kernel`, from the cache if it was built before.

    `include_dirs` are searched before the device library's own headers. Raises CompileError with the compiler's first
    errors, and what `build_runtime` raises.
    """
    runtime = build_runtime(folder)
    dirs = (*include_dirs, INCLUDE, INCLUDE / "tilescale", HOST)
    target = runtime.parent / f"kernel-{_digest(_KERNEL, (runtime.name, text), _headers(dirs))}.so"
    if not target.exists():
        flags = (*_KERNEL, *(f"-I{path}" for path in dirs), "-x", "c++", "-", "-x", "none", str(runtime))
        failure = _build(flags, target, text)
        if failure:
            raise CompileError(
                "kernel text compiles for the CPU", failure, "see the primitives in codegen/host/primitives.hpp"
            )
    return target


def _build(flags: Sequence[str], target: Path, text: str = "") -> str:
    """Compile to `target`. Returns the first lines of the errors, empty when it was built."""
    path, _ = compiler()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(suffix=".so", prefix="aside-", dir=target.parent)
    except OSError as error:
        raise EmulationError(
            "emulation keeps compiled kernels in a cache folder",
            error,
            "set TILESCALE_CACHE to a folder that can be written",
        ) from error
    os.close(descriptor)
    try:
        done = subprocess.run(
            [path, *flags, "-o", aside], input=text, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        if done.returncode == 0:
            os.replace(aside, target)
            return ""
        errors = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line]
        return " / ".join(errors[:4] or done.stderr.splitlines()[:4]) or f"status {done.returncode}"
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)


def _headers(dirs: Iterable[Path]) -> tuple[str, ...]:
    """Names and contents of the sources in `dirs`, sorted."""
    files = sorted({file for path in dirs for file in path.rglob("*") if file.suffix in (".cuh", ".hpp", ".h", ".cpp")})
    return tuple(part for file in files for part in (file.name, file.read_text()))


def _digest(*parts: Iterable[str]) -> str:
    state = hashlib.sha256("\0".join(compiler()).encode())
    for group in parts:
        for part in group:
            state.update(part.encode() + b"\0")
    return state.hexdigest()[:20]
