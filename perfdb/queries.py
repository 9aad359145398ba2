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
from functools import cache
from typing import TYPE_CHECKING

import sqlalchemy as sa

from perfdb.errors import RecordError
from perfdb.models import Artifact, Environment, Samples, Schedule, Topology, Trial, Workload
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
    AnySelect,
    checked_sources,
    checked_statuses,
    differences_text,
    digest_of,
    environment_differences,
    find_environment,
    frame,
    wide,
)
from perfdb.session import Database
from perfdb.writing import unpack

if TYPE_CHECKING:
    import pandas as pd

# A trial that was interrupted says nothing about its schedule: it never answers a look-up.
ANSWERS = tuple(status for status in STATUSES if status != "interrupted")


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


@cache
def _row_select() -> AnySelect:
    return (
        sa.select(
            Trial.id,
            Schedule.digest,
            Trial.source,
            Trial.status,
            Trial.value_us,
            Trial.message,
            sa.func.coalesce(Artifact.binary_digest, ""),
            sa.func.coalesce(Artifact.table_digest, ""),
            Trial.session_id,
            Trial.recorded_at,
            Environment.digest,
        )
        .select_from(Trial)
        .join(Workload, Workload.id == Trial.workload_id)
        .join(Topology, Topology.id == Trial.topology_id)
        .join(Environment, Environment.id == Trial.environment_id)
        .join(Schedule, Schedule.id == Trial.schedule_id)
        .outerjoin(Artifact, Artifact.id == Trial.artifact_id)
        .where(
            Workload.digest == sa.bindparam("workload"),
            Topology.digest == sa.bindparam("topology"),
            Trial.source == sa.bindparam("source"),
            Trial.status.in_(ANSWERS),
        )
    )


@cache
def _exact_select() -> AnySelect:
    return (
        _row_select()
        .where(Environment.digest == sa.bindparam("environment"), Schedule.digest == sa.bindparam("schedule"))
        .order_by(Trial.id.desc())
        .limit(1)
    )


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
    key = {"workload": digest_of(workload), "topology": digest_of(topology), "source": source}
    key["schedule"] = digest_of(schedule)
    with db.read() as connection:
        row = connection.execute(_exact_select(), {**key, "environment": digest_of(environment)}).first()
        if row is not None:
            return TrialRow(*row)
        if not include_stale:
            return None
        statement = _row_select().where(Schedule.digest == sa.bindparam("schedule")).order_by(Trial.id)
        candidates = [TrialRow(*row) for row in connection.execute(statement, key)]
        return _nearest_environment(connection, environment, candidates)


def _nearest_environment(
    connection: sa.Connection, environment: EnvironmentKey | str, candidates: list[TrialRow]
) -> TrialRow | None:
    asked = find_environment(connection, environment)
    if asked is None:
        raise RecordError("an environment named by its digest must be stored", environment, "pass the EnvironmentKey")
    chosen: tuple[int, TrialRow] | None = None
    for row in candidates:
        stored = find_environment(connection, row.environment)
        assert stored is not None
        differs = environment_differences(asked, stored)
        if chosen is None or len(differs) <= chosen[0]:
            chosen = (len(differs), replace(row, stale=True, differs=differences_text(differs)))
    return None if chosen is None else chosen[1]


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
    key = {"workload": digest_of(workload), "topology": digest_of(topology), "source": source}
    statement = _row_select().where(Environment.digest == sa.bindparam("environment")).order_by(Trial.id)
    with db.read() as connection:
        rows = connection.execute(statement, {**key, "environment": digest_of(environment)}).all()
    return {str(row[1]): TrialRow(*row) for row in rows}


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
    from perfdb.ranking import Question, ranked

    question = Question(
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
    if limit < 1:
        raise RecordError("limit must be at least 1", limit)
    with db.read() as connection:
        result = ranked(connection, question, limit, include_stale)
        result["match"] = "exact"
        if result.empty and nearest and question.gpu is not None:
            names = similar_gpus(connection, question.gpu)
            if names:
                result = ranked(connection, replace(question, gpu=names[0]), limit, include_stale)
                result["match"] = f"nearest to {question.gpu}"
                result.attrs["notes"] = (
                    f"no exact match for GPU {question.gpu}: these are times of {names[0]}",
                    *result.attrs["notes"],
                )
    return result


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
    statement = wide().where(IS_OK, Trial.source.in_(checked_sources(sources, ("measured",))))
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
        statement = statement.where(Trial.recorded_at >= since)
    with db.read() as connection:
        result = frame(statement, connection.execute(statement.order_by(Trial.recorded_at, Trial.id)).all())
    if policy == "best" and not result.empty:
        lone = result["session_id"].isna()
        point = result["session_id"].astype("Float64").where(~lone, -result["trial_id"].astype("Float64"))
        keys = [point.astype("int64"), *(result[name] for name in ("workload", "topology", "environment", "source"))]
        result = result.loc[sorted(result.groupby(keys)["value_us"].idxmin())].reset_index(drop=True)
    return result


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
