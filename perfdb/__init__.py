"""A performance database for kernels: what was measured, where, under what, and what was best.

    import perfdb

    workload = perfdb.WorkloadKey(digest="9f...", op="ag_gemm", shape="4096x10240x8192", dtype="bfloat16", world=4)
    topology = perfdb.TopologyKey(digest="1c...", name="4xH200", kind="real", world=4, gpu="H200")
    environment = perfdb.EnvironmentKey(gpu="NVIDIA H200", arch="sm_90a", power_cap_w=700, driver="580.65", gpu_count=4)
    schedule = perfdb.ScheduleKey(digest="77...", label="peer_copy push fused d4", document='{"depth":4}')

    with perfdb.open_database("perf.db") as db:        # or "sqlite:///perf.db", or a PostgreSQL URL
        session = db.start_session(seed=0, command="tilescale tune ...")
        trial = db.record(                             # committed when it returns: kill -9 loses nothing
            perfdb.TrialRecord(
                workload, topology, environment, schedule, source="measured", status="ok", value_us=812.5,
                samples_us=((810.0, 812.5), (809.1, 811.9), ...), session_id=session,   # one tuple a rank
            )
        )
        perfdb.exact(db, workload, topology, environment, schedule, source="measured")      # TrialRow, or None
        perfdb.known(db, workload, topology, environment, source="measured")               # {schedule digest: TrialRow}
        print(perfdb.explain_miss(db, workload, topology, environment, schedule, source="measured"))
        frame = perfdb.best(db, op="ag_gemm", shape="4096x10240x8192", gpu="H200")             # `measured` alone
        db.end_session(session, "complete")            # running, complete, exhausted, interrupted, failed

    perfdb.compare(db, {"driver": "580"}, {"driver": "590"})   # anchors tell the machine from the software
    from perfdb.regressions import annotate, regressions       # what changed in 30 days, over all series

Names load on first use: importing the package loads neither SQLAlchemy nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdb.comparing import compare
    from perfdb.errors import (
        CorruptDatabase,
        DatabaseError,
        MissingDatabase,
        NotADatabase,
        RecordError,
        SchemaTooNew,
        SchemaTooOld,
    )
    from perfdb.exploring import nearest_workloads, predictions, recommendations, training
    from perfdb.importing import Facts, import_file
    from perfdb.merging import merge
    from perfdb.misses import Miss, Nearest, explain_miss
    from perfdb.queries import best, exact, failures, history, known, samples, top, trials
    from perfdb.records import (
        SESSION_STATUSES,
        SOURCES,
        STATUSES,
        DecisionRecord,
        EnvironmentKey,
        PredictionRecord,
        ScheduleKey,
        TopologyKey,
        TrialRecord,
        TrialRow,
        WorkloadKey,
    )
    from perfdb.session import Database, default_url, open_database

_HOMES = {
    "perfdb.errors": (
        "CorruptDatabase",
        "DatabaseError",
        "MissingDatabase",
        "NotADatabase",
        "RecordError",
        "SchemaTooNew",
        "SchemaTooOld",
    ),
    "perfdb.comparing": ("compare",),
    "perfdb.exploring": ("nearest_workloads", "predictions", "recommendations", "training"),
    "perfdb.importing": ("Facts", "import_file"),
    "perfdb.merging": ("merge",),
    "perfdb.misses": ("Miss", "Nearest", "explain_miss"),
    "perfdb.queries": ("best", "exact", "failures", "history", "known", "samples", "top", "trials"),
    "perfdb.records": (
        "SESSION_STATUSES",
        "SOURCES",
        "STATUSES",
        "DecisionRecord",
        "EnvironmentKey",
        "PredictionRecord",
        "ScheduleKey",
        "TopologyKey",
        "TrialRecord",
        "TrialRow",
        "WorkloadKey",
    ),
    "perfdb.session": ("Database", "default_url", "open_database"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "SESSION_STATUSES",
    "SOURCES",
    "STATUSES",
    "CorruptDatabase",
    "Database",
    "DatabaseError",
    "DecisionRecord",
    "EnvironmentKey",
    "Facts",
    "Miss",
    "MissingDatabase",
    "Nearest",
    "NotADatabase",
    "PredictionRecord",
    "RecordError",
    "ScheduleKey",
    "SchemaTooNew",
    "SchemaTooOld",
    "TopologyKey",
    "TrialRecord",
    "TrialRow",
    "WorkloadKey",
    "best",
    "compare",
    "default_url",
    "exact",
    "explain_miss",
    "failures",
    "history",
    "import_file",
    "known",
    "merge",
    "nearest_workloads",
    "open_database",
    "predictions",
    "recommendations",
    "samples",
    "top",
    "training",
    "trials",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'perfdb' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
