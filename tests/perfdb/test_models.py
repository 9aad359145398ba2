"""perfdb.models: the database itself refuses what the records refuse, and PostgreSQL can take the same tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

import perfdb
from perfdb.models import Base

Make = Callable[..., perfdb.TrialRecord]


@pytest.mark.parametrize(
    "change",
    [
        "source = 'guessed'",
        "status = 'good'",
        "status = 'timeout'",
        "value_us = NULL",
        "value_us = -1",
        "session_id = 99",
        "workload_id = 99",
        "world = 0",
    ],
)
def test_the_schema_refuses_what_cannot_be_true(db: perfdb.Database, make: Make, change: str) -> None:
    db.record(make())
    with pytest.raises(sa.exc.IntegrityError), db.write() as connection:
        connection.exec_driver_sql(f"UPDATE trial SET {change}")


def test_a_trial_takes_its_samples_with_it(db: perfdb.Database, make: Make) -> None:
    db.record(make(samples_us=((1.0,), (2.0,))))
    with db.write() as connection:
        connection.exec_driver_sql("DELETE FROM trial")
        assert connection.exec_driver_sql("SELECT count(*) FROM samples").scalar() == 0


def test_postgresql_can_take_the_tables() -> None:
    dialect = postgresql.dialect()
    for table in Base.metadata.sorted_tables:
        assert str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            assert str(CreateIndex(index).compile(dialect=dialect))
            assert len(str(index.name)) <= 63
        for constraint in table.constraints:
            assert constraint.name
            assert len(str(constraint.name)) <= 63
    assert "BIGSERIAL" in str(CreateTable(Base.metadata.tables["trial"]).compile(dialect=dialect))
