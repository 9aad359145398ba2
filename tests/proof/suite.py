"""Runs the mutation suite: plan mutants against the verifier, text mutants against rules and emulator."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from equivalents import plan_reason
from families import plans
from plan_mutants import Mutant, mutants
from runs import PLANS, RUNS
from text_mutants import TextMutant, text_mutants

from tilescale.codegen.emit import emit
from tilescale.codegen.host.build import INCLUDE
from tilescale.codegen.rules import check_kernels
from tilescale.errors import CompileError, EmulationError
from tilescale.runtime.emulate import Run, prepare
from tilescale.runtime.emulator import run_isolated
from tilescale.runtime.scaled import Scaled
from tilescale.schedules.plan import Plan
from tilescale.schedules.verify import verify

# Schedules whose kernels the rules walk for mutants that those that run them do not catch: all roles, and the fused one.
RULED = ("tma small", "sum", "fused pull", "segments", "product", "product of bytes", "switch sums", "switch stores")
ADVERSARIES = ("lazy", "random", "eager", "random", "lazy", "random")
TIMEOUT_S = 60.0
STEP_LIMIT = 3_000_000


@dataclass
class Score:
    """`missed`: not caught and no reason known. `caught_by`: how many by what."""

    mutants: int = 0
    caught: int = 0
    equivalent: list[tuple[str, str]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    caught_by: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, name: str, caught_by: str, reason: str) -> None:
        self.mutants += 1
        self.kinds[kind] += 1
        if caught_by:
            self.caught += 1
            self.caught_by[caught_by] += 1
        elif reason:
            self.equivalent.append((f"{kind}: {name}", reason))
        else:
            self.missed.append(f"{kind}: {name}")


def plan_mutants() -> Iterator[tuple[str, Plan, Mutant]]:
    for name, plan in plans().items():
        for mutant in mutants(plan):
            yield name, plan, mutant


def score_plans(score: Score, chosen: Iterable[tuple[str, Plan, Mutant]]) -> None:
    """Judge plan mutants by the verifier."""
    for name, plan, mutant in chosen:
        found = verify(mutant.plan, cache=None).counterexample
        reason = plan_reason(name, plan, mutant) if found is None else ""
        score.add(f"plan: {mutant.kind}", f"{name}, {mutant.place}", f"verifier: {found.rule}" if found else "", reason)


def score_texts(score: Score, chosen: Iterable[TextMutant], seeds: int = len(ADVERSARIES),
                progress: Callable[[str], None] = lambda text: None) -> None:
    """Judge text mutants by the static rules, then by emulation with every adversary."""
    for mutant in chosen:
        with tempfile.TemporaryDirectory() as folder:
            caught = catch(mutant, Path(folder), seeds)
        score.add(f"text: {mutant.kind}", mutant.place, caught, "" if caught else mutant.harmless)
        progress(f"{mutant.kind}: {mutant.place}: {caught or 'not caught'}")


def catch(mutant: TextMutant, folder: Path, seeds: int = len(ADVERSARIES)) -> str:
    """What catches it, "" where nothing does."""
    include = folder / "include"
    shutil.copytree(INCLUDE, include)
    (include / "tilescale" / mutant.header).write_text(mutant.text)
    caught = _ruled(mutant.runs, include)
    for name in mutant.runs:
        for first in range(0, seeds, 3):
            caught = caught or _emulated(name, include, ADVERSARIES[first : first + 3], first)
    return caught or _ruled(RULED, include)


def _ruled(names: Iterable[str], include: Path) -> str:
    for name in names:
        try:
            violations = check_kernels(emit(*RUNS[name], PLANS.get(name)).kernels, include)
        except CompileError:
            return "rule: unreadable text"
        if violations:
            return f"rule: {violations[0].rule}"
    return ""


def _emulated(name: str, include: Path, adversaries: tuple[str, ...], first: int) -> str:
    spec, schedule = RUNS[name]
    try:
        folders = [include, include / "tilescale"]
        runs = [
            Run(Scaled(spec, schedule, PLANS[name], False), first + i, adversary, folders)
            if name in PLANS
            else prepare(spec, schedule, first + i, adversary, include_dirs=folders)
            for i, adversary in enumerate(adversaries)
        ]
        jobs = [replace(run.job, step_limit=STEP_LIMIT) for run in runs]
        reports = run_isolated(jobs, timeout_s=TIMEOUT_S)
    except CompileError:
        return "compiler"
    except EmulationError:
        return "emulator: does not end"
    for run, report in zip(runs, reports, strict=True):
        if report.fault is not None:
            return f"emulator: {report.fault.kind}"
        wrong = run.judge(report)
        if wrong:
            return "conformance" if "declared" in wrong[0] or "step" in wrong[0] else "emulator: wrong result"
    return ""


def false_alarms(names: Iterable[str] = RUNS) -> list[str]:
    """What the rules, the verifier and the emulator say against unchanged texts and plans: must be nothing."""
    found = [f"plan {name}: {proof}" for name, plan in plans().items() if not (proof := verify(plan, cache=None)).ok]
    for name in names:
        spec, schedule = RUNS[name]
        kernels = emit(spec, schedule, PLANS.get(name)).kernels
        found += [f"rules, {name}: {violation}" for violation in check_kernels(kernels)]
        caught = _emulated(name, INCLUDE, ADVERSARIES[:3], 0)
        found += [f"emulator, {name}: {caught}"] if caught else []
    return found


def all_text_mutants() -> tuple[TextMutant, ...]:
    return tuple(text_mutants())
