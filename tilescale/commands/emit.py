"""`tilescale emit` and `tilescale compile`: the program of a schedule, and its binaries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilescale.commands.bar import Bar
from tilescale.commands.output import FAILED, say, show, show_json, table
from tilescale.commands.places import folder_for
from tilescale.commands.selection import best_predicted, select
from tilescale.commands.target import AsJson, ScheduleText, Target, single, takes_targets

if TYPE_CHECKING:
    from tilescale.codegen.program import Program


@takes_targets
def emit(
    targets: Sequence[Target],
    schedule: ScheduleText = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the texts and program.json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the kernel texts of a schedule.

    The best predicted of those named; with --json the whole program.
    """
    from tilescale import canon

    if output is not None:
        folder_for(output, "--output")
    program = _program(targets, schedule)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        for kernel in program.kernels:
            (output / f"{kernel.entry}-{kernel.digest}.cu").write_text(kernel.text)
        (output / "program.json").write_text(canon.dumps(program) + "\n")
        show(f"{len(program.kernels)} kernels and program.json: {output}")
    elif as_json:
        show_json(canon.encode(program))
    else:
        for kernel in program.kernels:
            show(f"// {kernel.entry} for {kernel.arch}, digest {kernel.digest}\n{kernel.text}")
        if not program.kernels:
            say("this schedule has no kernels of its own: copies by the copy engine and library calls")


@takes_targets
def compile_(targets: Sequence[Target], schedule: ScheduleText = None, as_json: AsJson = False) -> None:
    """Compile the kernels of a schedule.

    The best predicted of those named. Exit 1 where a kernel does not compile.
    """
    from tilescale.codegen.compile import CompileFailure, Compiler, Source

    program = _program(targets, schedule)
    sources = [Source(kernel.text, kernel.entry, kernel.arch) for kernel in program.kernels]
    with Compiler() as compiler:
        outcomes = compiler.compile(sources)
    failures = [outcome for outcome in outcomes if isinstance(outcome, CompileFailure)]
    rows = [
        [o.entry, o.arch, len(o.cubin), o.registers, o.spill_bytes, o.digest]
        for o in outcomes
        if not isinstance(o, CompileFailure)
    ]
    columns = ["entry", "arch", "bytes", "registers", "spill_bytes", "digest"]
    if as_json:
        show_json(
            {
                "binaries": [dict(zip(columns, row, strict=True)) for row in rows],
                "failures": [{"entry": f.entry, "status": f.status, "message": f.message} for f in failures],
            }
        )
    else:
        table(columns, rows)
    for failure in failures:
        say(f"error: {failure.entry}: {failure.status}: {failure.message}")
    if failures:
        raise typer.Exit(FAILED)


def _program(targets: Sequence[Target], schedule: str | None) -> Program:
    from tilescale.codegen.emit import emit as emitted

    target = single(targets)
    with Bar() as bar:
        chosen = best_predicted(target, select(target, schedule), bar)
    say(f"{target.spec.label}: schedule {chosen.digest} ({chosen.label})")
    return emitted(target.spec, chosen)
