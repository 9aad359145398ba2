"""What the compiler's log says: resources of a kernel, and the lines that make a kernel a failure.

A kernel that compiles may still be one that nobody wants: register spills, `setmaxnreg` ignored, wgmma serialised. The
compiler reports those as information only, so they are looked for here (`--ptxas-options=-v`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

SPILL = "spill"
FORBIDDEN = {
    "C7508": "setmaxnreg is ignored",
    "C7510": "wgmma instructions are serialised",
    "C7517": "a wait is injected between wgmma instructions",
}

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_CODE = re.compile(r"\((C\d+)\)")
_LOSS = "Potential Performance Loss"
_ERROR = re.compile(r"\b(error|fatal)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Resources:
    """Of one kernel: registers a thread; bytes of spill (stores and loads), stack frame and static shared memory."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


def resources(log: str, entry: str) -> Resources | None:
    """Resources of `entry`; None where the log does not speak of it, so the text has no such kernel."""
    found = None
    registers = spill = stack = shared = 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            found = match.group(1) if found != entry else found
            if found == entry and match.group(1) != entry:
                break
        if found != entry:
            continue
        if match := _STACK.search(line):
            stack, spill = int(match.group(1)), int(match.group(2)) + int(match.group(3))
        if match := _REGISTERS.search(line):
            registers = int(match.group(1))
            shared = int(inner.group(1)) if (inner := _SHARED.search(line)) else 0
    return Resources(registers, spill, stack, shared) if found == entry else None


def problems(log: str, allow: Collection[str] = ()) -> tuple[str, ...]:
    """Reasons to refuse what the compiler accepted, each with its code; `allow` lists codes (or "spill") to let pass.

    Codes: those of FORBIDDEN, any other that the compiler calls a performance loss, and "spill" for spilled registers
    of any kernel of the text.
    """
    reasons = []
    entry = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match.group(1)
        if (match := _CODE.search(line)) and (match.group(1) in FORBIDDEN or _LOSS in line):
            code = match.group(1)
            if code not in allow:
                reasons.append(f"{code}: {FORBIDDEN.get(code, 'performance loss')} ({line.split(')', 1)[1].strip()})")
        if (match := _STACK.search(line)) and SPILL not in allow:
            stores, loads = int(match.group(2)), int(match.group(3))
            if stores or loads:
                reasons.append(f"{SPILL}: {entry} spills registers ({stores} bytes stored, {loads} bytes loaded)")
    return tuple(reasons)


def steady(log: str) -> str:
    """`log` without the lines that hold a time: the same for the same text."""
    return "\n".join(line for line in log.splitlines() if "Compile time =" not in line)


def first_errors(log: str, limit: int = 3) -> str:
    """The first lines of `log` that report an error, on one line; the start of the log where none does."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)] or lines
    return " | ".join(errors[:limit])
