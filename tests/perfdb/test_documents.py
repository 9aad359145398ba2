"""perfdb.documents: the documents of stored keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import perfdb
from perfdb import documents as module
from perfdb.documents import documents

Make = Callable[..., perfdb.TrialRecord]


def test_documents_by_digest_and_none_for_what_is_not_stored(
    path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    trials = [make(f"s{number}", 100.0) for number in range(5)]
    trials = [replace(t, schedule=replace(t.schedule, document=f'{{"number": "{t.schedule.digest}"}}')) for t in trials]
    workload, topology = trials[0].workload, trials[0].topology
    with perfdb.open_database(path) as db:
        db.record_many(trials)
        found = documents(
            db, workloads=[workload.digest], topologies=[topology.digest], schedules=["s4", "s0", "s3", "no"]
        )
        nothing = documents(db)
    assert found.workloads == {workload.digest: workload.document}
    assert found.topologies == {topology.digest: topology.document}
    assert found.schedules == {name: f'{{"number": "{name}"}}' for name in ("s0", "s3", "s4")}
    assert (nothing.workloads, nothing.topologies, nothing.schedules) == ({}, {}, {})
