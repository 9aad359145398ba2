"""Kernel text to binaries: NVRTC in worker processes, with a cache by content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tilescale import canon
from tilescale.codegen import compile_log
from tilescale.codegen.cache import Binary, BinaryCache, default_folder
from tilescale.codegen.nvrtc_worker import nvrtc_version
from tilescale.errors import CompileError
from tilescale.processes.frames import Message
from tilescale.processes.pool import Job, Lost, Pool

__all__ = ["Binary", "CompileFailure", "Compiler", "Source", "compile_text", "headers_digest"]

INCLUDE = Path(__file__).parent / "include"
ARCH = "sm_90a"
# Without -no-cache, a driver that is present keeps binaries and gives them back without the log that holds their registers.
OPTIONS = ("-std=c++17", "--ptxas-options=-v", "-no-cache")
TIMEOUT_S = 60.0

_WORKER = "tilescale.codegen.nvrtc_worker"
_KEY_FORMAT = "1"


@dataclass(frozen=True)
class Source:
    """A kernel to compile: `text` that defines `extern "C"` kernel `entry`.

    `allow`: codes of compile_log (such as "C7510" or "spill") that are no failure for this one.
    """

    text: str
    entry: str
    arch: str = ARCH
    allow: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompileFailure:
    """A source without a usable binary. `status`: "compile_error" or "compile_timeout"; `message` on one line."""

    entry: str
    arch: str
    status: str
    message: str
    log: str = ""


class Compiler:
    """Compiles many sources at once, each in a worker process that may crash or hang at that source's cost alone.

    `workers`: processes, by default as many as there are CPUs to use. `cache_dir`: by default `TILESCALE_CACHE` or the
    user's cache folder. `timeout_s`: limit of one compile. `include`: folder of the device library.
    Workers start when something has to be compiled and end with `close`, with the `with` block, or with this process.
    `compiled` and `hits` count binaries that were made and found.
    """

    def __init__(
        self,
        workers: int | None = None,
        cache_dir: str | Path | None = None,
        timeout_s: float = TIMEOUT_S,
        include: Path = INCLUDE,
    ) -> None:
        self._pool = Pool(_WORKER, workers or len(os.sched_getaffinity(0)), timeout_s)
        self._cache = BinaryCache(Path(cache_dir) if cache_dir is not None else default_folder())
        self._include = include
        self.compiled = 0
        self.hits = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the worker processes."""
        return self._pool.pids

    def key(self, source: Source) -> str:
        """The cache key: everything that decides the binary, and nothing that differs between machines."""
        return _key(source, headers_digest(self._include), nvrtc_version())

    def compile(self, sources: Sequence[Source]) -> list[Binary | CompileFailure]:
        """One outcome a source, in order; equal sources are compiled once.

        Raises MissingDependency without NVRTC, CompileError when the headers change meanwhile.
        """
        headers, version = headers_digest(self._include), nvrtc_version()
        keys = [_key(source, headers, version) for source in sources]
        made: dict[str, Binary | CompileFailure] = {}
        missing: dict[str, Source] = {}
        for key, source in zip(keys, sources, strict=True):
            if key in made or key in missing:
                continue
            if binary := self._cache.get(key):
                made[key] = binary
                self.hits += 1
            else:
                missing[key] = source
        made.update(self._make(missing, headers))
        return [_judge(made[key], source) for key, source in zip(keys, sources, strict=True)]

    def _make(self, missing: Mapping[str, Source], headers: str) -> dict[str, Binary | CompileFailure]:
        """Compile what the cache lacks; each binary is kept as soon as it is there."""
        made: dict[str, Binary | CompileFailure] = {}
        keys = list(missing)

        def keep(index: int, answer: Message | Lost) -> None:
            if headers_digest(self._include) != headers:
                raise CompileError("headers stay the same while kernels compile", str(self._include), "compile again")
            made[keys[index]] = outcome = _outcome(missing[keys[index]], answer)
            if isinstance(outcome, Binary):
                self._cache.put(keys[index], outcome)
                self.compiled += 1

        if missing:
            self._pool.run([self._job(source) for source in missing.values()], keep)
        return made

    def _job(self, source: Source) -> Job:
        options = [f"-arch={source.arch}", *OPTIONS, f"-I{self._include}"]
        return Job({"kind": "compile", "entry": source.entry, "options": options}, source.text.encode())

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def compile_text(
    text: str,
    entry: str,
    arch: str = ARCH,
    *,
    include: Path = INCLUDE,
    allow: tuple[str, ...] = (),
    cache_dir: str | Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Binary:
    """The binary of one kernel. Raises CompileError with the compiler's message, MissingDependency without NVRTC."""
    with Compiler(1, cache_dir, timeout_s, include) as compiler:
        (outcome,) = compiler.compile([Source(text, entry, arch, allow)])
    if isinstance(outcome, CompileFailure):
        raise CompileError(f"kernel {entry} compiles for {arch} ({outcome.status})", outcome.message)
    return outcome


def headers_digest(include: Path) -> str:
    """Digest of every file below `include`: names and bytes."""
    total = hashlib.sha256()
    for path in sorted(path for path in include.rglob("*") if path.is_file()):
        name, data = path.relative_to(include).as_posix().encode(), path.read_bytes()
        total.update(b"%d %d " % (len(name), len(data)) + name + data)
    return total.hexdigest()


def _key(source: Source, headers: str, version: str) -> str:
    parts = (_KEY_FORMAT, version, source.arch, *OPTIONS, headers, source.entry, source.text)
    return hashlib.sha256("".join(f"{len(part)} {part}" for part in parts).encode()).hexdigest()


def _outcome(source: Source, answer: Message | Lost) -> Binary | CompileFailure:
    if isinstance(answer, Lost):
        status = "compile_timeout" if answer.timed_out else "compile_error"
        return CompileFailure(source.entry, source.arch, status, f"compiling {source.entry}: {answer.message}")
    log = compile_log.steady(str(answer.header["log"]))
    if error := str(answer.header["error"]):
        message = f"{error}: {compile_log.first_errors(log)}" if log else error
        return CompileFailure(source.entry, source.arch, "compile_error", message, log)
    used = compile_log.resources(log, source.entry)
    if used is None:
        message = f'the text defines extern "C" kernel {source.entry}; got: no such kernel in the compiler\'s log'
        return CompileFailure(source.entry, source.arch, "compile_error", message, log)
    return Binary(
        cubin=answer.blob,
        entry=source.entry,
        arch=source.arch,
        registers=used.registers,
        spill_bytes=used.spill_bytes,
        stack_bytes=used.stack_bytes,
        shared_bytes=used.shared_bytes,
        log=log,
        digest=canon.digest_bytes(answer.blob),
    )


def _judge(outcome: Binary | CompileFailure, source: Source) -> Binary | CompileFailure:
    """Apply the rules of the log; they are no part of the key, so a cached binary is judged like a new one."""
    if isinstance(outcome, Binary) and (reasons := compile_log.problems(outcome.log, source.allow)):
        return CompileFailure(source.entry, source.arch, "compile_error", "; ".join(reasons), outcome.log)
    return outcome
