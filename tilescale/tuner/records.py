"""Specs, topologies, schedules and measurements as records of the performance database."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilescale import canon
from tilescale.runtime.measure import Measurement
from tilescale.runtime.runner import Runner
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

if TYPE_CHECKING:
    import perfdb

# Facts of a runner's environment that have a column in the database, by name.
COLUMNS = ("driver", "nvrtc", "nccl", "torch", "clock_policy", "timer_version", "validation_version")


@dataclass(frozen=True)
class Key:
    """What all trials of one search share; a schedule completes it to the key of a trial."""

    workload: perfdb.WorkloadKey
    topology: perfdb.TopologyKey
    environment: perfdb.EnvironmentKey
    source: str


def key_of(spec: Spec, runner: Runner) -> Key:
    """The key under which `runner`'s measurements of `spec` are kept."""
    return Key(workload_key(spec), topology_key(spec), environment_key(spec, runner), runner.source)


def workload_key(spec: Spec) -> perfdb.WorkloadKey:
    """The work without the machine: the same on every topology of that world size."""
    import perfdb

    work = [spec.op, spec.inputs, spec.output, spec.placement, spec.deterministic, spec.then, spec.attributes]
    return perfdb.WorkloadKey(
        digest=canon.digest([work, spec.world]),
        op=spec.op,
        shape=shape_text(spec),
        dtype=spec.inputs[0].dtype,
        world=spec.world,
        label=spec.label,
        flops=spec.flops,
        link_bytes=spec.link_bytes,
        document=canon.dumps(spec),
    )


def shape_text(spec: Spec) -> str:
    """M x N x K of a matmul, else the shape of the input."""
    sizes = spec.mnk if spec.operation.compute == "gemm" else spec.inputs[0].sizes
    return "x".join(map(str, sizes))


def topology_key(spec: Spec) -> perfdb.TopologyKey:
    import perfdb

    topology = spec.topology
    return perfdb.TopologyKey(
        digest=topology.digest,
        name=topology.name,
        kind=topology.kind,
        world=topology.world,
        gpu=topology.gpu.model,
        document=canon.dumps(topology),
    )


def environment_key(spec: Spec, runner: Runner) -> perfdb.EnvironmentKey:
    """The machine and toolchain that a runner's times belong to.

    A runner may state them: `environment`, sorted pairs or a mapping of names to texts. A replayed space states those
    it was recorded under, and its recording is part of the timer's version, so that a new recording is not answered by
    rows of an old one. What nobody states is that of the topology.
    """
    import perfdb

    facts = facts_of(runner)
    space = getattr(runner, "space", None)
    if space is not None:
        facts.setdefault("timer_version", f"recording of {space.created} by {space.version}")
    gpus = spec.world if spec.topology.kind == "real" else 1
    return perfdb.EnvironmentKey(
        gpu=facts.get("gpu", spec.topology.gpu.model),
        arch=facts.get("arch", spec.topology.gpu.arch),
        power_cap_w=round(float(facts.get("power_cap_w", 0))),
        gpu_count=int(facts.get("gpu_count", gpus)),
        document=json.dumps(facts, sort_keys=True),
        **{name: facts[name] for name in COLUMNS if name in facts},
    )


def environment_pairs(key: perfdb.EnvironmentKey) -> tuple[tuple[str, str], ...]:
    """The columns of an environment that are set, as sorted pairs of texts."""
    values = {name: getattr(key, name) for name in ("gpu", "arch", "power_cap_w", "gpu_count", *COLUMNS)}
    return tuple(sorted((name, str(value)) for name, value in values.items() if value))


def facts_of(runner: Runner) -> dict[str, str]:
    """What a runner, or the space it replays, says about its environment."""
    stated: Any = getattr(runner, "environment", None)
    if stated is None:
        stated = getattr(getattr(runner, "space", None), "environment", ())
    return {str(name): str(value) for name, value in dict(stated).items()}


def schedule_key(schedule: Schedule) -> perfdb.ScheduleKey:
    import perfdb

    return perfdb.ScheduleKey(digest=schedule.digest, label=schedule.label, document=canon.dumps(schedule))


def trial_record(key: Key, measurement: Measurement, session: int) -> perfdb.TrialRecord:
    """A finished measurement under its whole key."""
    import perfdb

    return perfdb.TrialRecord(
        key.workload,
        key.topology,
        key.environment,
        schedule_key(measurement.schedule),
        source=measurement.source,
        status=measurement.status,
        value_us=measurement.value_us if measurement.ok else None,
        samples_us=measurement.samples_us,
        message=measurement.message,
        binary_digest=measurement.binary_digest,
        table_digest=measurement.table_digest,
        session_id=session,
        conditions=json.dumps(dict(measurement.environment), sort_keys=True),
    )


def prediction_record(key: Key, schedule: Schedule, predicted_us: float, session: int) -> perfdb.PredictionRecord:
    """What the analytic prior expected, to be scored against the measurement."""
    import perfdb

    return perfdb.PredictionRecord(
        key.workload,
        key.topology,
        schedule_key(schedule),
        model="analytic",
        value_us=predicted_us,
        environment=key.environment,
        session_id=session,
    )
