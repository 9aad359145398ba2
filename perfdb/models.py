"""The tables, as SQLAlchemy models. `migrations/` must build the same schema: a test compares the two.

Keys (workload, topology, environment, schedule, artifact) are stored once and referred to by trials. A trial repeats
nothing of them, so every question about a GPU or a power cap goes through the environment it was measured in.
`trial_group`, `standing` and `point` are summaries of `trial`, kept up to date in the transaction that stores a trial
(`writing.py`).
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from perfdb.base import Base, Id, UtcTime, one_of
from perfdb.models_history import Annotation, ChangePoint, Decision, Prediction, Recommendation, Series
from perfdb.records import SESSION_STATUSES, SOURCES, STATUSES

__all__ = [
    "Annotation",
    "Artifact",
    "Base",
    "ChangePoint",
    "Decision",
    "Environment",
    "Point",
    "Prediction",
    "Recommendation",
    "Samples",
    "Schedule",
    "Series",
    "Standing",
    "Topology",
    "Trial",
    "TrialGroup",
    "TuningSession",
    "UtcTime",
    "Workload",
]


class Workload(Base):
    """What was asked for: one row a spec digest."""

    __tablename__ = "workload"
    __table_args__ = (UniqueConstraint("digest"), Index(None, "op", "shape"), CheckConstraint("world >= 1", "world"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    op: Mapped[str]
    shape: Mapped[str]
    dtype: Mapped[str]
    world: Mapped[int]
    label: Mapped[str]
    flops: Mapped[int] = mapped_column(BigInteger)
    link_bytes: Mapped[int] = mapped_column(BigInteger)
    document: Mapped[str]


class Topology(Base):
    """The structure of a machine: one row a topology digest."""

    __tablename__ = "topology"
    __table_args__ = (UniqueConstraint("digest"), CheckConstraint("world >= 1", "world"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    name: Mapped[str]
    kind: Mapped[str]
    world: Mapped[int]
    gpu: Mapped[str]
    document: Mapped[str]


class Environment(Base):
    """The state of a machine and its toolchain; every column but `document` is part of the digest."""

    __tablename__ = "environment"
    __table_args__ = (
        UniqueConstraint("digest"),
        Index(None, "gpu", "power_cap_w"),
        CheckConstraint("power_cap_w >= 0", "power_cap_w"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    gpu: Mapped[str]
    arch: Mapped[str]
    power_cap_w: Mapped[int]
    driver: Mapped[str]
    nvrtc: Mapped[str]
    nccl: Mapped[str]
    torch: Mapped[str]
    clock_policy: Mapped[str]
    gpu_count: Mapped[int]
    timer_version: Mapped[str]
    validation_version: Mapped[str]
    document: Mapped[str]


class Schedule(Base):
    """How it was done: one row a schedule digest."""

    __tablename__ = "schedule"
    __table_args__ = (UniqueConstraint("digest"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    label: Mapped[str]
    document: Mapped[str]


class Artifact(Base):
    """What was executed: a binary and the table that it read. Equal digests are the same run-time code."""

    __tablename__ = "artifact"
    __table_args__ = (UniqueConstraint("binary_digest", "table_digest"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    binary_digest: Mapped[str] = mapped_column(String(64))
    table_digest: Mapped[str] = mapped_column(String(64))


class TuningSession(Base):
    """One run of a tuner. A session that was killed stays "running": nobody was left to say otherwise."""

    __tablename__ = "session"
    __table_args__ = (
        CheckConstraint(one_of("status", SESSION_STATUSES), "status"),
        Index(None, "started_at"),
        Index(None, "revision"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    seed: Mapped[int | None] = mapped_column(BigInteger)
    command: Mapped[str]
    host: Mapped[str]
    status: Mapped[str] = mapped_column(String(32))
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    document: Mapped[str]
    # The commit of the code under test, "" if nobody said.
    revision: Mapped[str] = mapped_column(server_default=text("''"))


class Trial(Base):
    """One finished attempt at a schedule. Several rows of one key are repetitions; `standing` holds the newest."""

    __tablename__ = "trial"
    __table_args__ = (
        CheckConstraint(one_of("source", SOURCES), "source"),
        CheckConstraint(one_of("status", STATUSES), "status"),
        CheckConstraint("(status = 'ok') = (value_us IS NOT NULL)", "value_if_ok"),
        CheckConstraint("value_us > 0", "value_us"),
        CheckConstraint("world >= 1", "world"),
        Index("ix_trial_exact", "workload_id", "topology_id", "environment_id", "source", "schedule_id"),
        Index(
            "ix_trial_failure",
            "status",
            "source",
            sqlite_where=text("status <> 'ok'"),
            postgresql_where=text("status <> 'ok'"),
        ),
        Index(None, "recorded_at"),
        Index(None, "session_id"),
        Index(None, "artifact_id"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"))
    topology_id: Mapped[int] = mapped_column(ForeignKey("topology.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    schedule_id: Mapped[int] = mapped_column(ForeignKey("schedule.id"))
    artifact_id: Mapped[int | None] = mapped_column(ForeignKey("artifact.id"))
    session_id: Mapped[int | None] = mapped_column(ForeignKey("session.id"))
    source: Mapped[str] = mapped_column(String(32))
    status: Mapped[str] = mapped_column(String(32))
    value_us: Mapped[float | None]
    world: Mapped[int]
    message: Mapped[str]
    conditions: Mapped[str]
    recorded_at: Mapped[datetime]


class Samples(Base):
    """The samples of one rank of a trial, packed little-endian; float64 only where float32 would change a value."""

    __tablename__ = "samples"
    __table_args__ = (CheckConstraint(one_of("encoding", ("<f4", "<f8")), "encoding"),)

    trial_id: Mapped[int] = mapped_column(ForeignKey("trial.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True)
    encoding: Mapped[str] = mapped_column(String(8))
    count: Mapped[int]
    data: Mapped[bytes] = mapped_column(LargeBinary)


class TrialGroup(Base):
    """A workload in one topology, environment and source that has trials: only inside of one are times compared."""

    __tablename__ = "trial_group"
    __table_args__ = ({"sqlite_with_rowid": False},)

    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"), primary_key=True)
    topology_id: Mapped[int] = mapped_column(ForeignKey("topology.id"), primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"), primary_key=True)
    source: Mapped[str] = mapped_column(String(32), primary_key=True)


class Standing(Base):
    """What answers for a key: its newest trial by `recorded_at`. An interrupted trial says nothing and is not here."""

    __tablename__ = "standing"
    __table_args__ = (
        Index(
            "ix_standing_best",
            "workload_id",
            "topology_id",
            "environment_id",
            "source",
            "value_us",
            "trial_id",
            sqlite_where=text("status = 'ok'"),
            postgresql_where=text("status = 'ok'"),
        ),
        {"sqlite_with_rowid": False},
    )

    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"), primary_key=True)
    topology_id: Mapped[int] = mapped_column(ForeignKey("topology.id"), primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"), primary_key=True)
    source: Mapped[str] = mapped_column(String(32), primary_key=True)
    schedule_id: Mapped[int] = mapped_column(ForeignKey("schedule.id"), primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trial.id", ondelete="CASCADE"))
    status: Mapped[str] = mapped_column(String(32))
    value_us: Mapped[float | None]
    recorded_at: Mapped[datetime]


class Point(Base):
    """A point of a history: the fastest good trial of one run. `run` is a session, or minus a trial outside of any."""

    __tablename__ = "point"
    __table_args__ = (
        Index("ix_point_recorded_at", "recorded_at", "source", "value_us", "trial_id"),
        Index("ix_point_last", "workload_id", "topology_id", "environment_id", "source", "recorded_at"),
        {"sqlite_with_rowid": False},
    )

    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"), primary_key=True)
    topology_id: Mapped[int] = mapped_column(ForeignKey("topology.id"), primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"), primary_key=True)
    source: Mapped[str] = mapped_column(String(32), primary_key=True)
    run: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trial.id", ondelete="CASCADE"))
    value_us: Mapped[float]
    recorded_at: Mapped[datetime]
