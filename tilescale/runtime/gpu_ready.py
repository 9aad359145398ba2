"""Schedules made ready to run: emitted, compiled, or with the reason why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilescale.codegen.compile import Binary, CompileFailure, Compiler, Source
from tilescale.codegen.emit import emit
from tilescale.codegen.program import Kernel, Program
from tilescale.errors import PlanError, ScheduleError
from tilescale.schedules.constraints import first_broken
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec


@dataclass(frozen=True)
class Ready:
    """An emitted schedule with its binaries, or why there is none."""

    schedule: Schedule
    program: Program | None = None
    binaries: Mapping[str, bytes] | None = None
    status: str = ""
    message: str = ""


class Binaries:
    """Of every kernel that was asked for, kept by its digest. Used from two threads: the compiler lets one wait."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._made: dict[str, Binary | CompileFailure] = {}

    def of_schedules(self, spec: Spec, schedules: Sequence[Schedule]) -> list[Ready]:
        """Emit and compile, all kernels at once. A schedule that breaks a constraint is "illegal", with its rule."""
        programs: list[Program | str] = []
        for schedule in schedules:
            broken = first_broken(spec, schedule)
            if broken is not None:
                programs.append(f"{broken.name}: {broken.rule}")
                continue
            try:
                programs.append(emit(spec, schedule))
            except (PlanError, ScheduleError) as error:
                programs.append(str(error))
        self._compile(kernel for program in programs if isinstance(program, Program) for kernel in program.kernels)
        return [Ready(schedule, status="illegal", message=program) if isinstance(program, str)
                else self.of_program(schedule, program) for schedule, program in zip(schedules, programs, strict=True)]

    def _compile(self, kernels: Iterable[Kernel]) -> None:
        missing = {kernel.digest: kernel for kernel in kernels if kernel.digest not in self._made}
        sources = [Source(kernel.text, kernel.entry, kernel.arch) for kernel in missing.values()]
        self._made.update(zip(missing, self._compiler.compile(sources), strict=True))

    def of_program(self, schedule: Schedule, program: Program) -> Ready:
        """A program with its binaries."""
        self._compile(program.kernels)
        binaries = {}
        for kernel in program.kernels:
            made = self._made[kernel.digest]
            if isinstance(made, CompileFailure):
                return Ready(schedule, program, None, made.status, made.message)
            binaries[kernel.digest] = made.cubin
        return Ready(schedule, program, binaries)
