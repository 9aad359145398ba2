"""Why an exact look-up found nothing: which fields of the key differ, and from which stored trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice

import sqlalchemy as sa

from perfdb.models import Schedule, Topology, Trial, Workload
from perfdb.queries import similar_gpus
from perfdb.records import EnvironmentKey, ScheduleKey, TopologyKey, WorkloadKey, normal_gpu
from perfdb.selects import (
    Group,
    differences_text,
    digest_of,
    environment_differences,
    environments,
    find_environment,
    groups,
    in_group,
)
from perfdb.session import Database
from perfdb.shapes import shape_distance

Differences = tuple[tuple[str, object, object], ...]

# Workloads of the same op that are looked at when the one asked for is not stored: the nearest in shape.
NEAR_WORKLOADS = 8


@dataclass(frozen=True)
class Nearest:
    """A stored trial near the key asked for, not used. `differences`: (field, asked, stored) each."""

    trial_id: int
    source: str
    status: str
    value_us: float | None
    differences: Differences

    def __str__(self) -> str:
        value = "" if self.value_us is None else f" {self.value_us:.2f} us"
        differs = differences_text(self.differences)
        return f"trial {self.trial_id} ({self.source}, {self.status}{value}) differs in {differs}"


@dataclass(frozen=True)
class Miss:
    """Why nothing was found, and the nearest stored trials, nearest first."""

    reason: str
    nearest: tuple[Nearest, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields in which the nearest trial differs."""
        return tuple(name for name, _, _ in self.nearest[0].differences) if self.nearest else ()

    def __str__(self) -> str:
        return "\n".join([self.reason, *(f"  nearest: {near}" for near in self.nearest)])


def explain_miss(
    db: Database,
    workload: WorkloadKey | str,
    topology: TopologyKey | str,
    environment: EnvironmentKey | str,
    schedule: ScheduleKey | str,
    *,
    source: str = "measured",
    limit: int = 3,
) -> Miss:
    """Compare a key that `exact` did not find with what is stored. Pass keys, not digests: fields are compared.

    If the key is stored after all, the reason says so and `nearest` is empty.
    """
    with db.read() as connection:
        asked = _Asked(db, connection, workload, topology, environment, schedule, source)
        found = sorted(asked.near_groups(), key=lambda near: (len(near[1]), near[0].environment_id * -1))
        if found and not found[0][1]:
            return _no_difference(connection, found[0][0], digest_of(schedule))
        shown = (_nearest(connection, group, differs, digest_of(schedule)) for group, differs in found)
        nearest = tuple(islice((near for near in shown if near is not None), limit))
    if not nearest:
        return Miss(f"no exact match: nothing is stored for {asked.op or 'workload ' + digest_of(workload)}")
    return Miss(f"no exact match: {differences_text(nearest[0].differences)}", nearest)


class _Asked:
    """The key asked for, each part as a value if it is known."""

    def __init__(
        self,
        db: Database,
        connection: sa.Connection,
        workload: WorkloadKey | str,
        topology: TopologyKey | str,
        environment: EnvironmentKey | str,
        schedule: ScheduleKey | str,
        source: str,
    ) -> None:
        self._db, self._connection = db, connection
        self._workload, self._topology, self._environment, self._schedule = workload, topology, environment, schedule
        self._source = source
        self._environment_value = find_environment(connection, environment)
        self.op = workload.op if isinstance(workload, WorkloadKey) else ""

    def near_groups(self) -> Iterator[tuple[Group, Differences]]:
        """Stored groups of this workload, or of the nearest ones of its op, with how they differ from the key."""
        for workload_id, workload_differs in self._workloads():
            stored = groups(self._db, workload_id)
            machines = environments(self._connection, {group.environment_id for group in stored})
            for group in stored:
                differs = workload_differs + self._topology_differs(group.topology_id)
                differs += self._environment_differs(machines[group.environment_id])
                if group.source != self._source:
                    differs += (("source", self._source, group.source),)
                if not self._has_schedule(group):
                    differs += (("schedule", _label(self._schedule), "others only"),)
                yield group, differs

    def _workloads(self) -> list[tuple[int, Differences]]:
        find = sa.select(Workload.id).where(Workload.digest == digest_of(self._workload))
        found = self._connection.execute(find).scalar()
        if found is not None:
            return [(int(found), ())]
        if isinstance(self._workload, str):
            return []
        same_op = sa.select(Workload).where(Workload.op == self._workload.op)
        rows = self._connection.execute(same_op).mappings().all()
        shape = self._workload.shape
        near = sorted(rows, key=lambda row: (shape_distance(shape, str(row["shape"])), row["id"]))[:NEAR_WORKLOADS]
        names = ("op", "shape", "dtype", "world")
        return [(int(row["id"]), _part_differs("workload", self._workload, dict(row), names)) for row in near]

    def _topology_differs(self, topology_id: int) -> Differences:
        row = dict(self._connection.execute(sa.select(Topology).where(Topology.id == topology_id)).mappings().one())
        if row["digest"] == digest_of(self._topology):
            return ()
        if isinstance(self._topology, str):
            return (("topology", self._topology, row["digest"]),)
        return _part_differs("topology", self._topology, row, ("name", "kind", "world", "gpu"))

    def _environment_differs(self, stored: EnvironmentKey) -> Differences:
        if self._environment_value is None:
            return (("environment", digest_of(self._environment), stored.digest),)
        return environment_differences(self._environment_value, stored)

    def _has_schedule(self, group: Group) -> bool:
        find = sa.select(Trial.id).join(Schedule, Schedule.id == Trial.schedule_id)
        find = find.where(*in_group(group), Schedule.digest == digest_of(self._schedule)).limit(1)
        return self._connection.execute(find).scalar() is not None


