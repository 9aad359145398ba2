"""Schema 0002: summaries of the trials (groups, standing, point), recommendations, revisions of sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

GROUP = """
INSERT INTO trial_group (workload_id, topology_id, environment_id, source)
SELECT DISTINCT workload_id, topology_id, environment_id, source FROM trial
"""
STANDING = """
INSERT INTO standing (workload_id, topology_id, environment_id, source, schedule_id, trial_id, status, value_us,
                      recorded_at)
SELECT workload_id, topology_id, environment_id, source, schedule_id, id, status, value_us, recorded_at FROM (
  SELECT trial.*, row_number() OVER (
    PARTITION BY workload_id, topology_id, environment_id, source, schedule_id ORDER BY recorded_at DESC, id DESC
  ) AS place FROM trial WHERE status <> 'interrupted'
) AS placed WHERE place = 1
"""
POINT = """
INSERT INTO point (workload_id, topology_id, environment_id, source, run, trial_id, value_us, recorded_at)
SELECT workload_id, topology_id, environment_id, source, run, id, value_us, recorded_at FROM (
  SELECT trial.*, coalesce(session_id, -id) AS run, row_number() OVER (
    PARTITION BY workload_id, topology_id, environment_id, source, coalesce(session_id, -id) ORDER BY value_us, id
  ) AS place FROM trial WHERE status = 'ok'
) AS placed WHERE place = 1
"""


def _big() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _refers(name: str) -> sa.Column[int]:
    return sa.Column(name, _big(), nullable=False)


def _foreign(table: str, name: str, **options: str) -> sa.ForeignKeyConstraint:
    other = name.removesuffix("_id")
    return sa.ForeignKeyConstraint([name], [f"{other}.id"], name=f"fk_{table}_{name}_{other}", **options)  # type: ignore[arg-type]


def upgrade() -> None:
    """From 0001 to 0002: nothing of a trial changes; the summaries are filled from the trials."""
    _create_group()
    _create_standing()
    _create_point()
    _create_recommendation()
    op.drop_index("ix_trial_best", "trial")
    op.add_column("session", sa.Column("revision", sa.Text(), nullable=False, server_default=sa.text("''")))
    op.create_index("ix_session_revision", "session", ["revision"])
    op.execute(GROUP)
    op.execute(STANDING)
    op.execute(POINT)


def _key_columns() -> list[sa.Column[object]]:
    names = ("workload_id", "topology_id", "environment_id")
    return [*(_refers(name) for name in names), sa.Column("source", sa.String(32), nullable=False)]  # type: ignore[list-item]


def _create_group() -> None:
    op.create_table(
        "trial_group",
        *_key_columns(),
        sa.PrimaryKeyConstraint("workload_id", "topology_id", "environment_id", "source", name="pk_trial_group"),
        *(_foreign("trial_group", f"{name}_id") for name in ("workload", "topology", "environment")),
        sqlite_with_rowid=False,
    )


def _create_standing() -> None:
    key = ["workload_id", "topology_id", "environment_id", "source"]
    op.create_table(
        "standing",
        *_key_columns(),
        _refers("schedule_id"),
        _refers("trial_id"),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("value_us", sa.Float(53), nullable=True),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(*key, "schedule_id", name="pk_standing"),
        *(_foreign("standing", f"{name}_id") for name in ("workload", "topology", "environment", "schedule")),
        _foreign("standing", "trial_id", ondelete="CASCADE"),
        sqlite_with_rowid=False,
    )
    good = sa.text("status = 'ok'")
    columns = [*key, "value_us", "trial_id"]
    op.create_index("ix_standing_best", "standing", columns, sqlite_where=good, postgresql_where=good)


def _create_point() -> None:
    op.create_table(
        "point",
        *_key_columns(),
        sa.Column("run", sa.BigInteger(), nullable=False),
        _refers("trial_id"),
        sa.Column("value_us", sa.Float(53), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workload_id", "topology_id", "environment_id", "source", "run", name="pk_point"),
        *(_foreign("point", f"{name}_id") for name in ("workload", "topology", "environment")),
        _foreign("point", "trial_id", ondelete="CASCADE"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_point_recorded_at", "point", ["recorded_at", "source", "value_us", "trial_id"])
    key = ["workload_id", "topology_id", "environment_id", "source"]
    op.create_index("ix_point_last", "point", [*key, "recorded_at"])


def _create_recommendation() -> None:
    names = ("workload_id", "environment_id", "schedule_id")
    op.create_table(
        "recommendation",
        sa.Column("id", _big(), nullable=False),
        *(_refers(name) for name in names),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("origin", "document")),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_recommendation"),
        sa.UniqueConstraint(*names, "origin", name=f"uq_recommendation_{'_'.join(names)}_origin"),
        *(_foreign("recommendation", name) for name in names),
    )
