"""What `tilescale tune` works on: recipes, the layers of a model, or one quick declaration; seen to be possible."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescale.commands.output import UsageError, say
from tilescale.commands.places import bundle_for, database
from tilescale.commands.target import DEFAULT_TOPOLOGY, Declared, declare, no_declaration, topology_named
from tilescale.errors import nearest

if TYPE_CHECKING:
    from tilescale.spec.op import Spec
    from tilescale.tuner.recipe import Tuning


@dataclass(frozen=True)
class Job:
    """One call of `tune`: named specs, their restriction, and where the bundle goes. `record`: the arguments that name
    each workload to `tilescale space`."""

    name: str
    specs: Mapping[str, Spec]
    restrict: Mapping[str, tuple[str | int, ...]]
    tuning: Tuning
    folder: Path
    notes: tuple[str, ...] = ()
    record: Mapping[str, str] = field(default_factory=dict)


def jobs_of(
    recipes: list[Path],
    workload: str | None,
    model: tuple[str | None, int, int],
    declared: Declared,
    export: Path | None,
) -> list[Job]:
    from tilescale.tuner.models import read_model
    from tilescale.tuner.recipe import Recipe, Tuning, read

    given = [bool(recipes), model[0] is not None, declared.op is not None]
    if sum(given) != 1:
        raise UsageError(
            "tune works on RECIPES, on --model or on --op", f"{sum(given)} of them", "give one of the three"
        )
    if declared.op is not None:
        spec = declare(declared)
        record = {spec.op: _quick(spec, declared.element, declared.topology)}
        return [Job(spec.op, {spec.op: spec}, {}, Tuning(), export or Path("bundle") / spec.op, record=record)]
    notes: tuple[str, ...] = ()
    read_recipes: list[Recipe] = []
    if model[0] is not None:
        machine = topology_named(declared.topology or DEFAULT_TOPOLOGY, model[1])
        recipe, skipped = read_model(model[0], machine, model[2], declared.element)
        notes = tuple(f"left out {name}: {why}" for name, why in skipped.items())
        read_recipes.append(recipe)
    else:
        no_declaration(declared)
        read_recipes = [read(path) for path in recipes]
    jobs = []
    for recipe in read_recipes:
        specs = recipe.specs if workload is None else {workload: recipe.spec(workload)}
        folder = recipe.export or Path("bundle") / recipe.path.stem
        if export is not None:
            folder = export if len(read_recipes) == 1 else export / recipe.path.stem
        if model[0] is not None:
            record = {name: _quick(spec, declared.element, declared.topology) for name, spec in specs.items()}
        else:
            chosen = "" if workload is None else f" -w {shlex.quote(workload)}"
            record = dict.fromkeys(specs, shlex.quote(str(recipe.path)) + chosen)
        jobs.append(Job(recipe.title, specs, dict(recipe.restrict), recipe.tuning, folder, notes, record))
    return jobs


def ready(
    jobs: Sequence[Job], chosen: Mapping[str, Any], db: str | None, bundle: bool, spaces: Path | None
) -> str:
    """The database. Everything that can be wrong before a search is said here, before the first one begins."""
    from tilescale.tuner.runners import no_times, without_times
    from tilescale.tuner.strategy import STRATEGIES

    strategy = chosen["strategy"]
    if strategy is not None and strategy not in STRATEGIES:
        raise UsageError("--strategy is known", repr(strategy), nearest(strategy, STRATEGIES.names()))
    if spaces is not None and not spaces.is_dir():
        raise UsageError("--spaces names a folder of recorded spaces", str(spaces), "`tilescale space --record` makes one")
    for job in jobs if bundle else ():
        bundle_for(job.folder, "--export")
    where = database(db, create=True)
    for job in jobs:
        lacking = without_times(job.specs.values(), spaces)
        if lacking:
            for note in job.notes:
                say(note)
            raise no_times(lacking, f"record predicted times, then tune again: {_recording(job, lacking, spaces)}")
    return where


def _recording(job: Job, lacking: Sequence[Spec], spaces: Path | None) -> str:
    """The commands that record the workloads without times."""
    there = "" if spaces is None else f" --spaces {shlex.quote(str(spaces))}"
    named = [job.record[name] for name, spec in job.specs.items() if spec in lacking]
    return " && ".join(f"tilescale space {one} --record{there}" for one in dict.fromkeys(named))


def _quick(spec: Spec, dtype: str, topology: str | None) -> str:
    """The arguments that declare a spec without a recipe."""
    from tilescale.tuner.records import shape_text

    words = ["--op", spec.op, "--shape", shape_text(spec), "--ranks", str(spec.world)]
    words += ["--dtype", dtype] if dtype != "bfloat16" else []
    words += ["--topology", topology] if topology is not None else []
    return shlex.join(words)
