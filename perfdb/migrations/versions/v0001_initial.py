"""Schema 0001, the first. Written out in full: a released migration does not follow later models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SOURCES = "source IN ('measured', 'measured_scale_model', 'measured_shared_gpu', 'replayed', 'predicted', 'emulated')"
STATUSES = (
    "status IN ('ok', 'illegal', 'compile_error', 'compile_timeout', 'launch_error', 'timeout', 'wrong_result', "
    "'interrupted')"
)


def _big() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _id() -> sa.Column[int]:
    return sa.Column("id", _big(), nullable=False)


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _word(name: str, length: int) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False)


def _real(name: str, nullable: bool = True) -> sa.Column[float]:
    return sa.Column(name, sa.Float(53), nullable=nullable)


def _time(name: str, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _refers(column: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(column, _big(), nullable=nullable)


def _foreign(table: str, *columns: str) -> list[sa.ForeignKeyConstraint]:
    """A foreign key `<other>_id` -> other.id for each column (winner_trial_id refers to trial)."""
    keys = []
    for column in columns:
        other = "trial" if column == "winner_trial_id" else column.removesuffix("_id")
        keys.append(sa.ForeignKeyConstraint([column], [f"{other}.id"], name=f"fk_{table}_{column}_{other}"))
    return keys


def _key(table: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint("id", name=f"pk_{table}")


def _check(table: str, name: str, rule: str) -> sa.CheckConstraint:
    # op.f: the name is complete, no naming convention is applied to it again.
    return sa.CheckConstraint(rule, name=op.f(f"ck_{table}_{name}"))


def _unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=f"uq_{table}_{'_'.join(columns)}")


def _index(table: str, *columns: str) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))


def upgrade() -> None:
    """From nothing to 0001."""
    _create_keys()
    _create_session()
    _create_trial()
    _create_prediction_and_decision()
    _create_history()


def _create_keys() -> None:
    op.create_table(
        "workload",
        _id(),
        _word("digest", 64),
        *_text("op", "shape", "dtype"),
        _number("world"),
        *_text("label"),
        sa.Column("flops", sa.BigInteger(), nullable=False),
        sa.Column("link_bytes", sa.BigInteger(), nullable=False),
        *_text("document"),
        _key("workload"),
        _unique("workload", "digest"),
        _check("workload", "world", "world >= 1"),
    )
    _index("workload", "op", "shape")
    op.create_table(
        "topology",
        _id(),
        _word("digest", 64),
        *_text("name", "kind"),
        _number("world"),
        *_text("gpu", "document"),
        _key("topology"),
        _unique("topology", "digest"),
        _check("topology", "world", "world >= 1"),
    )
    op.create_table(
        "environment",
        _id(),
        _word("digest", 64),
        *_text("gpu", "arch"),
        _number("power_cap_w"),
        *_text("driver", "nvrtc", "nccl", "torch", "clock_policy"),
        _number("gpu_count"),
        *_text("timer_version", "validation_version", "document"),
        _key("environment"),
        _unique("environment", "digest"),
        _check("environment", "power_cap_w", "power_cap_w >= 0"),
    )
    _index("environment", "gpu", "power_cap_w")
    op.create_table(
        "schedule",
        _id(),
        _word("digest", 64),
        *_text("label", "document"),
        _key("schedule"),
        _unique("schedule", "digest"),
    )
    op.create_table(
        "artifact",
        _id(),
        _word("binary_digest", 64),
        _word("table_digest", 64),
        _key("artifact"),
        _unique("artifact", "binary_digest", "table_digest"),
    )


def _create_session() -> None:
    op.create_table(
        "session",
        _id(),
        sa.Column("seed", sa.BigInteger(), nullable=True),
        *_text("command", "host"),
        _word("status", 32),
        _time("started_at"),
        _time("ended_at", nullable=True),
        *_text("document"),
        _key("session"),
        _check("session", "status", "status IN ('running', 'complete', 'exhausted', 'interrupted', 'failed')"),
    )
    _index("session", "started_at")


def _create_trial() -> None:
    op.create_table(
        "trial",
        _id(),
        *(_refers(f"{name}_id") for name in ("workload", "topology", "environment", "schedule")),
        *(_refers(f"{name}_id", nullable=True) for name in ("artifact", "session")),
        _word("source", 32),
        _word("status", 32),
        _real("value_us"),
        _number("world"),
        *_text("message", "conditions"),
        _time("recorded_at"),
        _key("trial"),
        _check("trial", "source", SOURCES),
        _check("trial", "status", STATUSES),
        _check("trial", "value_if_ok", "(status = 'ok') = (value_us IS NOT NULL)"),
        _check("trial", "value_us", "value_us > 0"),
        _check("trial", "world", "world >= 1"),
        *_foreign("trial", "workload_id", "topology_id", "environment_id", "schedule_id", "artifact_id", "session_id"),
    )
    key = ["workload_id", "topology_id", "environment_id", "source"]
    good, bad = sa.text("status = 'ok'"), sa.text("status <> 'ok'")
    op.create_index("ix_trial_exact", "trial", [*key, "schedule_id"])
    op.create_index("ix_trial_best", "trial", [*key, "value_us"], sqlite_where=good, postgresql_where=good)
    op.create_index("ix_trial_failure", "trial", ["status", "source"], sqlite_where=bad, postgresql_where=bad)
    for column in ("recorded_at", "session_id", "artifact_id"):
        _index("trial", column)
    op.create_table(
        "samples",
        sa.Column("trial_id", _big(), nullable=False),
        _number("rank"),
        _word("encoding", 8),
        _number("count"),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("trial_id", "rank", name="pk_samples"),
        _check("samples", "encoding", "encoding IN ('<f4', '<f8')"),
        sa.ForeignKeyConstraint(["trial_id"], ["trial.id"], name="fk_samples_trial_id_trial", ondelete="CASCADE"),
    )


def _create_prediction_and_decision() -> None:
    op.create_table(
        "prediction",
        _id(),
        *(_refers(f"{name}_id") for name in ("workload", "topology", "schedule")),
        *(_refers(f"{name}_id", nullable=True) for name in ("environment", "session")),
        *_text("model"),
        _word("model_digest", 64),
        _real("value_us", nullable=False),
        _real("low_us"),
        _real("high_us"),
        *_text("document"),
        _time("recorded_at"),
        _key("prediction"),
        _check("prediction", "value_us", "value_us > 0"),
        *_foreign("prediction", "workload_id", "topology_id", "schedule_id", "environment_id", "session_id"),
    )
    _index("prediction", "workload_id", "topology_id", "schedule_id")
    op.create_table(
        "decision",
        _id(),
        *(_refers(f"{name}_id") for name in ("workload", "topology", "environment")),
        _refers("session_id", nullable=True),
        _word("source", 32),
        _refers("winner_trial_id"),
        *_text("tie_trial_ids", "reason", "document"),
        _time("recorded_at"),
        _key("decision"),
        _check("decision", "source", SOURCES),
        *_foreign("decision", "workload_id", "topology_id", "environment_id", "session_id", "winner_trial_id"),
    )
    _index("decision", "workload_id", "topology_id", "environment_id", "source")


def _create_history() -> None:
    op.create_table(
        "series",
        _id(),
        *(_refers(f"{name}_id") for name in ("workload", "topology")),
        *_text("gpu"),
        _word("source", 32),
        *_text("policy", "document"),
        _key("series"),
        _check("series", "source", SOURCES),
        _unique("series", "workload_id", "topology_id", "gpu", "source", "policy"),
        *_foreign("series", "workload_id", "topology_id"),
    )
    op.create_table(
        "change_point",
        _id(),
        _refers("series_id"),
        _refers("trial_id", nullable=True),
        *_text("detector"),
        _word("state", 32),
        *(_real(name) for name in ("before_us", "after_us", "p_value", "q_value")),
        *_text("document"),
        _time("happened_at"),
        _time("recorded_at"),
        _key("change_point"),
        _check("change_point", "state", "state IN ('suspected', 'confirmed', 'dismissed')"),
        *_foreign("change_point", "series_id", "trial_id"),
    )
    _index("change_point", "series_id", "happened_at")
    op.create_table(
        "annotation",
        _id(),
        *(_refers(f"{name}_id", nullable=True) for name in ("series", "trial", "session")),
        *_text("kind", "author", "remark"),
        _time("starts_at", nullable=True),
        _time("ends_at", nullable=True),
        _time("recorded_at"),
        _key("annotation"),
        *_foreign("annotation", "series_id", "trial_id", "session_id"),
    )
    _index("annotation", "series_id", "starts_at")