def _part_differs(
    part: str, asked: WorkloadKey | TopologyKey, row: dict[str, object], names: tuple[str, ...]
) -> Differences:
    """Differing columns of a key (those of a topology as topology.x), or its digests if no column differs."""
    known = {field.name for field in fields(asked)}
    prefix = "topology." if part == "topology" else ""
    pairs = ((prefix + name, getattr(asked, name), row[name]) for name in names if name in known)
    differs = tuple((name, mine, theirs) for name, mine, theirs in pairs if mine != theirs)
    return differs or ((part, asked.digest, row["digest"]),)


def _label(schedule: ScheduleKey | str) -> str:
    return schedule if isinstance(schedule, str) else schedule.label or schedule.digest


def _nearest(connection: sa.Connection, group: Group, differs: Differences, schedule: str) -> Nearest | None:
    """The trial of a group to show: the newest of the schedule asked for, else the fastest; None where all are deleted."""
    statement = sa.select(Trial.id, Trial.source, Trial.status, Trial.value_us).where(*in_group(group)).limit(1)
    own = statement.join(Schedule, Schedule.id == Trial.schedule_id).where(Schedule.digest == schedule)
    row = connection.execute(own.order_by(Trial.id.desc())).first()
    if row is None:
        row = connection.execute(statement.order_by(Trial.value_us.is_(None), Trial.value_us)).first()
    if row is None:
        return None
    return Nearest(int(row[0]), str(row[1]), str(row[2]), row[3], differs)


def _no_difference(connection: sa.Connection, group: Group, schedule: str) -> Miss:
    statement = sa.select(Trial.id).join(Schedule, Schedule.id == Trial.schedule_id)
    statement = statement.where(*in_group(group), Schedule.digest == schedule).order_by(Trial.id.desc())
    answer = connection.execute(statement.where(Trial.status != "interrupted")).scalar()
    if answer is not None:
        return Miss(f"no field differs: trial {answer} is an exact match")
    interrupted = connection.execute(statement).scalar()
    return Miss(f"no exact match: trial {interrupted} has this key but was interrupted, which answers nothing")


def what_is_there(
    db: Database, *, op: str | None, shape: str | None, gpu: str | None, sources: Sequence[str] | None, limit: int = 5
) -> list[str]:
    """Lines on what is stored near a question of `best` or `history` that had no answer."""
    wanted = set(sources or ("measured",))
    lines = []
    with db.read() as connection:
        rows = list(_stored(db, connection))
        if not rows:
            return ["the database holds no trial"]
        same = [row for row in rows if op in (None, row.op) and shape in (None, row.shape)]
        if gpu is not None and same and not any(row.gpu == normal_gpu(gpu) for row in same):
            here = {row.gpu for row in same}
            names = [name for name in similar_gpus(connection, gpu) if name in here][:limit]
            lines.append(f"nearest GPU models, not used: {', '.join(names)} (--nearest shows the first, labelled)")
        if shape is not None and not same:
            fits = [row for row in rows if op in (None, row.op)]
            near = sorted({(shape_distance(shape, row.shape), row.op, row.shape) for row in fits})
            lines.append(f"nearest shapes, not used: {', '.join(f'{name} {size}' for _, name, size in near[:limit])}")
        others = sorted({row.source for row in same} - wanted)
        if others:
            lines.append(f"there are trials with other sources, not used: {', '.join(others)} (--source shows them)")
        if op is not None and not any(row.op == op for row in rows):
            lines.append(f"stored operations: {', '.join(sorted({row.op for row in rows}))}")
    return lines


@dataclass(frozen=True)
class _Stored:
    op: str
    shape: str
    gpu: str
    source: str


def _stored(db: Database, connection: sa.Connection) -> Iterator[_Stored]:
    for row in connection.execute(sa.select(Workload.id, Workload.op, Workload.shape)).all():
        found = groups(db, int(row[0]))
        machines = environments(connection, {group.environment_id for group in found})
        for group in found:
            yield _Stored(str(row[1]), str(row[2]), machines[group.environment_id].gpu, group.source)
