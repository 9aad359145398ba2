"""`perfdb merge`: everything of one database into another, each thing once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from perfdb.engine import parse_url, sqlite_path
from perfdb.errors import DatabaseError, RecordError
from perfdb.fast import read_time
from perfdb.records import EnvironmentKey, ScheduleKey, TopologyKey, TrialRecord, WorkloadKey
from perfdb.session import Database, open_database
from perfdb.writing import Key, Transaction, unpack

BATCH = 2000
_KEYS: Mapping[str, type[Key]] = {
    "workload": WorkloadKey,
    "topology": TopologyKey,
    "environment": EnvironmentKey,
    "schedule": ScheduleKey,
}
_SAME_TRIAL = (
    "SELECT id FROM trial WHERE workload_id = ? AND topology_id = ? AND environment_id = ? AND source = ?"
    " AND schedule_id = ? AND recorded_at = ? AND status = ?"
)
# The rest of the tables: the columns to copy, which of them refer to another table, and which are times.
_REFERS = {
    "winner_trial_id": "trial",
    **{
        f"{name}_id": name for name in ("workload", "topology", "environment", "schedule", "session", "series", "trial")
    },
}
_TIMES = ("recorded_at", "started_at", "ended_at", "happened_at", "starts_at", "ends_at")
_OTHERS = {
    "prediction": "workload_id topology_id schedule_id environment_id session_id model model_digest value_us low_us high_us"
    " document recorded_at",
    "decision": "workload_id topology_id environment_id session_id source winner_trial_id tie_trial_ids reason document"
    " recorded_at",
    "recommendation": "workload_id environment_id schedule_id origin document recorded_at",
    "series": "workload_id topology_id gpu source policy document",
    "change_point": "series_id trial_id detector state before_us after_us p_value q_value document happened_at recorded_at",
    "annotation": "series_id trial_id session_id kind author remark starts_at ends_at recorded_at",
}
_SESSION = "seed command host status started_at ended_at document revision"


@dataclass(frozen=True)
class Counts:
    """Rows by table: what was stored, and what was there already."""

    stored: Mapping[str, int]
    known: Mapping[str, int]

    def __str__(self) -> str:
        names = [name for name in self.stored if self.stored[name] or self.known.get(name)]
        parts = [f"{name} {self.stored[name]} new, {self.known.get(name, 0)} known" for name in names]
        return "; ".join(parts) or "nothing to store"


def merge(db: Database, other: str | Path) -> Counts:
    """Store everything of `other` (a file or a server) that is not in `db`; `other` is not changed.

    Trials keep their own times, so an older one replaces no newer answer. Merging twice stores nothing twice. A file
    of an older schema is migrated in a copy. Errors: those of opening it; RecordError for merging with itself.
    """
    with _readable(other) as source:
        if source.url == db.url or (db.path is not None and source.path == db.path):
            raise RecordError("a database is merged with another one", db.url, "give another path or URL")
        return _Merge(source, db).run()


@contextmanager
def _readable(other: str | Path) -> Iterator[Database]:
    path = sqlite_path(parse_url(other))
    if path is None or not path.exists():
        with open_database(other, create=False) as source:
            yield source
        return
    from perfdb.schema import VERSIONS, stated_version

    if stated_version(path) == VERSIONS[-1]:
        with open_database(path, create=False) as source:
            yield source
        return
    with tempfile.TemporaryDirectory(prefix="perfdb-merge-") as folder:
        copy = Path(folder) / path.name
        for ending in ("", "-wal"):
            if Path(f"{path}{ending}").exists():
                shutil.copy2(f"{path}{ending}", f"{copy}{ending}")
        try:
            source = open_database(copy, create=False)
        except DatabaseError as error:
            # About the file that was named, not about the copy.
            said = [part.replace(str(copy), str(path)) for part in (error.rule, str(error.actual), error.remedy)]
            raise type(error)(*said) from error
        with source:
            yield source


def already_there(transaction: Transaction, record: TrialRecord) -> int | None:
    """The id of the same attempt: the same key, moment, status and value."""
    if record.recorded_at is None:
        return None
    key = (
        transaction.key(record.workload),
        transaction.key(record.topology),
        transaction.key(record.environment),
        record.source,
        transaction.key(record.schedule),
        transaction.time(record.recorded_at),
        record.status,
    )
    if record.value_us is None:
        found = transaction.select(f"{_SAME_TRIAL} AND value_us IS NULL", key)
    else:
        found = transaction.select(f"{_SAME_TRIAL} AND value_us = ?", (*key, record.value_us))
    return int(found[0][0]) if found else None


class _Merge:
    """One merge: keys and ids of the source, and what they are called in the target."""

    def __init__(self, source: Database, target: Database) -> None:
        self._source, self._target = source, target
        self._keys: dict[tuple[str, int], Key] = {}
        self._ids: dict[str, dict[int, int]] = {name: {} for name in ("session", "trial", "series")}
        self._artifacts: dict[int, tuple[str, str]] = {}
        self._stored: dict[str, int] = {}
        self._known: dict[str, int] = {}

    def run(self) -> Counts:
        for name, kind in _KEYS.items():
            names = [field.name for field in fields(kind)]
            for row in self._source.rows(f"SELECT id, {', '.join(names)} FROM {name}"):
                self._keys[name, int(row[0])] = kind(**dict(zip(names, row[1:], strict=True)))
        for row in self._source.rows("SELECT id, binary_digest, table_digest FROM artifact"):
            self._artifacts[int(row[0])] = (str(row[1]), str(row[2]))
        self._target.transact(self._sessions)
        self._trials()
        for table in _OTHERS:
            self._target.transact(self._copier(table))
        return Counts(self._stored, self._known)

    def _count(self, table: str, new: bool) -> None:
        counts = self._stored if new else self._known
        counts[table] = counts.get(table, 0) + 1
        self._stored.setdefault(table, 0)

    def _sessions(self, transaction: Transaction) -> None:
        names = _SESSION.split()
        for row in self._source.rows(f"SELECT id, {', '.join(names)} FROM session ORDER BY id"):
            values = dict(zip(names, row[1:], strict=True))
            for name in _TIMES:
                if values.get(name) is not None:
                    values[name] = transaction.time(read_time(values[name]))
            identity = {name: values[name] for name in ("seed", "command", "host", "started_at")}
            self._ids["session"][int(row[0])] = self._once(transaction, "session", identity, values)

    def _once(self, transaction: Transaction, table: str, identity: dict[str, Any], values: dict[str, Any]) -> int:
        where = " AND ".join(f"{name} IS NULL" if value is None else f"{name} = ?" for name, value in identity.items())
        given = tuple(value for value in identity.values() if value is not None)
        found = transaction.select(f"SELECT id FROM {table} WHERE {where}", given)
        self._count(table, not found)
        return int(found[0][0]) if found else transaction.insert(table, **values)

    def _trials(self) -> None:
        last = 0
        while rows := self._source.rows(
            "SELECT id, workload_id, topology_id, environment_id, schedule_id, artifact_id, session_id, source, status,"
            " value_us, message, conditions, recorded_at FROM trial WHERE id > ? ORDER BY id LIMIT ?",
            (last, BATCH),
        ):
            first, last = int(rows[0][0]), int(rows[-1][0])
            samples: dict[int, dict[int, tuple[float, ...]]] = {}
            for trial, rank, encoding, data in self._source.rows(
                "SELECT trial_id, rank, encoding, data FROM samples WHERE trial_id BETWEEN ? AND ?", (first, last)
            ):
                samples.setdefault(trial, {})[rank] = tuple(unpack(encoding, data))
            records = [(int(row[0]), self._record(row, samples.get(row[0], {}))) for row in rows]
            self._ids["trial"].update(self._target.transact(partial(_store, records=records, count=self._count)))

    def _record(self, row: Sequence[Any], samples: Mapping[int, tuple[float, ...]]) -> TrialRecord:
        keys: dict[str, Any] = {name: self._keys[name, row[at]] for at, name in enumerate(_KEYS, 1)}
        binary, table = self._artifacts.get(row[5], ("", ""))
        ranks = tuple(samples.get(rank, ()) for rank in range(max(samples, default=-1) + 1))
        session = None if row[6] is None else self._ids["session"][row[6]]
        return TrialRecord(
            **keys,
            source=row[7],
            status=row[8],
            value_us=row[9],
            samples_us=ranks,
            message=row[10],
            binary_digest=binary,
            table_digest=table,
            session_id=session,
            conditions=row[11],
            recorded_at=read_time(row[12]),
        )

    def _copier(self, table: str) -> Callable[[Transaction], None]:
        names = _OTHERS[table].split()

        def copy(transaction: Transaction) -> None:
            for row in self._source.rows(f"SELECT id, {', '.join(names)} FROM {table} ORDER BY id"):
                values = {
                    name: self._translated(transaction, name, value) for name, value in zip(names, row[1:], strict=True)
                }
                identity = {name: value for name, value in values.items() if name not in ("document", "tie_trial_ids")}
                if table == "recommendation":
                    identity.pop("recorded_at")
                target = self._once(transaction, table, identity, values)
                if table == "series":
                    self._ids["series"][int(row[0])] = target

        return copy

    def _translated(self, transaction: Transaction, name: str, value: Any) -> Any:
        if value is None:
            return None
        if name in _TIMES:
            return transaction.time(read_time(value))
        if name == "tie_trial_ids":
            import json

            return json.dumps([self._ids["trial"][trial] for trial in json.loads(value)])
        refers = _REFERS.get(name)
        if refers is None:
            return value
        return self._ids[refers][value] if refers in self._ids else transaction.key(self._keys[refers, value])


def _store(
    transaction: Transaction, records: Sequence[tuple[int, TrialRecord]], count: Callable[[str, bool], None]
) -> dict[int, int]:
    """Store the trials that are new; return the target's id of each."""
    ids: dict[int, int] = {}
    fresh: list[tuple[int, TrialRecord]] = []
    for source_id, record in records:
        known = already_there(transaction, record)
        if known is None:
            fresh.append((source_id, record))
        else:
            ids[source_id] = known
    stored = transaction.trials([record for _, record in fresh])
    ids.update({source_id: trial for (source_id, _), trial in zip(fresh, stored, strict=True)})
    for _ in fresh:
        count("trial", True)
    for _ in range(len(records) - len(fresh)):
        count("trial", False)
    return ids
