"""Recorded spaces whose truth is not the prior: the simulator with other parameters, interactions, noise, failures."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from tilescale.costmodel.analytic import predict
from tilescale.costmodel.costs import DEFAULT, Parameters
from tilescale.runtime.measure import Measurement
from tilescale.runtime.replay import RecordedSpace
from tilescale.schedules.knob import BY_NAME
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec

# A machine that differs from the prior's in most of its costs.
OTHER = replace(
    DEFAULT, copy_block_gbps=30.0, tma_block_gbps=75.0, copy_engine_us=9.0, kernel_gap_us=2.5, join_us=4.0,
    signal_us=1.8, wait_us=1.2, l2_gbps_per_sm=52.0, generated_efficiency=0.88, library_efficiency=0.95,
)


def fault(schedule: Schedule) -> str:
    """Which failure a schedule ends in; "" for none. Conjunctions of knobs, as real ones are."""
    if schedule.transport == "tma" and schedule.num_stages == 6 and schedule.block_n == 256:
        return "compile_error"
    if schedule.overlap == "fused" and schedule.depth == 4 and schedule.chunk_rows == 64:
        return "timeout"
    return ""


def interaction(schedule: Schedule, seed: int) -> float:
    """Factors of pairs of knobs, drawn once a seed: what no sum of single effects gives."""
    pairs = (
        (schedule.transport, schedule.overlap), (schedule.overlap, schedule.chunk_rows),
        (schedule.direction, schedule.depth), (schedule.block_n, schedule.num_stages, schedule.overlap),
        (schedule.num_comm_blocks, schedule.transport),
    )
    return math.exp(sum(random.Random(f"{seed} {at} {pair}").gauss(0.0, 0.06) for at, pair in enumerate(pairs)))


def measured(
    spec: Spec, schedule: Schedule, seed: int = 0, parameters: Parameters = OTHER, source: str = "measured_scale_model"
) -> Measurement:
    """A made-up measurement, labelled as asked."""
    failed = fault(schedule)
    if failed:
        return Measurement(schedule, failed, source, message="made up")
    us = predict(spec, schedule, parameters=parameters).us * interaction(schedule, seed)
    noise = random.Random(f"{seed} {spec.digest} {schedule.digest}")
    calls = tuple(us * math.exp(noise.gauss(0.0, 0.01)) for _ in range(3))
    return Measurement(schedule, "ok", source, (calls,) * spec.world)


def made_up(
    spec: Spec, count: int = 300, seed: int = 0, parameters: Parameters = OTHER, source: str = "measured_scale_model"
) -> RecordedSpace:
    """A recorded space of `count` schedules drawn from the space of `spec`, of blocks that copy and without rings, as those
    are that were recorded on machines."""
    known = [name for name in BY_NAME["algorithm"].domain if name != "ring"]
    schedules = Space(spec, {"algorithm": known, "copy_scope": ["block"]}).schedules
    chosen = random.Random(f"{seed} {spec.digest}").sample(schedules, min(count, len(schedules)))
    return RecordedSpace.of(spec, source, [measured(spec, schedule, seed, parameters, source) for schedule in chosen])
