"""What the queries share: one wide row a trial, key look-ups, and the differences between environments."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from perfdb.errors import RecordError
from perfdb.models import Artifact, Environment, Schedule, Topology, Trial, Workload
from perfdb.records import (
    ENVIRONMENT_FIELDS,
    SOURCES,
    STATUSES,
    EnvironmentKey,
    ScheduleKey,
    TopologyKey,
    WorkloadKey,
)

if TYPE_CHECKING:
    import pandas as pd

AnySelect = sa.Select[*tuple[Any, ...]]
AnyRows = Sequence[sa.Row[*tuple[Any, ...]]]
AnyKey = WorkloadKey | TopologyKey | EnvironmentKey | ScheduleKey | str

# SQLite uses a partial index only for its own WHERE clause in so many words, not for a bound value.
IS_OK = sa.text("trial.status = 'ok'")
IS_FAILURE = sa.text("trial.status <> 'ok'")

TIME_ZONE = "datetime64[us, UTC]"


def digest_of(key: AnyKey) -> str:
    """The digest of a key, or the digest itself."""
    return key if isinstance(key, str) else key.digest


def checked_sources(sources: Sequence[str] | str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """Sources as a tuple. Errors: RecordError for one that does not exist."""
    return _checked(sources, SOURCES, default, "source")


def checked_statuses(statuses: Sequence[str] | str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """Statuses as a tuple. Errors: RecordError for one that does not exist."""
    return _checked(statuses, STATUSES, default, "status")


def _checked(
    values: Sequence[str] | str | None, allowed: tuple[str, ...], default: tuple[str, ...], what: str
) -> tuple[str, ...]:
    if values is None:
        return default
    chosen = (values,) if isinstance(values, str) else tuple(values)
    unknown = [value for value in chosen if value not in allowed]
    if unknown or not chosen:
        raise RecordError(f"{what} must be of {', '.join(allowed)}", ", ".join(unknown) or "none")
    return chosen


@cache
def wide() -> AnySelect:
    """A row a trial with every column that labels it; `world` and `source` never have to be guessed."""
    environment = [getattr(Environment, name) for name in ENVIRONMENT_FIELDS]
    return (
        sa.select(
            Trial.id.label("trial_id"),
            Trial.source,
            Trial.status,
            Trial.value_us,
            Workload.op,
            Workload.shape,
            Workload.dtype,
            Trial.world,
            *environment,
            Schedule.label.label("schedule_label"),
            Schedule.digest.label("schedule"),
            Workload.label.label("workload_label"),
            Workload.digest.label("workload"),
            Topology.name.label("topology_name"),
            Topology.kind.label("topology_kind"),
            Topology.digest.label("topology"),
            Environment.digest.label("environment"),
            sa.func.coalesce(Artifact.binary_digest, "").label("binary_digest"),
            sa.func.coalesce(Artifact.table_digest, "").label("table_digest"),
            Trial.session_id,
            Trial.recorded_at,
            Trial.message,
        )
        .select_from(Trial)
        .join(Workload, Workload.id == Trial.workload_id)
        .join(Topology, Topology.id == Trial.topology_id)
        .join(Environment, Environment.id == Trial.environment_id)
        .join(Schedule, Schedule.id == Trial.schedule_id)
        .outerjoin(Artifact, Artifact.id == Trial.artifact_id)
    )


def newest() -> sa.ColumnElement[bool]:
    """No later trial of the same key replaces this one; an interrupted one says nothing and replaces nothing."""
    later = aliased(Trial)
    same = (
        later.workload_id == Trial.workload_id,
        later.topology_id == Trial.topology_id,
        later.environment_id == Trial.environment_id,
        later.source == Trial.source,
        later.schedule_id == Trial.schedule_id,
        later.id > Trial.id,
        later.status != "interrupted",
    )
    return ~sa.exists().where(*same)


def frame(statement: AnySelect, rows: AnyRows) -> pd.DataFrame:
    """A DataFrame with the columns of the statement, also when there are no rows."""
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    columns = [str(column.key) for column in statement.selected_columns]
    result = pd.DataFrame([tuple(row) for row in rows], columns=columns)
    kinds = {"value_us": "float64", "recorded_at": TIME_ZONE, "session_id": "Int64"}
    return result.astype({name: kind for name, kind in kinds.items() if name in result.columns})


@dataclass(frozen=True)
class Group:
    """Trials of one workload, topology, environment and source, by row id: only inside a group are times compared."""

    workload_id: int
    topology_id: int
    environment_id: int
    source: str


@cache
def _next_group() -> AnySelect:
    key = (Trial.topology_id, Trial.environment_id, Trial.source)
    return (
        sa.select(*key)
        .where(
            Trial.workload_id == sa.bindparam("workload"),
            sa.tuple_(*key) > sa.tuple_(*(sa.bindparam(name) for name in ("topology", "environment", "source"))),
        )
        .order_by(*key)
        .limit(1)
    )


def groups(connection: sa.Connection, workload_id: int) -> Iterator[Group]:
    """The groups of a workload. Jumps from group to group in the index: the number of trials does not matter."""
    last: Mapping[str, int | str] = {"topology": 0, "environment": 0, "source": ""}
    while True:
        row = connection.execute(_next_group(), {"workload": workload_id, **last}).first()
        if row is None:
            return
        last = {"topology": row[0], "environment": row[1], "source": row[2]}
        yield Group(workload_id, int(row[0]), int(row[1]), str(row[2]))


def in_group(group: Group) -> tuple[sa.ColumnElement[bool], ...]:
    """The WHERE clauses of a group."""
    return (
        Trial.workload_id == group.workload_id,
        Trial.topology_id == group.topology_id,
        Trial.environment_id == group.environment_id,
        Trial.source == group.source,
    )


def environments(connection: sa.Connection, ids: Collection[int]) -> dict[int, EnvironmentKey]:
    """Stored environments by row id."""
    columns = [getattr(Environment, name) for name in ENVIRONMENT_FIELDS]
    rows = connection.execute(sa.select(Environment.id, *columns).where(Environment.id.in_(sorted(ids))))
    return {int(row[0]): EnvironmentKey(**dict(zip(ENVIRONMENT_FIELDS, row[1:], strict=True))) for row in rows}


def find_environment(connection: sa.Connection, key: EnvironmentKey | str) -> EnvironmentKey | None:
    """The environment itself, or the stored one with that digest."""
    if isinstance(key, EnvironmentKey):
        return key
    found = connection.execute(sa.select(Environment.id).where(Environment.digest == key)).scalar()
    return None if found is None else environments(connection, [found])[found]


def environment_differences(asked: EnvironmentKey, stored: EnvironmentKey) -> tuple[tuple[str, object, object], ...]:
    """(field, asked, stored) for each field that differs, in the order of `ENVIRONMENT_FIELDS`."""
    pairs = ((name, getattr(asked, name), getattr(stored, name)) for name in ENVIRONMENT_FIELDS)
    return tuple((name, mine, theirs) for name, mine, theirs in pairs if mine != theirs)


def differences_text(differences: Sequence[tuple[str, object, object]]) -> str:
    """`driver: asked 590, stored 580; ...`, empty if nothing differs."""
    return "; ".join(f"{name}: asked {_plain(asked)}, stored {_plain(stored)}" for name, asked, stored in differences)


def _plain(value: object) -> str:
    return str(value) if value not in ("", None) else "none"
