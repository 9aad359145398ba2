"""Results from the performance database alone: what is known to be best, without a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescale.errors import RunnerError
from tilescale.runtime.measure import SOURCES
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.tuner import records
from tilescale.tuner.baselines import times
from tilescale.tuner.result import Result, Results
from tilescale.tuner.store import opened, stored_samples
from tilescale.tuner.trial import Trial

if TYPE_CHECKING:
    import perfdb

# The first of these that has rows answers, unless one is asked for: real times before those of models.
PREFERENCE = SOURCES
ENVIRONMENT = ("gpu", "arch", "power_cap_w", "gpu_count", *records.COLUMNS)


def recall(specs: Mapping[str, Spec], db: str | Path | perfdb.Database, source: str | None = None) -> Results:
    """The results stored for these specs. `source`: None takes the best kind that there is, one for all specs.

    A decision of an earlier session names the winner where there is none faster since. Raises RunnerError where nothing
    is stored for a spec, perfdb.MissingDatabase without a database.
    """
    with opened(db, create=False) as database:
        for kind in [source] if source else PREFERENCE:
            found = {name: _result(name, spec, database, kind) for name, spec in specs.items()}
            results = {name: result for name, result in found.items() if result is not None}
            if len(results) == len(specs):
                return Results(results)
        missing = ", ".join(f"{name} ({spec.label})" for name, spec in specs.items())
        raise RunnerError(
            f"{database.url} knows good trials of one source for every workload",
            f"none of {source or 'any source'} for {missing}",
            "tune them first",
        )


def _result(name: str, spec: Spec, db: perfdb.Database, source: str) -> Result | None:
    import perfdb

    workload, topology = records.workload_key(spec), records.topology_key(spec)
    best = perfdb.best(db, workload=workload, topology=topology, sources=source, limit=1)
    if best.empty:
        return None
    environment = str(best["environment"].iloc[0])
    frame = perfdb.trials(db, workload=workload, topology=topology, environment=environment, sources=source)
    schedules = {schedule.digest: schedule for schedule in Space(spec)}
    newest = {row["schedule"]: row for row in frame.to_dict("records") if row["schedule"] in schedules}
    trials = [_trial(at, schedules[digest], row) for at, (digest, row) in enumerate(newest.items())]
    good = sorted((trial for trial in trials if trial.ok), key=lambda trial: (trial.time_us, trial.number))
    if not good:
        return None
    winner = replace(good[0], samples_us=stored_samples(db, good[0].trial_id))
    trials[winner.number] = winner
    facts = tuple(sorted((name, str(best[name].iloc[0])) for name in ENVIRONMENT if best[name].iloc[0]))
    session = newest[winner.schedule.digest]["session_id"]
    return Result(
        name,
        spec,
        winner.schedule,
        winner.time_us,
        times(spec, trials),
        (),
        "the fastest stored",
        source,
        "complete",
        0 if session is None or session != session else int(session),
        0,
        0,
        tuple(trials),
        environment=facts,
    )


def _trial(number: int, schedule: Schedule, row: Mapping[Any, Any]) -> Trial:
    value = row["value_us"]
    return Trial(
        number,
        schedule,
        row["status"],
        row["source"],
        "remembered",
        int(row["trial_id"]),
        None if value != value or value is None else float(value),
        None,
        row["message"] or "",
        (),
        row["binary_digest"] or "",
        row["table_digest"] or "",
    )
