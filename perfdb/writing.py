"""Rows from records: keys are stored once and reused, samples are packed. All runs in one transaction."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Mapping
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from perfdb.models import (
    Artifact,
    Base,
    Decision,
    Environment,
    Prediction,
    Samples,
    Schedule,
    Topology,
    Trial,
    Workload,
)
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
        self._connection = connection
        self._known = known
        self._fresh: dict[tuple[str, ...], int] = {}

    def committed(self) -> None:
        """The transaction is durable: its key ids may be used without asking again."""
        self._known.update(self._fresh)

    def trial(self, record: TrialRecord) -> int:
        """Insert a trial with its keys and samples, return its id."""
        artifact = None
        if record.binary_digest or record.table_digest:
            artifact = self._row(
                Artifact, {"binary_digest": record.binary_digest, "table_digest": record.table_digest}, {}
            )
        trial = self._insert(
            Trial,
            workload_id=self.key(record.workload),
            topology_id=self.key(record.topology),
            environment_id=self.key(record.environment),
            schedule_id=self.key(record.schedule),
            artifact_id=artifact,
            session_id=record.session_id,
            source=record.source,
            status=record.status,
            value_us=record.value_us,
            world=record.workload.world,
            message=record.message,
            conditions=record.conditions,
            recorded_at=record.recorded_at or now(),
        )
        rows = [{"trial_id": trial, "rank": rank, **pack(row)} for rank, row in enumerate(record.samples_us) if row]
        if rows:
            self._connection.execute(sa.insert(Samples), rows)
        return trial

    def prediction(self, record: PredictionRecord) -> int:
        """Insert a prediction with its keys, return its id."""
        return self._insert(
            Prediction,
            workload_id=self.key(record.workload),
            topology_id=self.key(record.topology),
            schedule_id=self.key(record.schedule),
            environment_id=None if record.environment is None else self.key(record.environment),
            session_id=record.session_id,
            model=record.model,
            model_digest=record.model_digest,
            value_us=record.value_us,
            low_us=record.low_us,
            high_us=record.high_us,
            document=record.document,
            recorded_at=record.recorded_at or now(),
        )

    def decision(self, record: DecisionRecord) -> int:
        """Insert a decision, return its id."""
        return self._insert(
            Decision,
            workload_id=self.key(record.workload),
            topology_id=self.key(record.topology),
            environment_id=self.key(record.environment),
            session_id=record.session_id,
            source=record.source,
            winner_trial_id=record.winner_trial_id,
            tie_trial_ids=json.dumps(record.tie_trial_ids),
            reason=record.reason,
            document=record.document,
            recorded_at=record.recorded_at or now(),
        )

    def key(self, key: Key) -> int:
        """The id of a key, stored if it is new."""
        model = _MODELS[type(key)]
        known = self._known.get((model.__tablename__, key.digest))
        if known is not None:
            return known
        names = (column.name for column in model.__table__.columns if column.name not in ("id", "digest"))
        columns = {name: getattr(key, name) for name in names}
        return self._row(model, {"digest": key.digest}, columns)

    def _row(self, model: type[Base], identity: dict[str, str], columns: dict[str, object]) -> int:
        name = (model.__tablename__, *identity.values())
        known = self._known.get(name, self._fresh.get(name))
        if known is not None:
            return known
        table = model.__table__
        find = sa.select(table.c.id).where(*(table.c[column] == value for column, value in identity.items()))
        found = self._connection.execute(find).scalar()
        if found is None:
            # Another writer may store the same key between the look-up and this insert: then its row is taken.
            self._connection.execute(self._insert_unless_there(table, {**identity, **columns}))
            found = self._connection.execute(find).scalar_one()
        self._fresh[name] = int(found)
        return int(found)

    def _insert_unless_there(self, table: sa.FromClause, values: dict[str, object]) -> sa.Insert:
        assert isinstance(table, sa.Table)
        if self._connection.dialect.name == "sqlite":
            return sqlite.insert(table).values(values).on_conflict_do_nothing()
        return postgresql.insert(table).values(values).on_conflict_do_nothing()

    def _insert(self, table: type[Base], **values: object) -> int:
        result = self._connection.execute(sa.insert(table), values)
        key = result.inserted_primary_key
        assert key is not None
        return int(key[0])


def now() -> datetime:
    """The present moment in UTC."""
    return datetime.now(UTC)


def pack(values: tuple[float, ...]) -> dict[str, object]:
    """Samples as little-endian float32, or float64 where float32 would change one of them."""
    narrow = array("f", values)
    encoding, packed = ("<f4", narrow) if narrow.tolist() == list(values) else ("<f8", array("d", values))
    if sys.byteorder == "big":
        packed.byteswap()
    return {"encoding": encoding, "count": len(values), "data": packed.tobytes()}


def unpack(encoding: str, data: bytes) -> list[float]:
    """What `pack` stored."""
    values = array("f" if encoding == "<f4" else "d")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
