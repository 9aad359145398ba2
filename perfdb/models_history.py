"""The tables of what is concluded from trials: predictions, decisions, recommendations, series and their history."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from perfdb.base import Base, Id, one_of
from perfdb.records import SOURCES


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


class Recommendation(Base):
    """A schedule that somebody else's tuner chose and gave no time for (an imported tuning file): never a result."""

    __tablename__ = "recommendation"
    __table_args__ = (UniqueConstraint("workload_id", "environment_id", "schedule_id", "origin"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workload.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    schedule_id: Mapped[int] = mapped_column(ForeignKey("schedule.id"))
    origin: Mapped[str]
    document: Mapped[str]
    recorded_at: Mapped[datetime]
