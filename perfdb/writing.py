"""Rows from records: keys are stored once and reused, samples are packed. All runs in one transaction."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import sqlalchemy as sa

from perfdb import summaries
from perfdb.bulk import FEWEST, copy_rows, insert_rows, new_ids
from perfdb.fast import adapted, stored_time
from perfdb.models import Artifact, Base, Environment, Schedule, Topology, Workload
from perfdb.records import (
    DecisionRecord,
    EnvironmentKey,
    PredictionRecord,
    ScheduleKey,
    TopologyKey,
    TrialRecord,
    WorkloadKey,
)

Key = WorkloadKey | TopologyKey | EnvironmentKey | ScheduleKey
_MODELS: Mapping[type[Key], type[Base]] = {
    WorkloadKey: Workload,
    TopologyKey: Topology,
    EnvironmentKey: Environment,
    ScheduleKey: Schedule,
}

_TRIAL_COLUMNS = (
    "workload_id, topology_id, environment_id, schedule_id, artifact_id, session_id, source, status, value_us, world,"
    " message, conditions, recorded_at"
)
_TRIAL = f"INSERT INTO trial ({_TRIAL_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SAMPLES_COLUMNS = "trial_id, rank, encoding, count, data"
_SAMPLES = f"INSERT INTO samples ({_SAMPLES_COLUMNS}) VALUES (?, ?, ?, ?, ?)"


class Writer:
    """Ids of keys that are known to be committed, by (table, identifying values)."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], int] = {}

    def transaction(self, connection: sa.Connection) -> Transaction:
        """Start to write on a connection; call `committed` on the result after the commit."""
        return Transaction(connection, self._known)


