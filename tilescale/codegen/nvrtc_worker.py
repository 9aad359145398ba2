"""A process that compiles with NVRTC and may die of it: `python -m tilescale.codegen.nvrtc_worker --parent PID`.

NVRTC crashes on some malformed text (seen with 13.0.88 on a wgmma statement) and takes its process along, so nothing
that matters runs in this one. It answers {"entry", "options"} with the text as blob by {"kind": "compiled", "error",
"log"} with the cubin as blob; `error` is empty where NVRTC succeeded.
"""

from __future__ import annotations

import argparse
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilescale.errors import MissingDependency
from tilescale.processes.frames import Message
from tilescale.processes.worker import ParentLink

_REMEDY = "pip install cuda-bindings 'nvidia-cuda-nvrtc==13.0.*' (a GPU or driver is not needed)"


def nvrtc_version() -> str:
    """Version of the NVRTC that would compile, such as "13.0.88"; raises MissingDependency where there is none.

    The version of the wheel tells builds apart; a library of the system gives its version and size instead.
    """
    try:
        from cuda.bindings import nvrtc
        from cuda.pathfinder import load_nvidia_dynamic_lib

        found = load_nvidia_dynamic_lib("nvrtc")
        result, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise MissingDependency("compiling needs NVRTC", f"{type(error).__name__}: {error}", _REMEDY) from None
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise MissingDependency("compiling needs an NVRTC that works", str(result), _REMEDY)
    path = Path(found.abs_path).resolve() if found.abs_path else None
    if path and (wheel := _wheel_of(path, major)):
        return wheel
    return f"{major}.{minor}+{path.stat().st_size if path else 0}"


def _wheel_of(library: Path, major: int) -> str:
    """Version of the wheel that holds the library, "" where none does. Asked by its files and not by how it was found:
    whoever loaded it first, torch for one, must not change the version, which is part of cache and database keys."""
    for wheel in ("nvidia-cuda-nvrtc", f"nvidia-cuda-nvrtc-cu{major}"):
        try:
            held = importlib.metadata.distribution(wheel)
        except importlib.metadata.PackageNotFoundError:
            continue
        if any(file.name == library.name and Path(str(held.locate_file(file))).resolve() == library
               for file in held.files or ()):
            return held.version
    return ""


def compile_with_nvrtc(text: bytes, entry: str, options: Sequence[str]) -> tuple[str, str, bytes]:
    """Compile `text` to (error or "", log, cubin). Only for a process that may die."""
    from cuda.bindings import nvrtc

    def check(result: tuple[Any, ...]) -> Any:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(str(result[0]))
        return result[1] if len(result) > 1 else None

    program = check(nvrtc.nvrtcCreateProgram(text, f"{entry}.cu".encode(), 0, [], []))
    try:
        flags = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        check(nvrtc.nvrtcGetProgramLog(program, log))
        readable = log.decode(errors="replace").strip("\0 \n")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return status.name, readable, b""
        cubin = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
        check(nvrtc.nvrtcGetCUBIN(program, cubin))
        return "", readable, cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def answer(message: Message) -> tuple[dict[str, str], bytes]:
    """The header and blob that answer one job."""
    try:
        error, log, cubin = compile_with_nvrtc(message.blob, message.header["entry"], message.header["options"])
    except Exception as unexpected:  # noqa: BLE001 - the job is lost, the worker is not
        error, log, cubin = f"{type(unexpected).__name__}: {unexpected}", "", b""
    return {"kind": "compiled", "error": error, "log": log}, cubin


def main() -> None:
    parser = argparse.ArgumentParser(description="compile jobs of a parent process with NVRTC")
    parser.add_argument("--parent", type=int, required=True, help="process id of the parent")
    link = ParentLink(parser.parse_args().parent)
    link.send({"kind": "hello", "nvrtc": nvrtc_version()})
    while (message := link.receive()).kind != "stop":
        header, cubin = answer(message)
        link.send(header, cubin)


if __name__ == "__main__":
    main()
