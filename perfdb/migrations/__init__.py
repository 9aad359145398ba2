"""Alembic migrations, run by `perfdb.schema`; a released version is never edited, only followed by another."""
