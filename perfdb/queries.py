"""Questions to the database. Tables come back as DataFrames in which `source` is always a column.

Three rules hold everywhere. Trials of different sources, worlds, GPUs or power caps are never ranked against each
other. A question without a source is about `measured` where it names a best. What was measured in another environment
than the one asked for answers only when asked to (`include_stale`), and then says so in `stale` and `differs`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from perfdb.errors import RecordError
from perfdb.fast import read_time
from perfdb.models import Environment, Point, Samples, Schedule, Topology, Trial, Workload
from perfdb.ranking import ranked
from perfdb.ranking_sql import Question
from perfdb.records import (
    ENVIRONMENT_FIELDS,
    SOURCES,
    STATUSES,
    EnvironmentKey,
    ScheduleKey,
    TopologyKey,
    TrialRow,
    WorkloadKey,
    normal_gpu,
)
from perfdb.selects import (
    IS_FAILURE,
    IS_OK,
    checked_sources,
    checked_statuses,
    differences_text,
    digest_of,
    environment_differences,
    environment_of,
    find_environment,
    frame,
    groups,
    typed,
    wide,
)
from perfdb.session import Database
from perfdb.writing import unpack

if TYPE_CHECKING:
    import pandas as pd


def trials(
    db: Database,
    *,
    workload: WorkloadKey | str | None = None,
    topology: TopologyKey | str | None = None,
    environment: EnvironmentKey | str | None = None,
    sources: Sequence[str] | str | None = None,
    statuses: Sequence[str] | str | None = None,
    session_id: int | None = None,
    include_stale: bool = False,
) -> pd.DataFrame:
    """Every trial that fits, oldest first, failures too; None asks for all.

    `stale` is True of rows of another environment than the one asked for; they are there only with `include_stale`.
    """
    statement = wide().where(
        Trial.source.in_(checked_sources(sources, SOURCES)), Trial.status.in_(checked_statuses(statuses, STATUSES))
    )
    if workload is not None:
        statement = statement.where(Workload.digest == digest_of(workload))
    if topology is not None:
        statement = statement.where(Topology.digest == digest_of(topology))
    if environment is not None and not include_stale:
        statement = statement.where(Environment.digest == digest_of(environment))
    if session_id is not None:
        statement = statement.where(Trial.session_id == session_id)
    with db.read() as connection:
        result = frame(statement, connection.execute(statement.order_by(Trial.id)).all())
        asked = None if environment is None else find_environment(connection, environment)
    return _mark_stale(result, environment, asked)


def _mark_stale(
    result: pd.DataFrame, environment: EnvironmentKey | str | None, asked: EnvironmentKey | None
) -> pd.DataFrame:
    wanted = None if environment is None else digest_of(environment)
    result["stale"] = False if wanted is None else (result["environment"] != wanted)
    differs = dict.fromkeys(result["environment"].unique(), "")
    if wanted is not None:
        firsts = result.drop_duplicates("environment")
        for row in firsts[["environment", *ENVIRONMENT_FIELDS]].to_dict("records"):
            digest = row.pop("environment")
            if asked is None:
                differs[digest] = f"environment: asked {wanted}, stored {digest}"
            else:
                differs[digest] = differences_text(environment_differences(asked, EnvironmentKey(**row)))
    result["differs"] = result["environment"].map(differs).astype("str")
    return result


_ROW = (
    "SELECT trial.id, schedule.digest, trial.source, trial.status, trial.value_us, trial.message,"
    " coalesce(artifact.binary_digest, ''), coalesce(artifact.table_digest, ''), trial.session_id, trial.recorded_at,"
    " environment.digest "
)
_REST = (
    " AND standing.workload_id = workload.id AND standing.topology_id = topology.id"
    " AND standing.environment_id = environment.id AND standing.source = ?"
)
# CROSS JOIN keeps SQLite to this order: the keys by their digests, then one row of `standing`.
_KEYS = "FROM workload CROSS JOIN topology CROSS JOIN environment CROSS JOIN "
_TRIAL = " JOIN trial ON trial.id = standing.trial_id LEFT JOIN artifact ON artifact.id = trial.artifact_id "
_BY_DIGEST = "WHERE workload.digest = ? AND topology.digest = ? AND environment.digest = ?"
_EXACT = (
    f"{_ROW}{_KEYS} schedule CROSS JOIN standing {_TRIAL} {_BY_DIGEST} AND schedule.digest = ? {_REST}"
    " AND standing.schedule_id = schedule.id"
)
_KNOWN = f"{_ROW}{_KEYS} standing JOIN schedule ON schedule.id = standing.schedule_id {_TRIAL} {_BY_DIGEST} {_REST}"
_IN_GROUP = (
    f"{_ROW} FROM standing JOIN schedule ON schedule.id = standing.schedule_id"
    f" JOIN environment ON environment.id = standing.environment_id {_TRIAL}"
    "WHERE standing.workload_id = ? AND standing.topology_id = ? AND standing.environment_id = ?"
    " AND standing.source = ? AND standing.schedule_id = ?"
)


def _trial_row(row: tuple[Any, ...]) -> TrialRow:
    trial, schedule, source, status, value_us, message, binary, table, session, time, environment = row
    head = (trial, schedule, source, status, value_us, message, binary, table, session)
    return TrialRow(*head, read_time(time), environment)


def exact(
    db: Database,
    workload: WorkloadKey | str,
    topology: TopologyKey | str,
    environment: EnvironmentKey | str,
    schedule: ScheduleKey | str,
    *,
    source: str = "measured",
    include_stale: bool = False,
) -> TrialRow | None:
    """The newest trial of exactly this key, good or failed (never an interrupted one); None if there is none.

    With `include_stale`, a miss is answered by the trial of the nearest other environment (fewest fields differ, then
    the newest), marked `stale` with `differs`. `perfdb.explain_miss` says why nothing was found.
    """
    checked_sources(source, ())
    digests = (digest_of(workload), digest_of(topology), digest_of(environment), digest_of(schedule))
    found = db.rows(_EXACT, (*digests, source))
    if found:
        return _trial_row(found[0])
    return _nearest_environment(db, environment, digests, source) if include_stale else None


def _nearest_environment(
    db: Database, environment: EnvironmentKey | str, digests: tuple[str, str, str, str], source: str
) -> TrialRow | None:
    workload, topology, schedule = (
        db.rows(f"SELECT id FROM {table} WHERE digest = ?", (digest,))
        for table, digest in zip(("workload", "topology", "schedule"), (*digests[:2], digests[3]), strict=True)
    )
    if not (workload and topology and schedule):
        return None
    with db.read() as connection:
        asked = find_environment(connection, environment)
    if asked is None:
        raise RecordError("an environment named by its digest must be stored", environment, "pass the EnvironmentKey")
    chosen: tuple[int, int, TrialRow] | None = None
    for group in groups(db, int(workload[0][0])):
        if group.topology_id != topology[0][0] or group.source != source:
            continue
        key = (group.workload_id, group.topology_id, group.environment_id, group.source, schedule[0][0])
        for row in map(_trial_row, db.rows(_IN_GROUP, key)):
            differs = environment_differences(asked, environment_of(db, group.environment_id))
            rank = (-len(differs), row.trial_id)
            if chosen is None or rank > chosen[:2]:
                chosen = (*rank, replace(row, stale=True, differs=differences_text(differs)))
    return None if chosen is None else chosen[2]


def known(
    db: Database,
    workload: WorkloadKey | str,
    topology: TopologyKey | str,
    environment: EnvironmentKey | str,
    *,
    source: str = "measured",
) -> dict[str, TrialRow]:
    """What `exact` would answer for each schedule of this key, by digest: what a resumed run need not measure."""
    checked_sources(source, ())
    digests = (digest_of(workload), digest_of(topology), digest_of(environment))
    rows = sorted(db.rows(_KNOWN, (*digests, source)))
    return {str(row[1]): _trial_row(row) for row in rows}


def best(
    db: Database,
    *,
    op: str | None = None,
    shape: str | None = None,
    gpu: str | None = None,
    world: int | None = None,
    power_cap_w: int | None = None,
    workload: WorkloadKey | str | None = None,
    topology: TopologyKey | str | None = None,
    environment: EnvironmentKey | str | None = None,
    sources: Sequence[str] | str | None = None,
    limit: int = 10,
    include_stale: bool = False,
    nearest: bool = False,
) -> pd.DataFrame:
    """The `limit` fastest schedules of each comparable group, `measured` alone unless `sources` says otherwise.

    A group is one workload, topology, source and environment, and `rank` counts inside it. Of environments that differ
    only in toolchain, timer or validation, the one measured last answers; the others are `stale` and left out unless
    `include_stale`. A schedule counts once, with its newest trial. A GPU model without rows gives an empty frame, or
    with `nearest` the rows of the most similar name, labelled in `match`. `frame.attrs["notes"]` says what was kept
    apart or left out.
    """
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    question = _question(op, shape, gpu, world, power_cap_w, workload, topology, environment, sources, limit)
    found, match = ranked(db, question, limit, include_stale), "exact"
    notes = found.notes
    if not found.rows and nearest and question.gpu is not None:
        with db.read() as connection:
            names = similar_gpus(connection, question.gpu)
        if names:
            found = ranked(db, replace(question, gpu=names[0]), limit, include_stale)
            match = f"nearest to {question.gpu}"
            notes = (f"no exact match for GPU {question.gpu}: these are times of {names[0]}", *found.notes)
    result = typed(pd.DataFrame(list(found.rows), columns=list(found.columns)))
    result["match"] = match
    if result.empty:
        result = result.astype({"rank": "int64", "stale": "bool", "differs": "str"})
    result.attrs["notes"] = notes
    return result


def top(
    db: Database,
    *,
    op: str | None = None,
    shape: str | None = None,
    gpu: str | None = None,
    world: int | None = None,
    power_cap_w: int | None = None,
    workload: WorkloadKey | str | None = None,
    topology: TopologyKey | str | None = None,
    environment: EnvironmentKey | str | None = None,
    sources: Sequence[str] | str | None = None,
    limit: int = 10,
    include_stale: bool = False,
) -> list[dict[str, Any]]:
    """The rows of `best` (without `match`) as dictionaries, without pandas: for code that asks often."""
    question = _question(op, shape, gpu, world, power_cap_w, workload, topology, environment, sources, limit)
    found = ranked(db, question, limit, include_stale)
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def _question(
    op: str | None,
    shape: str | None,
    gpu: str | None,
    world: int | None,
    power_cap_w: int | None,
    workload: WorkloadKey | str | None,
    topology: TopologyKey | str | None,
    environment: EnvironmentKey | str | None,
    sources: Sequence[str] | str | None,
    limit: int,
) -> Question:
    if limit < 1:
        raise RecordError("limit must be at least 1", limit)
    return Question(
        op=op,
        shape=shape,
        gpu=None if gpu is None else normal_gpu(gpu),
        world=world,
        power_cap_w=power_cap_w,
        workload=None if workload is None else digest_of(workload),
        topology=None if topology is None else digest_of(topology),
        environment=None if environment is None else digest_of(environment),
        sources=checked_sources(sources, ("measured",)),
    )


def similar_gpus(connection: sa.Connection, gpu: str) -> list[str]:
    """The GPU models with stored environments, the most similar name first, without the model itself."""
    names = sorted(connection.execute(sa.select(Environment.gpu).distinct()).scalars())
    wanted = normal_gpu(gpu)
    others = [name for name in names if name != wanted]
    return sorted(others, key=lambda name: (-difflib.SequenceMatcher(None, wanted, name).ratio(), name))


def history(
    db: Database,
    *,
    op: str | None = None,
    shape: str | None = None,
    gpu: str | None = None,
    workload: WorkloadKey | str | None = None,
    topology: TopologyKey | str | None = None,
    schedule: ScheduleKey | str | None = None,
    sources: Sequence[str] | str | None = None,
    since: datetime | None = None,
    policy: str = "best",
) -> pd.DataFrame:
    """Good trials over time, oldest first; power cap, driver and toolchain are columns of each point.

    `policy` "best": the fastest trial of each session, workload, topology, environment and source (trials outside of a
    session stand for themselves); "all": every trial. Follow one schedule with `schedule=`.
    """
    if policy not in ("best", "all"):
        raise RecordError("policy must be one of best, all", policy)
    # The summary knows the fastest of each run; one schedule's own points are found among its trials.
    summed = policy == "best" and schedule is None
    moment, source = (Point.recorded_at, Point.source) if summed else (Trial.recorded_at, Trial.source)
    statement = wide().where(IS_OK, source.in_(checked_sources(sources, ("measured",))))
    if summed:
        statement = statement.join(Point, Point.trial_id == Trial.id).where(
            Point.workload_id == Workload.id,
            Point.topology_id == Topology.id,
            Point.environment_id == Environment.id,
        )
    for column, value in (
        (Workload.op, op),
        (Workload.shape, shape),
        (Environment.gpu, None if gpu is None else normal_gpu(gpu)),
        (Workload.digest, None if workload is None else digest_of(workload)),
        (Topology.digest, None if topology is None else digest_of(topology)),
        (Schedule.digest, None if schedule is None else digest_of(schedule)),
    ):
        if value is not None:
            statement = statement.where(column == value)
    if since is not None:
        statement = statement.where(moment >= since)
    with db.read() as connection:
        result = frame(statement, connection.execute(statement.order_by(moment, Trial.id)).all())
    return result if summed or policy == "all" else _fastest_of_each_run(result)


def _fastest_of_each_run(points: pd.DataFrame) -> pd.DataFrame:
    if points.empty:
        return points
    lone = points["session_id"].isna()
    run = points["session_id"].astype("Float64").where(~lone, -points["trial_id"].astype("Float64"))
    keys = [run.astype("int64"), *(points[name] for name in ("workload", "topology", "environment", "source"))]
    return points.loc[sorted(points.groupby(keys)["value_us"].idxmin())].reset_index(drop=True)


def failures(
    db: Database,
    *,
    op: str | None = None,
    shape: str | None = None,
    gpu: str | None = None,
    sources: Sequence[str] | str | None = None,
    session_id: int | None = None,
) -> pd.DataFrame:
    """How many trials failed, by source, op and status, most first, each with its newest message as an example."""
    example = sa.func.max(sa.case((Trial.message != "", Trial.id), else_=None))
    counts = (
        sa.select(
            Trial.source,
            Workload.op,
            Trial.status,
            sa.func.count().label("count"),
            sa.func.count(Trial.schedule_id.distinct()).label("schedules"),
            sa.func.coalesce(example, sa.func.max(Trial.id)).label("trial_id"),
        )
        .join(Workload, Workload.id == Trial.workload_id)
        .join(Environment, Environment.id == Trial.environment_id)
        .where(IS_FAILURE, Trial.source.in_(checked_sources(sources, SOURCES)))
        .group_by(Trial.source, Workload.op, Trial.status)
    )
    for column, value in (
        (Workload.op, op),
        (Workload.shape, shape),
        (Environment.gpu, None if gpu is None else normal_gpu(gpu)),
        (Trial.session_id, session_id),
    ):
        if value is not None:
            counts = counts.where(column == value)
    table = counts.subquery()
    statement = (
        sa.select(*table.c, Trial.recorded_at, Trial.message)
        .join(Trial, Trial.id == table.c.trial_id)
        .order_by(table.c.count.desc(), table.c.source, table.c.op, table.c.status)
    )
    with db.read() as connection:
        return frame(statement, connection.execute(statement).all())


def samples(db: Database, trial_id: int) -> pd.DataFrame:
    """The samples of a trial: columns source, rank, sample (0, 1, ...) and us, exactly as they were recorded.

    Errors: RecordError if there is no such trial. A trial without samples gives an empty frame.
    """
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    rows = sa.select(Samples.rank, Samples.encoding, Samples.data).where(Samples.trial_id == trial_id)
    with db.read() as connection:
        source = connection.execute(sa.select(Trial.source).where(Trial.id == trial_id)).scalar()
        if source is None:
            raise RecordError("the trial must exist", trial_id, "take a trial_id from a query")
        stored = connection.execute(rows.order_by(Samples.rank)).all()
    points = [
        (source, rank, number, value)
        for rank, encoding, data in stored
        for number, value in enumerate(unpack(encoding, data))
    ]
    return pd.DataFrame(points, columns=["source", "rank", "sample", "us"]).astype({"us": "float64"})
