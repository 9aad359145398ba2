"""Ranking trials inside groups that can be compared, and only there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfdb.fast import read_time
from perfdb.records import ENVIRONMENT_FIELDS
from perfdb.selects import (
    Group,
    differences_text,
    environment_differences,
    environment_of,
    groups,
    wide_columns,
)
from perfdb.session import Database

# The machine as it was set up; the other fields (toolchain, timer, validation) are versions that follow one another.
MACHINE_FIELDS = ("gpu", "arch", "power_cap_w", "clock_policy", "gpu_count")
VERSION_FIELDS = tuple(name for name in ENVIRONMENT_FIELDS if name not in MACHINE_FIELDS)

_IN_GROUP = "workload_id = ? AND topology_id = ? AND environment_id = ? AND source = ?"
# What a row says of its workload, topology and environment is the same for its whole group, and is asked once.
_TOP = (
    "SELECT trial.id, trial.value_us, schedule.label, schedule.digest, coalesce(artifact.binary_digest, ''),"
    " coalesce(artifact.table_digest, ''), trial.session_id, trial.recorded_at, trial.message"
    " FROM standing JOIN trial ON trial.id = standing.trial_id JOIN schedule ON schedule.id = standing.schedule_id"
    " LEFT JOIN artifact ON artifact.id = trial.artifact_id WHERE standing.status = 'ok' AND "
    + " AND ".join(f"standing.{part}" for part in _IN_GROUP.split(" AND "))
    + " ORDER BY standing.value_us, standing.trial_id LIMIT ?"
)
_WORKLOAD = "SELECT op, shape, dtype, world, label, digest FROM workload WHERE id = ?"
_TOPOLOGY = "SELECT name, kind, digest FROM topology WHERE id = ?"
_LAST = f"SELECT recorded_at, trial_id FROM point WHERE {_IN_GROUP} ORDER BY recorded_at DESC LIMIT 1"


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


@dataclass(frozen=True)
class Ranking:
    """Rows of `columns`: rank, those of `selects.wide`, stale, differs. `notes`: what was kept apart or left out."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...]


def ranked(db: Database, question: Question, limit: int, include_stale: bool) -> Ranking:
    """The `limit` fastest of each group."""
    found = _matching(db, question)
    stale = _stale(db, found)
    columns = ("rank", *wide_columns(), "stale", "differs")
    rows: list[tuple[Any, ...]] = []
    for group in found:
        if group in stale and not include_stale:
            continue
        rows += _top(db, group, limit, (group in stale, stale.get(group, "")))
    return Ranking(columns, tuple(rows), _notes(columns, rows, stale, include_stale))


def _top(db: Database, group: Group, limit: int, marks: tuple[bool, str]) -> list[tuple[Any, ...]]:
    """The fastest of a group, in the columns of `Ranking`."""
    key = (group.workload_id, group.topology_id, group.environment_id, group.source)
    op, shape, dtype, world, label, work = db.key_row("workload", _WORKLOAD, group.workload_id)
    name, kind, place = db.key_row("topology", _TOPOLOGY, group.topology_id)
    environment = environment_of(db, group.environment_id)
    work_columns = (op, shape, dtype, world, *(getattr(environment, field) for field in ENVIRONMENT_FIELDS))
    place_columns = (label, work, name, kind, place, environment.digest)
    found = []
    for rank, row in enumerate(db.rows(_TOP, (*key, limit)), 1):
        trial, value, schedule_label, schedule, binary, table, session, time, message = row
        head = (rank, trial, group.source, "ok", value, *work_columns, schedule_label, schedule)
        found.append((*head, *place_columns, binary, table, session, read_time(time), message, *marks))
    return found


def _matching(db: Database, question: Question) -> list[Group]:
    """The groups that fit, fresh and stale, in the order in which they are shown."""
    wanted = {
        "op": question.op,
        "shape": question.shape,
        "world": question.world,
        "digest": question.workload,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    where = " WHERE " + " AND ".join(f"{name} = ?" for name in given) if given else ""
    workloads = sorted(db.rows(f"SELECT op, world, id FROM workload{where}", tuple(given.values())))
    topologies = None
    if question.topology is not None:
        topologies = {int(row[0]) for row in db.rows("SELECT id FROM topology WHERE digest = ?", (question.topology,))}
    return [
        group
        for _, _, workload_id in workloads
        for group in groups(db, int(workload_id))
        if group.source in question.sources
        and (topologies is None or group.topology_id in topologies)
        and _machine_fits(db, group.environment_id, question)
    ]


def _machine_fits(db: Database, environment_id: int, question: Question) -> bool:
    stored = environment_of(db, environment_id)
    return (
        question.gpu in (None, stored.gpu)
        and question.power_cap_w in (None, stored.power_cap_w)
        and question.environment in (None, stored.digest)
    )


def _stale(db: Database, found: list[Group]) -> dict[Group, str]:
    """Groups that a later toolchain, timer or validation on the same setting replaced, and how they differ."""
    alike: dict[tuple[object, ...], list[Group]] = defaultdict(list)
    for group in found:
        stored = environment_of(db, group.environment_id)
        machine = tuple(getattr(stored, name) for name in MACHINE_FIELDS)
        alike[group.workload_id, group.topology_id, group.source, *machine].append(group)
    replaced: dict[Group, str] = {}
    for members in alike.values():
        if len(members) == 1:
            continue
        last = {group: _last(db, group) for group in members}
        current = max(members, key=lambda group: last[group])
        newest = environment_of(db, current.environment_id)
        for group in members:
            if group != current:
                differs = environment_differences(newest, environment_of(db, group.environment_id))
                replaced[group] = differences_text(differs)
    return replaced


def _last(db: Database, group: Group) -> tuple[str, int]:
    """When the group was last measured well; a group without a good trial replaces nothing."""
    key = (group.workload_id, group.topology_id, group.environment_id, group.source)
    found = db.rows(_LAST, key)
    return (read_time(found[0][0]).isoformat(), int(found[0][1])) if found else ("", 0)


def _notes(
    columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]], stale: dict[Group, str], include_stale: bool
) -> tuple[str, ...]:
    notes = []
    for column, what, unit in (
        ("power_cap_w", "power caps", " W"),
        ("source", "sources", ""),
        ("world", "world sizes", ""),
        ("gpu", "GPU models", ""),
    ):
        at = columns.index(column)
        values = sorted({row[at] for row in rows})
        if len(values) > 1:
            listed = ", ".join(f"{value}{unit}" for value in values)
            notes.append(f"{len(values)} {what} ({listed}): each ranked by itself")
    if stale and not include_stale:
        differs = "; ".join(sorted(set(stale.values())))
        notes.append(f"{len(stale)} older environments left out as stale ({differs}): include_stale shows them")
    return tuple(notes)
