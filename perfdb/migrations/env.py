"""Alembic's entry: runs the migrations over the connection that `perfdb.schema` hands in, inside its transaction."""

from __future__ import annotations

from alembic import context

from perfdb.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite's DDL is transactional here: schema.py starts the transaction itself, so a killed migration leaves no half.
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
