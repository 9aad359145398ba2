"""`perfdb import`: files of other tools as records. How each format is read is a file of `importers/`."""

from __future__ import annotations

import hashlib
import json
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from perfdb.errors import DatabaseError, RecordError
from perfdb.merging import Counts, already_there
from perfdb.records import ENVIRONMENT_FIELDS, OPERATION, EnvironmentKey, ScheduleKey, TrialRecord, WorkloadKey
from perfdb.session import Database
from perfdb.writing import Transaction


@dataclass(frozen=True)
class Recommended:
    """A schedule that a tuner chose without saying how fast it is."""

    workload: WorkloadKey
    environment: EnvironmentKey
    schedule: ScheduleKey
    document: str = "{}"


@dataclass(frozen=True)
class Imported:
    """What a file holds. `notes`: what was left out, and why."""

    trials: tuple[TrialRecord, ...] = ()
    recommended: tuple[Recommended, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What the caller knows and the file does not say: columns of the environment by name, and the operation."""

    environment: Mapping[str, Any] = field(default_factory=dict)
    op: str | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.environment) - set(ENVIRONMENT_FIELDS))
        if unknown:
            raise RecordError(f"a fact is one of {', '.join(ENVIRONMENT_FIELDS)}", ", ".join(unknown))
        if self.op is not None and not OPERATION.fullmatch(self.op):
            raise RecordError("an operation is one word", repr(self.op), "for example all_reduce")

    def environment_key(self, **found: Any) -> EnvironmentKey:
        """The environment of the file; the caller's word stands before what the file says."""
        values = {**{name: value for name, value in found.items() if value not in (None, "")}, **self.environment}
        for name in ("power_cap_w", "gpu_count"):
            if name in values:
                if not str(values[name]).isdecimal():
                    raise RecordError(f"{name} is a whole number", repr(values[name]), f"for example --set {name}=700")
                values[name] = int(values[name])
        values.setdefault("arch", "")
        if not values.get("gpu"):
            raise RecordError("an import knows its GPU model", "the file does not say", "give --set gpu=H200")
        return EnvironmentKey(**values)


class Importer(Protocol):
    """Reads one format. A stateless value in a file of its own, called `IMPORTER` there."""

    @property
    def name(self) -> str:
        """What `--format` calls it."""

    def fits(self, path: Path, head: bytes) -> bool:
        """Whether a file of that name with these first bytes is of this format."""

    def read(self, path: Path, facts: Facts) -> Imported:
        """The records of the file. Errors: RecordError with the path, the rule and the remedy."""


@cache
def importers() -> dict[str, Importer]:
    """All importers by name, in the order of their names."""
    from perfdb import importers as package

    modules = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    found = [cast(Importer, import_module(f"{package.__name__}.{name}").IMPORTER) for name in modules]
    return {importer.name: importer for importer in found}


def import_file(
    db: Database, path: Path, *, facts: Facts | None = None, kind: str | None = None
) -> tuple[Counts, Imported]:
    """Store what a file holds, all or nothing; what is there already is not stored again.

    `kind`: the name of an importer, found by looking at the file if None. Errors: RecordError, DatabaseError.
    """
    importer = _importer(path, kind)
    read = importer.read(path, facts or Facts())
    return db.transact(lambda transaction: _store(transaction, read, path)), read


def _importer(path: Path, kind: str | None) -> Importer:
    known = importers()
    if kind is not None:
        if kind not in known:
            raise RecordError(f"a format is one of {', '.join(known)}", kind)
        return known[kind]
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise DatabaseError("the file to import can be read", f"{path}: {error.strerror}", "check the path") from error
    for importer in known.values():
        if importer.fits(path, head):
            return importer
    raise RecordError(f"a file to import is of a known format: {', '.join(known)}", path, "name it with --format")


def _store(transaction: Transaction, read: Imported, path: Path) -> Counts:
    fresh = [trial for trial in read.trials if already_there(transaction, trial) is None]
    transaction.trials(fresh)
    stored = 0
    for one in read.recommended:
        key = {
            "workload_id": transaction.key(one.workload),
            "environment_id": transaction.key(one.environment),
            "schedule_id": transaction.key(one.schedule),
            "origin": path.name,
        }
        find = "SELECT id FROM recommendation WHERE " + " AND ".join(f"{name} = ?" for name in key)
        if not transaction.select(find, tuple(key.values())):
            transaction.insert("recommendation", **key, document=one.document, recorded_at=transaction.time(None))
            stored += 1
    return Counts(
        {"trial": len(fresh), "recommendation": stored},
        {"trial": len(read.trials) - len(fresh), "recommendation": len(read.recommended) - stored},
    )


def digest(value: object) -> str:
    """16 hexadecimal digits over canonical JSON: sorted keys, no spaces, ASCII."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
