"""tilescale.codegen.compile_log: logs as NVRTC 13.0.88 writes them."""

from __future__ import annotations

import pytest

from tilescale.codegen.compile_log import Resources, first_errors, problems, resources, steady

CLEAN = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k2' for 'sm_90a'
ptxas info    : Function properties for k2
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
ptxas info    : Compile time = 1.631 ms
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compile time = 1.366 ms
"""
SPILLS = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     992 bytes stack frame, 1536 bytes spill stores, 1604 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 992 bytes cumulative stack size
"""
IGNORED = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count"
SERIALISED = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to"
WAITS = "ptxas info    : (C7517) warpgroup.wait is injected in around line 9 by compiler"
UNKNOWN = "ptxas info    : (C7599) Potential Performance Loss: something new"
HARMLESS = "ptxas info    : (C7519) warpgroup.arrive is injected in around line 28 by compiler"
ERRORS = """k.cu(1): error: identifier "q" is undefined
  extern "C" __global__ void k(int*p){ p[0]=q; }
                                            ^

1 error detected in the compilation of "k.cu".
"""


def test_resources_are_those_of_the_entry_asked_for() -> None:
    assert resources(CLEAN, "k") == Resources(registers=12, spill_bytes=0, stack_bytes=16, shared_bytes=1024)
    assert resources(CLEAN, "k2") == Resources(registers=8, spill_bytes=0, stack_bytes=0, shared_bytes=0)
    assert resources(SPILLS, "k") == Resources(registers=32, spill_bytes=3140, stack_bytes=992, shared_bytes=0)


@pytest.mark.parametrize("entry", ["q", "", "k22"])
def test_an_entry_that_is_not_there_has_none(entry: str) -> None:
    assert resources(CLEAN, entry) is None


def test_a_clean_log_has_no_problem() -> None:
    assert problems(CLEAN + HARMLESS) == ()


@pytest.mark.parametrize(
    ("line", "code"),
    [(IGNORED, "C7508"), (SERIALISED, "C7510"), (WAITS, "C7517"), (UNKNOWN, "C7599"), (SPILLS, "spill")],
)
def test_forbidden_lines_are_problems_unless_allowed(line: str, code: str) -> None:
    (reason,) = problems(CLEAN + line)
    assert reason.startswith(f"{code}: ")
    assert problems(CLEAN + line, allow=[code]) == ()
    assert problems(CLEAN + line, allow=["C7000"]) == (reason,)


def test_every_problem_is_told() -> None:
    assert [reason.split(":")[0] for reason in problems("\n".join([IGNORED, SERIALISED, SPILLS]))] == [
        "C7508", "C7510", "spill",
    ]
    assert "k spills registers (1536 bytes stored, 1604 bytes loaded)" in problems(SPILLS)[0]


def test_errors_are_told_first() -> None:
    assert first_errors("warning: x\n" + ERRORS).startswith('k.cu(1): error: identifier "q" is undefined | 1 error')
    assert first_errors("only this\n") == "only this"


def test_a_steady_log_holds_no_time() -> None:
    assert "Compile time" not in steady(CLEAN)
    assert resources(steady(CLEAN), "k") == resources(CLEAN, "k")
