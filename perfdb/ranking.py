"""Ranking trials inside groups that can be compared, and only there."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from perfdb.models import Environment, Topology, Trial, Workload
from perfdb.records import ENVIRONMENT_FIELDS, EnvironmentKey
from perfdb.selects import (
    IS_OK,
    Group,
    differences_text,
    environment_differences,
    environments,
    frame,
    groups,
    in_group,
    newest,
    wide,
)

if TYPE_CHECKING:
    import pandas as pd

# The machine as it was set up; the other fields (toolchain, timer, validation) are versions that follow one another.
MACHINE_FIELDS = ("gpu", "arch", "power_cap_w", "clock_policy", "gpu_count")
VERSION_FIELDS = tuple(name for name in ENVIRONMENT_FIELDS if name not in MACHINE_FIELDS)


@dataclass(frozen=True)
class Question:
    """What `perfdb.best` was asked, keys as digests; None asks for all."""

    op: str | None
    shape: str | None
    gpu: str | None
    world: int | None
    power_cap_w: int | None
    workload: str | None
    topology: str | None
    environment: str | None
    sources: tuple[str, ...]


def ranked(connection: sa.Connection, question: Question, limit: int, include_stale: bool) -> pd.DataFrame:
    """The `limit` fastest of each group, with columns rank, stale, differs; `attrs["notes"]` is a tuple of texts."""
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    found = list(_matching(connection, question))
    stored = environments(connection, {group.environment_id for group in found})
    stale = _stale(connection, found, stored)
    statement = wide().where(IS_OK, newest()).order_by(Trial.value_us).limit(limit)
    parts = []
    for group in found:
        if group in stale and not include_stale:
            continue
        part = frame(statement, connection.execute(statement.where(*in_group(group))).all())
        if part.empty:
            continue
        part.insert(0, "rank", range(1, len(part) + 1))
        part["stale"], part["differs"] = group in stale, stale.get(group, "")
        parts.append(part)
    if not parts:
        result = frame(statement, [])
        result.insert(0, "rank", pd.Series(dtype="int64"))
        result["stale"], result["differs"] = pd.Series(dtype="bool"), pd.Series(dtype="str")
    else:
        result = pd.concat(parts, ignore_index=True)
    result.attrs["notes"] = _notes(result, stale, include_stale)
    return result


def _matching(connection: sa.Connection, question: Question) -> list[Group]:
    """The groups that fit, fresh and stale, in the order in which they are shown."""
    statement = sa.select(Workload.id).order_by(Workload.op, Workload.world, Workload.id)
    for column, value in (
        (Workload.op, question.op),
        (Workload.shape, question.shape),
        (Workload.world, question.world),
        (Workload.digest, question.workload),
    ):
        if value is not None:
            statement = statement.where(column == value)
    allowed = sa.select(Environment.id)
    for column, value in (
        (Environment.gpu, question.gpu),
        (Environment.power_cap_w, question.power_cap_w),
        (Environment.digest, question.environment),
    ):
        if value is not None:
            allowed = allowed.where(column == value)
    machines = set(connection.execute(allowed).scalars())
    topologies = None
    if question.topology is not None:
        topologies = set(
            connection.execute(sa.select(Topology.id).where(Topology.digest == question.topology)).scalars()
        )
    return [
        group
        for workload_id in connection.execute(statement).scalars().all()
        for group in groups(connection, int(workload_id))
        if group.environment_id in machines
        and group.source in question.sources
        and (topologies is None or group.topology_id in topologies)
    ]


def _stale(connection: sa.Connection, found: list[Group], stored: dict[int, EnvironmentKey]) -> dict[Group, str]:
    """Groups that a later toolchain, timer or validation on the same setting replaced, and how they differ."""
    alike: dict[tuple[object, ...], list[Group]] = defaultdict(list)
    for group in found:
        machine = tuple(getattr(stored[group.environment_id], name) for name in MACHINE_FIELDS)
        alike[group.workload_id, group.topology_id, group.source, *machine].append(group)
    replaced: dict[Group, str] = {}
    for members in alike.values():
        if len(members) == 1:
            continue
        last = {
            group: connection.execute(sa.select(sa.func.max(Trial.id)).where(*in_group(group))).scalar_one()
            for group in members
        }
        current = max(members, key=lambda group: int(last[group]))
        for group in members:
            if group != current:
                differs = environment_differences(stored[current.environment_id], stored[group.environment_id])
                replaced[group] = differences_text(differs)
    return replaced


def _notes(result: pd.DataFrame, stale: dict[Group, str], include_stale: bool) -> tuple[str, ...]:
    notes = []
    for column, what, unit in (
        ("power_cap_w", "power caps", " W"),
        ("source", "sources", ""),
        ("world", "world sizes", ""),
        ("gpu", "GPU models", ""),
    ):
        values = sorted(result[column].unique())
        if len(values) > 1:
            listed = ", ".join(f"{value}{unit}" for value in values)
            notes.append(f"{len(values)} {what} ({listed}): each ranked by itself")
    if stale and not include_stale:
        differs = "; ".join(sorted(set(stale.values())))
        notes.append(f"{len(stale)} older environments left out as stale ({differs}): include_stale shows them")
    return tuple(notes)
