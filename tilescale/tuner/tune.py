"""`tune`: search the schedule space of one or several specs, and remember every measurement."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, overload

from tilescale.arguments import check_path, check_runner, check_spec, shown
from tilescale.errors import RunnerError, ScheduleError, SpecError
from tilescale.runtime.runner import Runner
from tilescale.schedules.knob import Value
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.schedules.transports import TRANSPORTS
from tilescale.spec.op import Spec
from tilescale.tuner import records
from tilescale.tuner.baselines import times
from tilescale.tuner.experience import of_other_workloads
from tilescale.tuner.finalists import MOST, settle
from tilescale.tuner.interrupt import Guard
from tilescale.tuner.launched import Launch, together
from tilescale.tuner.prior import Predictor, Prior, analytic
from tilescale.tuner.progress import Progress, Report, silent
from tilescale.tuner.result import Result, Results
from tilescale.tuner.revision import revision
from tilescale.tuner.runners import REMEDY, Choice, choose, no_times, without_times
from tilescale.tuner.search import Budget, Search
from tilescale.tuner.store import Store, opened
from tilescale.tuner.strategy import STRATEGIES, Context, Strategy
from tilescale.tuner.ties import Verdict, decide
from tilescale.tuner.trial import Trial
from tilescale.tuner.turns import turn

if TYPE_CHECKING:
    import perfdb

Restriction = Mapping[str, Sequence[Value]]
DEFAULT_STRATEGY = "learned"
_PREFETCHED = 64


@dataclass(frozen=True)
class Settings:
    """What all specs of one call share."""

    trials: int
    seconds: float
    seed: int
    runner: Runner | None
    resume: bool
    strategy: str
    report: Report
    predictor: Predictor
    spaces: Path | None = None
    turns: bool = True
    wait: bool = True
    guard: Guard = field(default_factory=Guard)

    def __post_init__(self) -> None:
        if isinstance(self.trials, bool) or not isinstance(self.trials, int) or self.trials < 1:
            raise RunnerError("trials is a positive integer", self.trials, "give the number of candidates to try")
        if not self.seconds > 0:
            raise RunnerError("seconds is positive", self.seconds, "give the time that a spec may take")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise RunnerError("seed is an integer from 0 to 2^32 - 1", self.seed, "for example seed=0")
        STRATEGIES[self.strategy]
        if self.runner is not None:
            check_runner(self.runner)


@overload
def tune(
    spec: Spec,
    trials: int = ...,
    seconds: float = ...,
    db: str | Path | perfdb.Database | None = ...,
    seed: int = ...,
    runner: Runner | None = ...,
    resume: bool = ...,
    *,
    space: Restriction | Space | None = ...,
    strategy: str = ...,
    progress: Report | None = ...,
    command: str = ...,
    predictor: Predictor = ...,
    spaces: str | Path | None = ...,
    wait: bool = ...,
) -> Result: ...
@overload
def tune(
    spec: Mapping[str, Spec],
    trials: int = ...,
    seconds: float = ...,
    db: str | Path | perfdb.Database | None = ...,
    seed: int = ...,
    runner: Runner | None = ...,
    resume: bool = ...,
    *,
    space: Restriction | Space | None = ...,
    strategy: str = ...,
    progress: Report | None = ...,
    command: str = ...,
    predictor: Predictor = ...,
    spaces: str | Path | None = ...,
    wait: bool = ...,
) -> Results: ...
def tune(
    spec: Spec | Mapping[str, Spec],
    trials: int = 200,
    seconds: float = 600,
    db: str | Path | perfdb.Database | None = None,
    seed: int = 0,
    runner: Runner | None = None,
    resume: bool = True,
    *,
    space: Restriction | Space | None = None,
    strategy: str = DEFAULT_STRATEGY,
    progress: Report | None = None,
    command: str = "",
    predictor: Predictor = analytic,
    spaces: str | Path | None = None,
    wait: bool = True,
) -> Result | Results:
    """The fastest schedule of `spec`; of a mapping of names to specs, one Result each, tuned in one session.

    `trials` and `seconds` bound the search of each spec; candidates that the database answers count as trials and take
    no time. `db`: a path or URL, where every finished measurement is committed before the next starts; None keeps
    nothing after the call. On GPUs those that the search could not tell apart then race each other, for some seconds at
    most. With `resume`, what is stored for the same work, machine and source is not measured again.
    `runner`: None replays the recorded space of the spec; a runner that is given stays open. `space`: a restriction
    (knob name to allowed values) or a Space. `strategy`: one of STRATEGIES. `progress`: called with Progress values.
    `predictor(spec, schedule)`: the prior, with `.us`. `spaces`: a folder of recorded spaces that is looked at first.
    Two searches of one key in one SQLite file take turns; without `wait` the second goes on at once. Under torchrun every
    rank calls this: rank 0 searches, stores and decides, and all return its answer (see launched.py).

    Ctrl-C and SIGTERM end the search; what was measured is kept and the result says "interrupted". KeyboardInterrupt
    is raised where there is no result yet. Raises SpecError for a spec without kernels, ScheduleError where no schedule
    is feasible (with the rejections by constraint), RunnerError where there are no times or no candidate succeeded. What
    the database raises is a TilescaleError as well as a perfdb.DatabaseError.
    """
    if spaces is not None:
        check_path(spaces, "spaces", RunnerError)
    folder = None if spaces is None else Path(spaces)
    settings = Settings(trials, seconds, seed, runner, resume, strategy, progress or silent, predictor, folder,
                        turns=db is not None, wait=wait)
    specs = _specs(spec)
    told = command or f"tune {', '.join(specs)}"
    results = together(Launch.here(), specs, lambda: _searched(specs, space, db, told, settings))
    return results[spec.op] if isinstance(spec, Spec) else results


def _searched(specs: Mapping[str, Spec], space: Restriction | Space | None, db: str | Path | perfdb.Database | None,
              command: str, settings: Settings) -> Results:
    """All specs in one session of the database."""
    searched = {name: _space(name, one, space) for name, one in specs.items()}
    if settings.runner is None and (lacking := without_times(specs.values(), settings.spaces)):
        raise no_times(lacking, REMEDY)  # said before anything is searched
    with settings.guard.installed(), opened(db) as database:
        session = database.start_session(seed=settings.seed, command=command, revision=revision())
        try:
            results = _tune_all(searched, database, session, settings)
        except KeyboardInterrupt:
            database.end_session(session, "interrupted")
            raise
        except BaseException:
            database.end_session(session, "failed")
            raise
        database.end_session(session, results.status)
    return results


def _specs(spec: object) -> dict[str, Spec]:
    """The specs to tune, by name. Raises SpecError for anything else."""
    if isinstance(spec, Spec):
        return {spec.op: spec}
    if not isinstance(spec, Mapping):
        raise SpecError("what is tuned is a spec, or a mapping of names to specs", shown(spec),
                        "declare one, such as ts.matmul(...)")
    for one in spec.values():
        check_spec(one)
    if not spec:
        raise SpecError("there is something to tune", "no specs", "give at least one")
    return dict(spec)


def _space(name: str, spec: Spec, space: Restriction | Space | None) -> Space:
    spec.require_kernels()
    if spec.dims:
        dim = spec.dims[0]
        raise SpecError(
            "sizes are known when a spec is tuned",
            f"{name}: {spec.label}",
            f"bind them, one spec a bucket: {{'m4096': spec.bind({dim.name}=4096), ...}}",
        )
    found = space if isinstance(space, Space) else Space(spec, dict(space or {}))
    if found.feasible == 0:
        raise ScheduleError(
            f"{name} has a feasible schedule",
            f"none of {found.size} points: {found.explain_empty()}",
            "widen the restriction, or change the shape so that the constraint holds",
        )
    return found


def _tune_all(spaces: Mapping[str, Space], db: perfdb.Database, session: int, settings: Settings) -> Results:
    results: dict[str, Result] = {}
    for name, space in spaces.items():
        try:
            results[name] = _tune_one(name, space, db, session, settings)
        except KeyboardInterrupt:
            if not results:
                raise
            break
        if results[name].status == "interrupted":
            break
    return Results(results, tuple(name for name in spaces if name not in results))


def _tune_one(name: str, space: Space, db: perfdb.Database, session: int, settings: Settings) -> Result:
    started = time.monotonic()
    choice = Choice(settings.runner, "") if settings.runner is not None else choose(space.spec, settings.spaces)
    runner = choice.runner
    notes = [choice.note] if choice.note else []
    waited = Progress(name, "wait", 0, 1)
    with ExitStack() as stack:
        if settings.runner is None:
            stack.callback(runner.close)
        key = records.key_of(space.spec, runner)
        if settings.turns:
            stack.enter_context(turn(db, key, settings.wait, lambda: settings.report(waited)))
            started = time.monotonic()  # waiting is no part of the budget
        store = Store(db, key, session, settings.resume)
        space = _answerable(space, runner)
        _compile_ahead(runner, space)
        search = _search(name, space, runner, store, started + settings.seconds, settings)
        if settings.resume and (stale := store.stale_note(space.schedules[0])):
            notes.append(stale)
        search.run()
        return _result(search, settings.seed, tuple(notes))


def _answerable(space: Space, runner: Runner) -> Space:
    """What a runner has times for: of a recording, the recorded schedules alone, where any are in the space. What goes
    through a switch is for runners whose attribute `multicast` says that they have tried it on this machine: a prior alone
    never proposes it."""
    recorded = getattr(runner, "space", None)
    if recorded is None:
        return space if getattr(runner, "multicast", False) else _without_multicast(space)
    narrowed = space.among(row.schedule for row in recorded.rows)
    return narrowed if narrowed.feasible else space


def _without_multicast(space: Space) -> Space:
    if len(space.without_multicast) == space.feasible:
        return space
    allowed = space.restrict.get("transport", TRANSPORTS.names())
    kept = [name for name in allowed if not TRANSPORTS[str(name)].multicast]
    if not kept:
        raise RunnerError("multimem is for runners that have multicast", f"transport in {list(allowed)}",
                          "allow it on a machine of your own (TILESCALE_MULTICAST=1), or leave the transport open")
    return Space(space.spec, {**space.restrict, "transport": kept}, space.only)


def _compile_ahead(runner: Runner, space: Space) -> None:
    """Tell a runner that compiles of one schedule for each set of binaries: most knobs are tables, so these are few."""
    prefetch = getattr(runner, "prefetch", None)
    if prefetch is None:
        return
    kinds: dict[tuple[object, ...], Schedule] = {}
    for s in space:
        kinds.setdefault((s.transport, s.overlap, s.compute, s.block_m, s.block_n, s.block_k, s.num_stages, s.cluster_m,
                          s.split_k, s.stream_k, s.consumers, s.raster_group), s)
    if len(kinds) <= _PREFETCHED:  # of a space of many tiles, few are ever measured
        prefetch(space.spec, list(kinds.values()))


def _search(name: str, space: Space, runner: Runner, store: Store, deadline: float, settings: Settings) -> Search:
    def predicted(done: int, total: int) -> None:
        settings.report(Progress(name, "predict", done, total))

    prior = Prior(space.spec, space.schedules, settings.predictor, predicted)
    experience = of_other_workloads(store.db, store.key) if settings.strategy == "learned" else ()
    context = Context(space.spec, space, prior, settings.seed, experience)
    strategy: Strategy = STRATEGIES[settings.strategy](context)
    budget = Budget(settings.trials, deadline)
    return Search(name, context, runner, store, strategy, budget, settings.guard, settings.report)


def _result(search: Search, seed: int, notes: tuple[str, ...]) -> Result:
    trials = _with_remembered(search)
    verdict = decide(search.context.spec, trials, search.store.samples)
    if verdict is None:
        if search.status == "interrupted":
            kept = f"{len(trials)} finished, none of them good, and kept" if trials else "nothing was finished"
            raise KeyboardInterrupt(f"{search.name}: {kept}")
        raise RunnerError(f"a candidate of {search.name} succeeds", _failed(trials), _first_message(trials))
    if search.status != "interrupted":
        verdict = _raced(search, verdict)
        _store_decision(search, verdict)
    ties = tuple(trial.schedule for trial in verdict.ties)
    winner = replace(verdict.winner, samples_us=search.store.samples(verdict.winner))
    rows = tuple(winner if trial is verdict.winner else trial for trial in trials)
    return Result(
        search.name,
        search.context.spec,
        winner.schedule,
        winner.time_us,
        times(search.context.spec, trials),
        ties,
        verdict.reason,
        search.store.key.source,
        search.status,
        search.store.session,
        seed,
        search.measured,
        rows,
        notes,
        records.environment_pairs(search.store.key.environment),
    )


def _raced(search: Search, verdict: Verdict) -> Verdict:
    """What a race says, where the runner holds races. One that is interrupted ends the search, which keeps its verdict."""
    race = getattr(search.runner, "race", None)
    if race is None:
        return verdict
    try:
        return settle(search.context.spec, verdict, race,
                      lambda rounds: search.report(Progress(search.name, "race", rounds, MOST)))
    except KeyboardInterrupt:
        search.status = "interrupted"
        return verdict


def _with_remembered(search: Search) -> list[Trial]:
    """The trials, and the fastest stored one where another search found it and this one did not come across it."""
    remembered = search.store.remembered(search.context.space, len(search.trials), search.context.prior.us)
    if remembered is None or any(trial.schedule == remembered.schedule for trial in search.trials):
        return search.trials
    return [*search.trials, remembered]


def _store_decision(search: Search, verdict: Verdict) -> None:
    import perfdb

    key = search.store.key
    search.store.db.record_decision(
        perfdb.DecisionRecord(
            key.workload,
            key.topology,
            key.environment,
            key.source,
            verdict.winner.trial_id,
            tuple(trial.trial_id for trial in verdict.ties),
            verdict.reason,
            search.store.session,
        )
    )


def _failed(trials: list[Trial]) -> str:
    counts: dict[str, int] = {}
    for trial in trials:
        counts[trial.status] = counts.get(trial.status, 0) + 1
    return f"all {len(trials)} failed: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))


def _first_message(trials: list[Trial]) -> str:
    message = next((trial.message for trial in trials if trial.message), "")
    return f"the first one said: {message}" if message else "look at result.trials"
