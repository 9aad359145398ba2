"""What the queries share: one wide row a trial, key look-ups, and the differences between environments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

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

    from perfdb.session import Database

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


@cache
def wide_columns() -> tuple[str, ...]:
    """The names of the columns of `wide`, in order."""
    return tuple(str(column.key) for column in wide().selected_columns)


def frame(statement: AnySelect, rows: AnyRows) -> pd.DataFrame:
    """A DataFrame with the columns of the statement, also when there are no rows."""
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    return typed(pd.DataFrame([tuple(row) for row in rows], columns=[str(c.key) for c in statement.selected_columns]))


def typed(result: pd.DataFrame) -> pd.DataFrame:
    """The same table with the types that its columns have when there are no rows, too."""
    kinds = {"value_us": "float64", "recorded_at": TIME_ZONE, "session_id": "Int64"}
    return result.astype({name: kind for name, kind in kinds.items() if name in result.columns})


@dataclass(frozen=True)
class Group:
    """Trials of one workload, topology, environment and source, by row id: only inside a group are times compared."""

    workload_id: int
    topology_id: int
    environment_id: int
    source: str


_GROUPS = (
    "SELECT workload_id, topology_id, environment_id, source FROM trial_group WHERE workload_id = ?"
    " ORDER BY topology_id, environment_id, source"
)


def groups(db: Database, workload_id: int) -> list[Group]:
    """The groups of a workload, whatever the number of their trials."""
    return [Group(*row) for row in db.rows(_GROUPS, (workload_id,))]


def in_group(group: Group) -> tuple[sa.ColumnElement[bool], ...]:
    """The WHERE clauses of a group."""
    return (
        Trial.workload_id == group.workload_id,
        Trial.topology_id == group.topology_id,
        Trial.environment_id == group.environment_id,
        Trial.source == group.source,
    )


_ENVIRONMENTS = f"SELECT {', '.join(ENVIRONMENT_FIELDS)} FROM environment WHERE id = ?"


def environment_of(db: Database, environment_id: int) -> EnvironmentKey:
    """A stored environment by row id; asked once, because keys never change."""
    found = db.environments.get(environment_id)
    if found is None:
        (row,) = db.rows(_ENVIRONMENTS, (environment_id,))
        found = db.environments[environment_id] = EnvironmentKey(**dict(zip(ENVIRONMENT_FIELDS, row, strict=True)))
    return found


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
