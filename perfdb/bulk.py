"""Many rows at once into a server: a statement or a COPY a table instead of one a row.

A server spends more on receiving, planning and answering a statement than on storing its row. Ids are drawn first, so
that no order of rows is relied on. SQLite, in this process, has no such cost (`writing.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

# Below that many rows, a statement a row in one pipeline is as quick.
FEWEST = 8
_TYPES = {
    "workload_id": "bigint",
    "topology_id": "bigint",
    "environment_id": "bigint",
    "schedule_id": "bigint",
    "trial_id": "bigint",
    "run": "bigint",
    "source": "text",
    "status": "text",
    "value_us": "float8",
    "recorded_at": "timestamptz",
}


def new_ids(cursor: Any, table: str, count: int) -> list[int]:
    """`count` ids of a table that nobody else gets."""
    cursor.execute(
        "SELECT nextval(pg_get_serial_sequence(%s, 'id')) FROM generate_series(1, %s::bigint)", (table, count)
    )
    return sorted(int(row[0]) for row in cursor.fetchall())


def copy_rows(cursor: Any, table: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Append rows; `columns` is the list of their names, as in an INSERT."""
    with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def insert_rows(cursor: Any, head: str, columns: str, tail: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """`INSERT INTO ... (columns)`, the rows, and what follows them (ON CONFLICT ...); no row may conflict with another."""
    if rows:
        cursor.execute(_statement(head, columns, tail), [list(column) for column in zip(*rows, strict=True)])


@cache
def _statement(head: str, columns: str, tail: str) -> str:
    names = columns.split(", ")
    arrays = ", ".join(f"%s::{_TYPES[name]}[]" for name in names)
    return f"{head} ({columns}) SELECT * FROM unnest({arrays}) {tail}"
