"""`tilescale tune`: search, prove and emulate the winner, export, and say where everything came from."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilescale.commands.bar import Bar
from tilescale.commands.bundle import Db, not_for_serving
from tilescale.commands.jobs import Job, jobs_of, ready
from tilescale.commands.output import FAILED, INTERRUPTED, reported, say, show, show_json, table
from tilescale.commands.target import AsJson, Declared, Dtype, Op, Ranks, Shape, TopologyName, Workload

if TYPE_CHECKING:
    from tilescale.tuner.progress import Progress
    from tilescale.tuner.result import Result, Results

Recipes = Annotated[list[Path] | None, typer.Argument(help="Recipes (TOML).", show_default=False)]
Model = Annotated[str | None, typer.Option("--model", help="Layers of a model: llama-3-70b, ...")]
Strategy = Annotated[str | None, typer.Option("--strategy", help="learned (default), model, random, exhaustive.")]
Export = Annotated[Path | None, typer.Option("--export", help="Folder of the bundle; bundle/NAME if left out.")]
SHOWN = 10
DEFAULT_TOKENS = 4096


@dataclass
class Checks:
    """What the winner was put through. Texts for a reader; `failed` where one found a fault."""

    proof: str = ""
    emulation: str = ""
    failed: bool = field(default=False)


def tune(
    recipes: Recipes = None,
    workload: Workload = None,
    model: Model = None,
    tp: Annotated[int, typer.Option("--tp", min=1, help="With --model: number of ranks.")] = 8,
    m: Annotated[int, typer.Option("--m", min=1, help="With --model: rows (tokens).")] = DEFAULT_TOKENS,
    op: Op = None,
    shape: Shape = None,
    dtype: Dtype = None,
    ranks: Ranks = None,
    topology: TopologyName = None,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Candidates a workload; 200.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=1, help="Time a workload; 600.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, max=2**32 - 1, help="0 if left out.")] = None,
    strategy: Strategy = None,
    db: Db = None,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Do not measure again what is stored.")] = True,
    export: Export = None,
    bundle: Annotated[bool, typer.Option("--bundle/--no-bundle", help="Write a bundle.")] = True,
    spaces: Annotated[
        Path | None, typer.Option("--spaces", help="Recorded spaces to replay, before the user's own and the shipped.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for another tune of the same work in the database.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Search, prove, emulate and export.

    Works on the workloads of RECIPES, on the layers of --model, or on the one of --op.
    """
    with reported():
        declared = Declared(op, shape, dtype, ranks, topology)
        jobs = jobs_of(recipes or [], workload, (model, tp, m), declared, export)
        chosen = {"trials": trials, "seconds": seconds, "seed": seed, "strategy": strategy}
        where = ready(jobs, chosen, db, bundle, spaces)
        options = {"resume": resume, "spaces": spaces, "wait": wait}
        outcomes = [_run(job, chosen, where, options, bundle, as_json) for job in jobs]
        if as_json:
            show_json({"jobs": outcomes})
        if any(outcome["status"] == "interrupted" for outcome in outcomes):
            raise typer.Exit(INTERRUPTED)
        if any(outcome["failed"] for outcome in outcomes):
            raise typer.Exit(FAILED)


def _run(
    job: Job, chosen: Mapping[str, Any], where: str, options: Mapping[str, Any], bundle: bool, as_json: bool
) -> dict[str, Any]:
    from tilescale.tuner.launched import Launch
    from tilescale.tuner.runners import gpu_note
    from tilescale.tuner.tune import tune as search

    heading = [job.name, gpu_note(), f"database: {where}", *job.notes]
    for line in heading:
        (say if as_json else show)(line)
    settings = {
        name: chosen[name] if chosen[name] is not None else getattr(job.tuning, name)
        for name in chosen
        if chosen[name] is not None or getattr(job.tuning, name) is not None
    }
    with Bar() as bar:
        try:
            results = search(
                dict(job.specs),
                db=where,
                space=job.restrict,
                progress=_reporter(bar),
                command=f"tilescale tune ({job.name})",
                **options,
                **settings,
            )
        except KeyboardInterrupt as interrupt:
            kept = str(interrupt) or "nothing was finished yet"
            raise KeyboardInterrupt(f"{kept}; {where} keeps what it held, and the same command begins again") from None
        launch = Launch.here()
        if launch is not None and launch.rank > 0:  # rank 0 tells, and writes the bundle
            return {"name": job.name, "status": results.status, "failed": [], "bundle": None}
        checks = {name: _check(result, bar) for name, result in results.items()}
    if not as_json:
        for name, result in results.items():
            _show(result, checks[name])
    failed = [name for name, check in checks.items() if check.failed]
    exported = ""
    if bundle and not failed and results.status != "interrupted":
        exported = str(results.export(job.folder, lambda result: checks[result.name].emulation))
    _farewell(results, failed, exported, where, as_json)
    return {
        "name": job.name,
        "database": where,
        "status": results.status,
        "failed": failed,
        "bundle": exported or None,
        "session": results.session,
        "results": [_facts(r, checks[n]) for n, r in results.items()],
    }


