"""Runs the small kernels of tests/data/host on the emulator."""

from __future__ import annotations

from pathlib import Path

from tilescale.codegen.table import pack_arguments
from tilescale.runtime.emulator import Machine, Memory, build_candidate

DATA = Path(__file__).parent.parent / "data" / "host"


def library(name: str, bug: int = 0, **defines: object) -> Path:
    """The kernel of `name`.cu, with BUG and other macros defined."""
    macros = "".join(f"#define {key} {value}\n" for key, value in {"BUG": bug, **defines}.items())
    return build_candidate(macros + (DATA / f"{name}.cu").read_text(), [DATA])


def arguments(
    slots: list[int], counters: list[int] = (), *, rank: int = 0, n: int = 0, k: int = 0, time_limit_ns: int = 1 << 40
) -> bytes:
    return pack_arguments(
        slots,
        [0] * len(slots),
        counters,
        state=0,
        steps=0,
        blocks=0,
        time_limit_ns=time_limit_ns,
        rank=rank,
        last=0,
        n=n,
        k=k,
    )


def counters(machine: Machine, rank: int, count: int = 8) -> Memory:
    return machine.register_memory(rank, "counters", 4 * count, kind="counters", data=bytes(4 * count))
