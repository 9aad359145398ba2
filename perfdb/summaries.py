"""The summaries of `trial`, as SQL that both engines take: `?` stands for a value (see `fast.adapted`).

`trial_group` lists what there is, `standing` answers look-ups and rankings, `point` histories, all without reading
the trials through. The statement
that changes one is the same for a single trial and for a rebuild from all of them, so they cannot drift apart.
"""

from __future__ import annotations

import sqlalchemy as sa

_GROUP = "workload_id, topology_id, environment_id, source"
_STANDING = "workload_id, topology_id, environment_id, source, schedule_id, trial_id, status, value_us, recorded_at"
_POINT = "workload_id, topology_id, environment_id, source, run, trial_id, value_us, recorded_at"

# The newest by the moment of measuring, so that a merge of older trials replaces nothing; of equals, the last stored.
_NEWER = """
ON CONFLICT (workload_id, topology_id, environment_id, source, schedule_id) DO UPDATE SET
  trial_id = excluded.trial_id, status = excluded.status, value_us = excluded.value_us,
  recorded_at = excluded.recorded_at
WHERE excluded.recorded_at > standing.recorded_at
   OR (excluded.recorded_at = standing.recorded_at AND excluded.trial_id > standing.trial_id)
"""
_FASTER = """
ON CONFLICT (workload_id, topology_id, environment_id, source, run) DO UPDATE SET
  trial_id = excluded.trial_id, value_us = excluded.value_us, recorded_at = excluded.recorded_at
WHERE excluded.value_us < point.value_us
"""

# The same in parts, for many rows in one statement (`bulk.insert_rows`).
STANDING_PARTS = ("INSERT INTO standing", _STANDING, _NEWER)
POINT_PARTS = ("INSERT INTO point", _POINT, _FASTER)
STANDING = f"INSERT INTO standing ({_STANDING}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) {_NEWER}"
POINT = f"INSERT INTO point ({_POINT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) {_FASTER}"

_ALL_GROUPS = f"SELECT DISTINCT {_GROUP} FROM trial"
# Window functions pick one row a key first: PostgreSQL refuses to update a row twice in one statement.
_ALL_STANDING = """
SELECT workload_id, topology_id, environment_id, source, schedule_id, id, status, value_us, recorded_at FROM (
  SELECT trial.*, row_number() OVER (
    PARTITION BY workload_id, topology_id, environment_id, source, schedule_id ORDER BY recorded_at DESC, id DESC
  ) AS place FROM trial WHERE status <> 'interrupted'
) AS placed WHERE place = 1
"""
_ALL_POINTS = """
SELECT workload_id, topology_id, environment_id, source, run, id, value_us, recorded_at FROM (
  SELECT trial.*, coalesce(session_id, -id) AS run, row_number() OVER (
    PARTITION BY workload_id, topology_id, environment_id, source, coalesce(session_id, -id) ORDER BY value_us, id
  ) AS place FROM trial WHERE status = 'ok'
) AS placed WHERE place = 1
"""


def rebuild(connection: sa.Connection) -> None:
    """Make the summaries anew from the trials, inside the caller's transaction."""
    for table in ("trial_group", "standing", "point"):
        connection.exec_driver_sql(f"DELETE FROM {table}")
    connection.exec_driver_sql(f"INSERT INTO trial_group ({_GROUP}) {_ALL_GROUPS}")
    connection.exec_driver_sql(f"INSERT INTO standing ({_STANDING}) {_ALL_STANDING}")
    connection.exec_driver_sql(f"INSERT INTO point ({_POINT}) {_ALL_POINTS}")


def differences(connection: sa.Connection) -> dict[str, int]:
    """How many rows of each summary are not what the trials say; all zero in a sound database. Reads every trial."""
    found = {}
    for table, columns, truth in (
        ("trial_group", _GROUP, _ALL_GROUPS),
        ("standing", _STANDING, _ALL_STANDING),
        ("point", _POINT, _ALL_POINTS),
    ):
        missing = f"SELECT count(*) FROM ({truth} EXCEPT SELECT {columns} FROM {table}) AS missing"
        extra = f"SELECT count(*) FROM (SELECT {columns} FROM {table} EXCEPT {truth}) AS extra"
        counts = [connection.exec_driver_sql(query).scalar_one() for query in (missing, extra)]
        found[table] = max(int(count) for count in counts)
    return found
