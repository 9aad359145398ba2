"""The tables, as SQLAlchemy models. `migrations/` must build the same schema: a test compares the two.

Keys (workload, topology, environment, schedule, artifact) are stored once and referred to by trials. A trial repeats
nothing of them, so every question about a GPU or a power cap goes through the environment it was measured in.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator, TypeEngine

from perfdb.records import SESSION_STATUSES, SOURCES, STATUSES

# SQLite gives a row id only to a column of type INTEGER.
Id = BigInteger().with_variant(Integer, "sqlite")

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def one_of(column: str, values: tuple[str, ...]) -> str:
    """The SQL of a CHECK: the column holds one of the values."""
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime, stored in UTC; SQLite keeps a sortable text without a zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """The declarative base; constraint names are fixed so that a migration can name them."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[Any, TypeEngine[Any]]] = {
        datetime: UtcTime(),
        str: Text(),
        float: Float(53),
        int: Integer(),
    }


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
    __table_args__ = (CheckConstraint(one_of("status", SESSION_STATUSES), "status"), Index(None, "started_at"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    seed: Mapped[int | None] = mapped_column(BigInteger)
    command: Mapped[str]
    host: Mapped[str]
    status: Mapped[str] = mapped_column(String(32))
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    document: Mapped[str]


class Trial(Base):
    """One finished attempt at a schedule. Several rows of one key are repetitions; the newest answers look-ups."""

    __tablename__ = "trial"
    __table_args__ = (
        CheckConstraint(one_of("source", SOURCES), "source"),
        CheckConstraint(one_of("status", STATUSES), "status"),
        CheckConstraint("(status = 'ok') = (value_us IS NOT NULL)", "value_if_ok"),
        CheckConstraint("value_us > 0", "value_us"),
        CheckConstraint("world >= 1", "world"),
        Index("ix_trial_exact", "workload_id", "topology_id", "environment_id", "source", "schedule_id"),
        Index(
            "ix_trial_best",
            "workload_id",
            "topology_id",
            "environment_id",
            "source",
            "value_us",
            sqlite_where=text("status = 'ok'"),
            postgresql_where=text("status = 'ok'"),
        ),
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


class Prediction(Base):
    """What a model expected, kept to be scored against a later measurement."""

    __tablename__ = "prediction"
    __table_args__ = (
        Index(None, "workload_id", "topology_id", "schedule_id"),
        CheckConstraint("value_us > 0", "value_us"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"))
    topology_id: Mapped[int] = mapped_column(ForeignKey("topology.id"))
    schedule_id: Mapped[int] = mapped_column(ForeignKey("schedule.id"))
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environment.id"))
    session_id: Mapped[int | None] = mapped_column(ForeignKey("session.id"))
    model: Mapped[str]
    model_digest: Mapped[str] = mapped_column(String(64))
    value_us: Mapped[float]
    low_us: Mapped[float | None]
    high_us: Mapped[float | None]
    document: Mapped[str]
    recorded_at: Mapped[datetime]


class Decision(Base):
    """The winner of a session and the trials it tied with (`tie_trial_ids`, a JSON list)."""

    __tablename__ = "decision"
    __table_args__ = (
        CheckConstraint(one_of("source", SOURCES), "source"),
        Index(None, "workload_id", "topology_id", "environment_id", "source"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"))
    topology_id: Mapped[int] = mapped_column(ForeignKey("topology.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    session_id: Mapped[int | None] = mapped_column(ForeignKey("session.id"))
    source: Mapped[str] = mapped_column(String(32))
    winner_trial_id: Mapped[int] = mapped_column(ForeignKey("trial.id"))
    tie_trial_ids: Mapped[str]
    reason: Mapped[str]
    document: Mapped[str]
    recorded_at: Mapped[datetime]


class Series(Base):
    """A line watched over time. Driver, power cap and toolchain are covariates of its points, not its identity."""

    __tablename__ = "series"
    __table_args__ = (
        CheckConstraint(one_of("source", SOURCES), "source"),
        UniqueConstraint("workload_id", "topology_id", "gpu", "source", "policy"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"))
    topology_id: Mapped[int] = mapped_column(ForeignKey("topology.id"))
    gpu: Mapped[str]
    source: Mapped[str] = mapped_column(String(32))
    policy: Mapped[str]
    document: Mapped[str]


class ChangePoint(Base):
    """A step that a detector found in a series, at the trial where the new level begins."""

    __tablename__ = "change_point"
    __table_args__ = (
        CheckConstraint(one_of("state", ("suspected", "confirmed", "dismissed")), "state"),
        Index(None, "series_id", "happened_at"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id"))
    trial_id: Mapped[int | None] = mapped_column(ForeignKey("trial.id"))
    detector: Mapped[str]
    state: Mapped[str] = mapped_column(String(32))
    before_us: Mapped[float | None]
    after_us: Mapped[float | None]
    p_value: Mapped[float | None]
    q_value: Mapped[float | None]
    document: Mapped[str]
    happened_at: Mapped[datetime]
    recorded_at: Mapped[datetime]


class Annotation(Base):
    """A remark of a person on a series, a trial, a session or a span of time (an intended change, a bad machine)."""

    __tablename__ = "annotation"
    __table_args__ = (Index(None, "series_id", "starts_at"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    series_id: Mapped[int | None] = mapped_column(ForeignKey("series.id"))
    trial_id: Mapped[int | None] = mapped_column(ForeignKey("trial.id"))
    session_id: Mapped[int | None] = mapped_column(ForeignKey("session.id"))
    kind: Mapped[str]
    author: Mapped[str]
    remark: Mapped[str]
    starts_at: Mapped[datetime | None]
    ends_at: Mapped[datetime | None]
    recorded_at: Mapped[datetime]
