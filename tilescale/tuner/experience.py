"""What a performance database or recorded spaces hold that a model can learn from."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilescale import canon
from tilescale.costmodel.rows import TRAINABLE, ModelError, Row
from tilescale.errors import TilescaleError
from tilescale.runtime.replay import RecordedSpace
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology
from tilescale.tuner.records import Key

if TYPE_CHECKING:
    import pandas as pd

    import perfdb

# Rows a workload, so that none outweighs the others, and in all: each costs an analytic prediction, about 2 ms.
PER_WORKLOAD = 1000
LIMIT = 4000
TRANSFERRED = 1500  # at the start of a search, which should not wait for long
# What makes a machine for this purpose: its toolchain may change, what it can do may not.
MACHINE = ("gpu", "arch", "power_cap_w", "clock_policy")


@dataclass(frozen=True)
class Experience:
    """Rows of one source and one machine. `notes`: in words, what was left out and why."""

    rows: tuple[Row, ...]
    machine: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def from_database(
    db: perfdb.Database,
    source: str,
    *,
    machine: Mapping[str, str] | None = None,
    without: str = "",
    per_workload: int = PER_WORKLOAD,
    limit: int = LIMIT,
) -> Experience:
    """The newest outcome of every schedule that was measured with this `source`, good or failed.

    `machine`: values of MACHINE; None takes the machine with the most rows. `without`: the digest of a workload that is
    left out. At most `per_workload` rows a workload and `limit` in all are kept, drawn by the digests of the schedules.
    Raises ModelError for a source that nothing is learned from.
    """
    import perfdb

    if source not in TRAINABLE:
        raise ModelError("a model learns from one of " + ", ".join(TRAINABLE), source, "measure on a GPU")
    frame = perfdb.trials(db, sources=source)
    frame = frame[(frame["status"] != "interrupted") & (frame["workload"] != without)]
    found, chosen, notes = _of_machine(frame, machine)
    key = ["workload", "topology", "schedule"]
    kept = found.drop_duplicates(key, keep="last").to_dict("records")
    rows = [dict(row) for row in kept]
    drawn = _drawn(rows, per_workload, limit)
    if len(drawn) < len(rows):
        notes.append(f"{len(rows) - len(drawn)} of {len(rows)} rows left out: {per_workload} a workload, {limit} in all")
    decoded, unread = _decoded(db, drawn, source)
    if unread:
        notes.append(f"{unread} rows left out: written by another version")
    return Experience(decoded, chosen, tuple(notes))


def of_other_workloads(db: perfdb.Database, key: Key) -> tuple[Row, ...]:
    """What a search of `key` can learn from: rows of other workloads of its source, measured on its machine.

    None for a source that nothing is learned from: a replayed or predicted search learns from itself alone.
    """
    if key.source not in TRAINABLE:
        return ()
    machine = {name: str(getattr(key.environment, name)) for name in MACHINE}
    return from_database(db, key.source, machine=machine, without=key.workload.digest, limit=TRANSFERRED).rows


def from_spaces(spaces: Iterable[RecordedSpace]) -> tuple[Row, ...]:
    """The rows of recorded spaces. Raises ModelError for a space of predicted times."""
    return tuple(
        Row(space.spec, row.schedule, row.value_us if row.ok else None, space.source)
        for space in spaces
        for row in space.rows
        if row.status != "interrupted"
    )


def _of_machine(
    frame: pd.DataFrame, machine: Mapping[str, str] | None
) -> tuple[pd.DataFrame, tuple[tuple[str, str], ...], list[str]]:
    """The rows of one machine, what it is, and a note about the others."""
    if frame.empty:
        return frame, (), []
    machines = [tuple(str(row[name]) for name in MACHINE) for row in frame[list(MACHINE)].to_dict("records")]
    counts = Counter(machines)
    if machine is None:
        wanted = max(counts, key=lambda one: (counts[one], one))
    else:
        wanted = tuple(str(machine[name]) for name in MACHINE)
    others = sum(count for one, count in counts.items() if one != wanted)
    notes = [f"{others} rows of other machines left out: one of {_words(wanted)} is learned"] if others else []
    return frame[[one == wanted for one in machines]], tuple(zip(MACHINE, wanted, strict=True)), notes


def _words(machine: Sequence[str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(MACHINE, machine, strict=True))


def _drawn(rows: Sequence[dict[Any, Any]], per_workload: int, limit: int) -> list[dict[Any, Any]]:
    """As many of every workload as fit, the same ones every time: in the order of a hash of the schedule's digest."""
    by: dict[tuple[str, str], list[dict[Any, Any]]] = {}
    for row in rows:
        by.setdefault((row["workload"], row["topology"]), []).append(row)
    if not by:
        return []
    share = max(1, min(per_workload, limit // len(by)))
    drawn = []
    for name in sorted(by):
        drawn += sorted(by[name], key=lambda row: hashlib.sha256(row["schedule"].encode()).digest())[:share]
    return drawn[:limit]


def _decoded(db: perfdb.Database, rows: Sequence[Mapping[Any, Any]], source: str) -> tuple[tuple[Row, ...], int]:
    """Rows with their specs and schedules, and how many could not be read."""
    from perfdb.documents import documents

    texts = documents(
        db,
        workloads={row["workload"] for row in rows},
        topologies={row["topology"] for row in rows},
        schedules={row["schedule"] for row in rows},
    )
    specs: dict[tuple[str, str], Spec | None] = {}
    schedules = {digest: _read(Schedule, text) for digest, text in texts.schedules.items()}
    found, unread = [], 0
    for row in rows:
        name = row["workload"], row["topology"]
        if name not in specs:
            specs[name] = _spec(texts.workloads.get(name[0], ""), texts.topologies.get(name[1], ""))
        spec, schedule = specs[name], schedules.get(row["schedule"])
        if spec is None or schedule is None or schedule.digest != row["schedule"]:
            unread += 1
            continue
        found.append(Row(spec, schedule, float(row["value_us"]) if row["status"] == "ok" else None, source))
    return tuple(found), unread


def _spec(workload: str, topology: str) -> Spec | None:
    """A workload is stored once for all machines, with the first one it was tuned on: put it on this one."""
    spec, machine = _read(Spec, workload), _read(Topology, topology)
    return None if spec is None or machine is None else replace(spec, topology=machine)


def _read(kind: type[Any], text: str) -> Any:
    try:
        return canon.decode(kind, json.loads(text))
    except (TilescaleError, ValueError, TypeError, KeyError):
        return None
