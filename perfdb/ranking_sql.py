"""The statements of `ranking`: which groups fit a question, and the fastest trials of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

# The machine as it was set up; the other fields (toolchain, timer, validation) are versions that follow one another.
MACHINE_FIELDS = ("gpu", "arch", "power_cap_w", "clock_policy", "gpu_count")

@dataclass(frozen=True)
class Question:
    """What `perfdb.best` was asked, keys as digests; None asks for all."""

    op: str | None
    shape: str | None
    gpu: str | None
    world: int | None
    power_cap_w: int | None
    workload: str | None
    topology: str | None
    environment: str | None
    sources: tuple[str, ...]


# What a row says of its workload, topology and environment is the same for its whole group, and is asked once.
TOP = (
    "SELECT trial.id, trial.value_us, schedule.label, schedule.digest, coalesce(artifact.binary_digest, ''),"
    " coalesce(artifact.table_digest, ''), trial.session_id, trial.recorded_at, trial.message"
    " FROM standing JOIN trial ON trial.id = standing.trial_id JOIN schedule ON schedule.id = standing.schedule_id"
    " LEFT JOIN artifact ON artifact.id = trial.artifact_id WHERE standing.status = 'ok'"
    " AND standing.workload_id = {0} AND standing.topology_id = {1} AND standing.environment_id = {2}"
    " AND standing.source = {3}{4} ORDER BY standing.value_us, standing.trial_id LIMIT ?"
)
TOP_OF_ONE = TOP.format("?", "?", "?", "?", "")

_SAME_GROUP = " AND ".join(
    f"point.{name} = trial_group.{name}" for name in ("workload_id", "topology_id", "environment_id", "source")
)
_LAST = f"FROM point WHERE {_SAME_GROUP} ORDER BY point.recorded_at DESC LIMIT 1"
_GROUP = (
    "SELECT trial_group.workload_id, trial_group.topology_id, trial_group.environment_id, trial_group.source,"
    " workload.op, workload.world, "
)
_EVERYTHING = (
    f"WITH found AS ({_GROUP} latest.recorded_at AS last_at, latest.trial_id AS last_trial, row_number() OVER"
    " (PARTITION BY trial_group.workload_id, trial_group.topology_id, trial_group.source, "
    + ", ".join(f"environment.{name}" for name in MACHINE_FIELDS)
    + " ORDER BY latest.recorded_at DESC NULLS LAST, latest.trial_id DESC) AS age"
    " FROM workload JOIN trial_group ON trial_group.workload_id = workload.id"
    " JOIN environment ON environment.id = trial_group.environment_id"
    f" LEFT JOIN LATERAL (SELECT point.recorded_at, point.trial_id {_LAST}) AS latest ON TRUE"
    " WHERE trial_group.source = ANY(?)"
)
_BEST = TOP.format(
    *(f"found.{name}" for name in ("workload_id", "topology_id", "environment_id", "source")),
    " AND (found.age = 1 OR ?)",
)


def clauses(question: Question) -> dict[str, object]:
    """SQL conditions on workloads and topologies, and the value of each."""
    wanted: dict[str, object | None] = {
        "workload.op = ?": question.op,
        "workload.shape = ?": question.shape,
        "workload.world = ?": question.world,
        "workload.digest = ?": question.workload,
        "trial_group.topology_id = (SELECT id FROM topology WHERE digest = ?)": question.topology,
    }
    return {clause: value for clause, value in wanted.items() if value is not None}


def machine_clauses(question: Question) -> dict[str, object]:
    """SQL conditions on environments, and the value of each."""
    wanted: dict[str, object | None] = {
        "environment.gpu = ?": question.gpu,
        "environment.power_cap_w = ?": question.power_cap_w,
        "environment.digest = ?": question.environment,
    }
    return {clause: value for clause, value in wanted.items() if value is not None}


@cache
def groups(conditions: tuple[str, ...]) -> str:
    """The groups that fit, each with the time and the trial at which it was last measured well."""
    last = f"(SELECT point.recorded_at {_LAST}), (SELECT point.trial_id {_LAST})"
    where = " AND ".join(["trial_group.workload_id = workload.id", *conditions])
    return f"{_GROUP}{last} FROM workload CROSS JOIN trial_group WHERE {where}"


@cache
def everything(conditions: tuple[str, ...]) -> str:
    """A row a trial: columns of `groups`, then of `TOP`, which are empty where a group does not answer.

    Values: a list of sources, those of the conditions, whether stale groups answer too, the limit of a group.
    """
    where = "".join(f" AND {clause}" for clause in conditions)
    return (
        f"{_EVERYTHING}{where}) SELECT found.workload_id, found.topology_id, found.environment_id, found.source,"
        " found.op, found.world, found.last_at, found.last_trial, best.* FROM found"
        f" LEFT JOIN LATERAL ({_BEST}) AS best ON TRUE"
    )