def _reporter(bar: Bar) -> Any:
    def report(progress: Progress) -> None:
        if progress.stage == "wait":
            bar.say_once(f"{progress.name}: another tune of this is at work in the database; waiting for it "
                         "(--no-wait goes on at once)")
            return
        if progress.stage == "predict":
            bar.update(f"predicting {progress.name}", progress.done, progress.total)
            return
        if progress.stage == "race":
            bar.update(f"racing the finalists of {progress.name}", progress.done, progress.total)
            return
        best = (
            f"fastest {progress.best_us:.1f} us ({progress.best})" if progress.best_us is not None else "none good yet"
        )
        failed = f", {progress.failed} failed" if progress.failed else ""
        note = f"{best}{failed}, {progress.measured} evaluated now, {progress.seconds_left:.0f} s of the budget left"
        bar.update(f"tuning {progress.name}", progress.done, progress.total, note)

    return report


def _check(result: Result, bar: Bar) -> Checks:
    """Prove and emulate the winner. What cannot be done here is said, and is no failure."""
    from tilescale.errors import EmulationError, MissingDependency
    from tilescale.runtime.emulate import emulate
    from tilescale.schedules.lower import lower
    from tilescale.schedules.verify import verify

    bar.update(f"proving {result.name}", 0, 2)
    proof = verify(lower(result.spec, result.best))
    checks = Checks(proof=str(proof), failed=not proof.ok)
    bar.update(f"emulating {result.name}", 1, 2)
    try:
        emulation = emulate(result.spec, result.best, seed=result.seed)
        checks.emulation = emulation.report
        checks.failed = checks.failed or not emulation.ok
    except (MissingDependency, EmulationError) as error:
        checks.emulation = f"not emulated: {error}"
    bar.update(f"emulating {result.name}", 2, 2)
    return checks


def _show(result: Result, checks: Checks) -> None:
    spec, count = result.spec, len(result.rows)
    show(f"\n{result.name}: {spec.label} on {spec.topology.name}")
    for note in result.notes:
        show(note)
    failures = ", ".join(f"{number} {status}" for status, number in result.failures.items())
    stored = f"{count - result.measured} from the database" + (f"; failed: {failures}" if failures else "")
    show(f"{result.status}: {count} candidates, {result.measured} evaluated now ({result.source}), {stored}")
    show(f"fastest schedules ({result.source}):")
    rows = [
        [t.time_us, t.source, t.predicted_us, t.schedule.label, t.schedule.digest, _mark(result, t.schedule)]
        for t in result.top(SHOWN)
    ]
    columns = ["us", "source", "predicted us", "schedule", "digest", ""]
    if result.source == "predicted":  # the same number twice
        columns, rows = columns[:2] + columns[3:], [row[:2] + row[3:] for row in rows]
    table(columns, rows)
    for name, us in result.baselines.items():
        show(f"baseline {name}: {us:.2f} us ({result.source}), {us / result.best_us:.2f} of the chosen schedule's time")
    show(f"chosen: {result.best.label}, {result.best_us:.2f} us ({result.source}): {result.reason}")
    show(f"proof: {checks.proof}")
    show(f"emulation: {checks.emulation}")


def _mark(result: Result, schedule: object) -> str:
    return "chosen" if schedule == result.best else "tie" if schedule in result.ties else ""


def _farewell(results: Results, failed: list[str], exported: str, where: str, as_json: bool) -> None:
    tell = say if as_json else show
    if failed:
        say(f"error: the chosen schedule of {', '.join(failed)} was not shown right; nothing was exported")
    if exported:
        tell(f"\nbundle: {exported} (tilescale bundle check {exported})")
        for note in not_for_serving(result.spec for result in results.values()):
            tell(note)
    for source in sorted({result.source for result in results.values()}):
        tell(f"to look at the times: perfdb best --source {source} --db {shlex.quote(where)}")
    if results.status == "interrupted":
        kept = ", ".join(f"{name}: {len(result.rows)} candidates" for name, result in results.items())
        say(f"interrupted; what is finished is kept in {where} ({kept}), and the same command goes on from there")
    else:
        tell("the same command answers from the database; more --trials goes on from here, --no-resume begins again")


def _facts(result: Result, checks: Checks) -> dict[str, Any]:
    return {
        "name": result.name,
        "op": result.spec.op,
        "label": result.spec.label,
        "topology": result.spec.topology.name,
        "source": result.source,
        "status": result.status,
        "best_us": result.best_us,
        "reason": result.reason,
        "best": {"digest": result.best.digest, "label": result.best.label, "knobs": result.best.as_dict()},
        "baselines_us": dict(result.baselines),
        "ties": [schedule.digest for schedule in result.ties],
        "candidates": len(result.rows),
        "evaluated": result.measured,
        "failures": result.failures,
        "seed": result.seed,
        "session": result.session,
        "notes": list(result.notes),
        "proof": checks.proof,
        "emulation": checks.emulation,
        "shown_right": not checks.failed,
        "trials": [
            {
                "number": t.number,
                "origin": t.origin,
                "source": t.source,
                "status": t.status,
                "value_us": t.value_us,
                "predicted_us": t.predicted_us if t.predicted_us is None or math.isfinite(t.predicted_us) else None,
                "schedule": t.schedule.digest,
                "label": t.schedule.label,
                "message": t.message,
            }
            for t in result.rows
        ],
    }
