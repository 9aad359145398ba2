"""tilescale.tuner.records: specs, machines and measurements as keys of the database."""

from __future__ import annotations

import json
from dataclasses import replace

from support import ag_gemm, all_gather
from tuner_support import SPEC, fake, small_space

from tilescale import canon
from tilescale.runtime.measure import Measurement
from tilescale.runtime.replay import RecordedSpace, ReplayRunner
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology
from tilescale.tuner import records

SCHEDULE = small_space().schedules[0]


def test_a_workload_is_the_same_on_every_topology_of_its_world() -> None:
    key = records.workload_key(SPEC)
    real = replace(SPEC, topology=Topology.named("8xH200-NVSwitch", ranks=4))
    assert records.workload_key(real).digest == key.digest
    assert records.topology_key(real).digest != records.topology_key(SPEC).digest
    shape = (2048, 4096, 2048)
    assert ag_gemm(shape) == SPEC
    for other in (ag_gemm(shape, ranks=2), ag_gemm((2048, 4096, 1024)), ag_gemm(shape, order="row"),
                  ag_gemm(shape, inputs="symmetric"), all_gather((2048, 4096))):
        assert records.workload_key(other).digest != key.digest


def test_a_workload_can_be_read_back_and_asked_for() -> None:
    key = records.workload_key(SPEC)
    assert canon.loads(Spec, key.document) == SPEC
    assert (key.op, key.shape, key.dtype, key.world) == ("ag_gemm", "2048x4096x2048", "bfloat16", 4)
    assert (key.flops, key.link_bytes) == (SPEC.flops, SPEC.link_bytes)
    assert records.workload_key(all_gather((64, 8192))).shape == "64x8192"


def test_a_measurement_becomes_a_trial_under_its_whole_key() -> None:
    samples = ((10.0, 11.0, 12.0),) * 3 + ((11.0, 13.0, 12.5),)
    measurement = Measurement(
        SCHEDULE, "ok", "predicted", samples, environment=(("clock", "1980"),), binary_digest="b", table_digest="t")
    trial = records.trial_record(records.key_of(SPEC, fake()), measurement, session=3)
    assert (trial.value_us, trial.samples_us, trial.source, trial.session_id) == (12.5, samples, "predicted", 3)
    assert canon.loads(Schedule, trial.schedule.document) == SCHEDULE
    assert (trial.binary_digest, trial.table_digest) == ("b", "t")
    assert json.loads(trial.conditions) == {"clock": "1980"}
    failed = records.trial_record(records.key_of(SPEC, fake()), Measurement(SCHEDULE, "timeout", "predicted"), 3)
    assert (failed.status, failed.value_us) == ("timeout", None)


class Stating:
    """A runner that knows its machine."""

    source = "measured"

    def __init__(self, **environment: str) -> None:
        self.environment = environment


def test_an_environment_has_what_the_runner_states_and_else_the_topology() -> None:
    stated = {"gpu": "NVIDIA H200", "power_cap_w": "699.8", "driver": "580.65", "gpu_count": "4", "host": "a"}
    key = records.environment_key(SPEC, Stating(**stated))  # type: ignore[arg-type]
    assert (key.gpu, key.power_cap_w, key.driver, key.gpu_count, key.arch) == ("H200", 700, "580.65", 4, "sm_90a")
    other_host = records.environment_key(SPEC, Stating(**{**stated, "host": "b"}))  # type: ignore[arg-type]
    assert other_host.digest == key.digest
    assert dict(records.environment_pairs(key))["power_cap_w"] == "700"
    unstated = records.environment_key(SPEC, fake())
    assert (unstated.gpu, unstated.arch, unstated.gpu_count) == ("H200", "sm_90a", 1)


def test_another_recording_is_another_timer() -> None:
    rows = [Measurement(SCHEDULE, "ok", "predicted", ((1.0,),) * 4)]
    first = RecordedSpace.of(SPEC, "predicted", rows)
    later = replace(first, created="2030-01-01T00:00:00+00:00")
    keys = [records.environment_key(SPEC, ReplayRunner(space)) for space in (first, first, later)]
    assert keys[0].digest == keys[1].digest != keys[2].digest