class Transaction:
    """Inserts of one transaction. Ids of new keys are shared only by `committed`: a rolled back id would dangle."""

    def __init__(self, connection: sa.Connection, known: dict[tuple[str, ...], int]) -> None:
        self._dialect = connection.dialect.name
        self._cursor: Any = connection.connection.cursor()
        self._known = known
        self._fresh: dict[tuple[str, ...], int] = {}

    def committed(self) -> None:
        """The transaction is durable: its key ids may be used without asking again."""
        self._known.update(self._fresh)

    def trials(self, records: Sequence[TrialRecord]) -> list[int]:
        """Insert trials with their keys and samples and bring the summaries up to date; return their ids in order."""
        rows = [self._trial_row(record) for record in records]
        bulk = self._dialect != "sqlite" and len(rows) >= FEWEST
        if bulk:
            ids = new_ids(self._cursor, "trial", len(rows))
            copy_rows(self._cursor, "trial", f"id, {_TRIAL_COLUMNS}", [(i, *row) for i, row in zip(ids, rows, strict=True)])
        else:
            ids = self._insert_many(_TRIAL, rows)
        samples = [
            (trial, rank, *pack(row))
            for trial, record in zip(ids, records, strict=True)
            for rank, row in enumerate(record.samples_us)
            if row
        ]
        if bulk:
            copy_rows(self._cursor, "samples", _SAMPLES_COLUMNS, samples)
        else:
            self._many(_SAMPLES, samples)
        for group in sorted({(row[0], row[1], row[2], row[6]) for row in rows}):
            self._group(*group)
        standing, points = _summaries(ids, rows)
        if bulk:
            insert_rows(self._cursor, *summaries.STANDING_PARTS, standing)
            insert_rows(self._cursor, *summaries.POINT_PARTS, points)
        else:
            self._many(summaries.STANDING, standing)
            self._many(summaries.POINT, points)
        return ids

    def _trial_row(self, record: TrialRecord) -> tuple[Any, ...]:
        artifact = None
        if record.binary_digest or record.table_digest:
            identity = {"binary_digest": record.binary_digest, "table_digest": record.table_digest}
            artifact = self._row(Artifact, identity, {})
        return (
            self.key(record.workload),
            self.key(record.topology),
            self.key(record.environment),
            self.key(record.schedule),
            artifact,
            record.session_id,
            record.source,
            record.status,
            record.value_us,
            record.workload.world,
            record.message,
            record.conditions,
            self.time(record.recorded_at),
        )

    def prediction(self, record: PredictionRecord) -> int:
        """Insert a prediction with its keys, return its id."""
        environment = None if record.environment is None else self.key(record.environment)
        return self.insert(
            "prediction",
            workload_id=self.key(record.workload),
            topology_id=self.key(record.topology),
            schedule_id=self.key(record.schedule),
            environment_id=environment,
            session_id=record.session_id,
            model=record.model,
            model_digest=record.model_digest,
            value_us=record.value_us,
            low_us=record.low_us,
            high_us=record.high_us,
            document=record.document,
            recorded_at=self.time(record.recorded_at),
        )

    def decision(self, record: DecisionRecord) -> int:
        """Insert a decision, return its id."""
        return self.insert(
            "decision",
            workload_id=self.key(record.workload),
            topology_id=self.key(record.topology),
            environment_id=self.key(record.environment),
            session_id=record.session_id,
            source=record.source,
            winner_trial_id=record.winner_trial_id,
            tie_trial_ids=json.dumps(record.tie_trial_ids),
            reason=record.reason,
            document=record.document,
            recorded_at=self.time(record.recorded_at),
        )

    def key(self, key: Key) -> int:
        """The id of a key, stored if it is new."""
        model = _MODELS[type(key)]
        digest = key.digest
        known = self._known.get((model.__tablename__, digest))
        if known is not None:
            return known
        return self._row(model, {"digest": digest}, {name: getattr(key, name) for name in _columns(model)})

    def insert(self, table: str, **values: object) -> int:
        """Insert one row, return its id."""
        names, signs = ", ".join(values), ", ".join("?" * len(values))
        return self._insert_many(f"INSERT INTO {table} ({names}) VALUES ({signs})", [tuple(values.values())])[0]

    def insert_unless_there(self, table: str, **values: object) -> None:
        """Insert one row unless a unique rule of the table already holds one."""
        names, signs = ", ".join(values), ", ".join("?" * len(values))
        self._execute(f"INSERT INTO {table} ({names}) VALUES ({signs}) ON CONFLICT DO NOTHING", tuple(values.values()))

    def select(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a SELECT inside this transaction."""
        self._execute(sql, values)
        found: list[tuple[Any, ...]] = self._cursor.fetchall()
        return found

    def _group(self, workload: int, topology: int, environment: int, source: str) -> None:
        name = ("trial_group", str(workload), str(topology), str(environment), source)
        if name not in self._known and name not in self._fresh:
            ids = {"workload_id": workload, "topology_id": topology, "environment_id": environment}
            self.insert_unless_there("trial_group", **ids, source=source)
            self._fresh[name] = 0

    def time(self, time: datetime | None) -> object:
        """A moment as the engine keeps it, now if None."""
        return stored_time(time or now(), self._dialect)

    def _row(self, model: type[Base], identity: dict[str, str], columns: dict[str, object]) -> int:
        table = model.__tablename__
        name = (table, *identity.values())
        known = self._known.get(name, self._fresh.get(name))
        if known is not None:
            return known
        find = f"SELECT id FROM {table} WHERE " + " AND ".join(f"{column} = ?" for column in identity)
        found = self.select(find, tuple(identity.values()))
        if not found:
            # Another writer may store the same key between the look-up and this insert: then its row is taken.
            self.insert_unless_there(table, **identity, **columns)
            found = self.select(find, tuple(identity.values()))
        self._fresh[name] = int(found[0][0])
        return self._fresh[name]

    def _execute(self, sql: str, values: Sequence[object]) -> None:
        self._cursor.execute(adapted(sql, self._dialect), values)

    def _many(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            self._cursor.executemany(adapted(sql, self._dialect), rows)

    def _insert_many(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> list[int]:
        if self._dialect == "sqlite":
            ids = []
            for row in rows:
                self._cursor.execute(sql, row)
                ids.append(int(self._cursor.lastrowid))
            return ids
        if not rows:
            return []
        self._cursor.executemany(f"{adapted(sql, self._dialect)} RETURNING id", rows, returning=True)
        ids = [int(self._cursor.fetchone()[0])]
        while self._cursor.nextset():
            ids.append(int(self._cursor.fetchone()[0]))
        return ids


def _summaries(
    ids: Sequence[int], rows: Sequence[tuple[Any, ...]]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Rows of `standing` and of `point` for these trials, one a key.

    Sorted: two writers that change the same rows of a server in the same order wait for each other, never in a circle.
    """
    standing: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    points: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for trial, row in zip(ids, rows, strict=True):
        workload, topology, environment, schedule, _, session, source, status, value, *_, when = row
        group = (workload, topology, environment, source)
        if status != "interrupted":
            known = standing.get((*group, schedule))
            if known is None or (when, trial) > (known[3], known[0]):
                standing[*group, schedule] = (trial, status, value, when)
        if status == "ok":
            run = -trial if session is None else session
            fastest = points.get((*group, run))
            if fastest is None or (value, trial) < (fastest[1], fastest[0]):
                points[*group, run] = (trial, value, when)
    return [(*key, *standing[key]) for key in sorted(standing)], [(*key, *points[key]) for key in sorted(points)]


@cache
def _columns(model: type[Base]) -> tuple[str, ...]:
    return tuple(column.name for column in model.__table__.columns if column.name not in ("id", "digest"))


def now() -> datetime:
    """The present moment in UTC."""
    return datetime.now(UTC)


def pack(values: tuple[float, ...]) -> tuple[str, int, bytes]:
    """(encoding, count, data): little-endian float32, or float64 where float32 would change a value."""
    narrow = array("f", values)
    encoding, packed = ("<f4", narrow) if narrow.tolist() == list(values) else ("<f8", array("d", values))
    if sys.byteorder == "big":
        packed.byteswap()
    return encoding, len(values), packed.tobytes()


def unpack(encoding: str, data: bytes) -> list[float]:
    """What `pack` stored."""
    values = array("f" if encoding == "<f4" else "d")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
