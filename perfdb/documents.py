"""The JSON documents of stored keys: what was asked for, and how it was done, in full."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from perfdb.models import Schedule, Topology, Workload
from perfdb.session import Database

# SQLite takes at most so many bound values a statement, on every build.
_AT_ONCE = 500


@dataclass(frozen=True)
class Documents:
    """JSON texts by digest, as they were stored; "{}" where the caller stored none."""

    workloads: dict[str, str]
    topologies: dict[str, str]
    schedules: dict[str, str]


def documents(
    db: Database, *, workloads: Iterable[str] = (), topologies: Iterable[str] = (), schedules: Iterable[str] = ()
) -> Documents:
    """The documents of these digests; digests that are not stored are left out."""
    asked = ((Workload, workloads), (Topology, topologies), (Schedule, schedules))
    found: list[dict[str, str]] = []
    with db.read() as connection:
        for model, digests in asked:
            wanted = sorted(set(digests))
            texts: dict[str, str] = {}
            for start in range(0, len(wanted), _AT_ONCE):
                some = wanted[start : start + _AT_ONCE]
                rows = connection.execute(sa.select(model.digest, model.document).where(model.digest.in_(some)))
                texts.update((str(digest), str(text)) for digest, text in rows)
            found.append(texts)
    return Documents(*found)
