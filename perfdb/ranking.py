"""Ranking trials inside groups that can be compared, and only there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

from perfdb import ranking_sql
from perfdb.fast import read_time
from perfdb.ranking_sql import MACHINE_FIELDS, Question
from perfdb.records import ENVIRONMENT_FIELDS, EnvironmentKey
from perfdb.selects import (
    Group,
    differences_text,
    environment_differences,
    environment_of,
    wide_columns,
)
from perfdb.session import Database

_WORKLOAD = "SELECT op, shape, dtype, world, label, digest FROM workload WHERE id = ?"
_TOPOLOGY = "SELECT name, kind, digest FROM topology WHERE id = ?"


@dataclass(frozen=True)
class Ranking:
    """Rows of `columns`: rank, those of `selects.wide`, stale, differs. `notes`: what was kept apart or left out."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...]


def ranked(db: Database, question: Question, limit: int, include_stale: bool) -> Ranking:
    """The `limit` fastest of each group."""
    found = (_in_file if db.path is not None else _on_server)(db, question, limit, include_stale)
    columns = ("rank", *wide_columns(), "stale", "differs")
    rows: list[tuple[Any, ...]] = []
    for group, best in found.best.items():
        rows += _labelled(db, group, best, (group in found.stale, found.stale.get(group, "")))
    return Ranking(columns, tuple(rows), _notes(columns, rows, found.stale, include_stale))


@dataclass(frozen=True)
class _Found:
    """The groups that fit: the fastest trials (rows of `ranking_sql.TOP`) of those that answer, in the order in which
    they are shown; and what is stale, and how it differs."""

    best: dict[Group, list[tuple[Any, ...]]]
    stale: dict[Group, str]


def _in_file(db: Database, question: Question, limit: int, include_stale: bool) -> _Found:
    """A statement for the groups and one for each that answers: in a file that is quicker than one large one."""
    wanted = ranking_sql.clauses(question)
    rows = db.rows(ranking_sql.groups(tuple(wanted)), tuple(wanted.values()))
    moments = {
        group: moment
        for group, moment in _groups(rows).items()
        if group.source in question.sources and _machine_fits(db, group.environment_id, question)
    }
    stale = _stale(db, moments)
    answering = [group for group in moments if include_stale or group not in stale]
    return _Found({group: db.rows(ranking_sql.TOP_OF_ONE, (*_key(group), limit)) for group in answering}, stale)


def _on_server(db: Database, question: Question, limit: int, include_stale: bool) -> _Found:
    """All in one statement: over a network, round trips are what counts."""
    wanted = ranking_sql.clauses(question) | ranking_sql.machine_clauses(question)
    values = (list(question.sources), *wanted.values(), include_stale, limit)
    heads: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    best: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row in db.rows(ranking_sql.everything(tuple(wanted)), values):
        key = row[:4]
        if key not in heads:
            heads[key], best[key] = row[:8], []
        if row[8] is not None:
            best[key].append(row[8:])
    moments = _groups(list(heads.values()))
    stale = _stale(db, moments)
    answering = [group for group in moments if include_stale or group not in stale]
    # A join promises no order.
    return _Found({group: sorted(best[_key(group)], key=itemgetter(1, 0)) for group in answering}, stale)


def _key(group: Group) -> tuple[int, int, int, str]:
    return group.workload_id, group.topology_id, group.environment_id, group.source


def _groups(rows: Sequence[tuple[Any, ...]]) -> dict[Group, tuple[str, int]]:
    """Groups in the order in which they are shown, and when each was last measured well.

    A group without a good trial replaces nothing: its moment is before all others.
    """
    return {
        Group(*key): ("", 0) if time is None else (read_time(time).isoformat(), int(trial))
        for *key, _, _, time, trial in sorted(rows, key=lambda row: (row[4], row[5], row[:4]))
    }


def _labelled(
    db: Database, group: Group, best: Sequence[tuple[Any, ...]], marks: tuple[bool, str]
) -> list[tuple[Any, ...]]:
    """The fastest of a group, in the columns of `Ranking`."""
    op, shape, dtype, world, label, work = db.key_row("workload", _WORKLOAD, group.workload_id)
    name, kind, place = db.key_row("topology", _TOPOLOGY, group.topology_id)
    environment = environment_of(db, group.environment_id)
    work_columns = (op, shape, dtype, world, *(getattr(environment, field) for field in ENVIRONMENT_FIELDS))
    place_columns = (label, work, name, kind, place, environment.digest)
    found = []
    for rank, row in enumerate(best, 1):
        trial, value, schedule_label, schedule, binary, table, session, time, message = row
        head = (rank, trial, group.source, "ok", value, *work_columns, schedule_label, schedule)
        found.append((*head, *place_columns, binary, table, session, read_time(time), message, *marks))
    return found


def _machine_fits(db: Database, environment_id: int, question: Question) -> bool:
    stored = environment_of(db, environment_id)
    return (
        question.gpu in (None, stored.gpu)
        and question.power_cap_w in (None, stored.power_cap_w)
        and question.environment in (None, stored.digest)
    )


def _stale(db: Database, found: Mapping[Group, tuple[str, int]]) -> dict[Group, str]:
    """Groups that a later toolchain, timer or validation on the same setting replaced, and how they differ."""
    alike: dict[tuple[object, ...], list[Group]] = defaultdict(list)
    for group in found:
        stored = environment_of(db, group.environment_id)
        machine = tuple(getattr(stored, name) for name in MACHINE_FIELDS)
        alike[group.workload_id, group.topology_id, group.source, *machine].append(group)
    replaced: dict[Group, str] = {}
    for members in alike.values():
        current = max(members, key=lambda group: found[group])
        newest = environment_of(db, current.environment_id)
        for group in members:
            if group != current:
                replaced[group] = _differs(newest, environment_of(db, group.environment_id))
    return replaced


@lru_cache(1024)
def _differs(newest: EnvironmentKey, stored: EnvironmentKey) -> str:
    return differences_text(environment_differences(newest, stored))


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
