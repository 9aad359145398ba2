"""Keys and records to test with; every field can be changed by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import perfdb

WORKLOAD = perfdb.WorkloadKey(
    digest="w1", op="ag_gemm", shape="4096x10240x8192", dtype="bfloat16", world=4, label="ag_gemm 4096x10240x8192 w4"
)
TOPOLOGY = perfdb.TopologyKey(digest="t1", name="4xH200-NVSwitch", kind="real", world=4, gpu="H200")
ENVIRONMENT = perfdb.EnvironmentKey(
    gpu="NVIDIA H200",
    arch="sm_90a",
    power_cap_w=700,
    driver="580.65",
    nvrtc="12.9",
    nccl="2.28",
    torch="2.8",
    gpu_count=4,
)

Make = Callable[..., perfdb.TrialRecord]


@pytest.fixture
def workload() -> perfdb.WorkloadKey:
    return WORKLOAD


@pytest.fixture
def topology() -> perfdb.TopologyKey:
    return TOPOLOGY


@pytest.fixture
def environment() -> perfdb.EnvironmentKey:
    return ENVIRONMENT


@pytest.fixture
def make() -> Make:
    """make("s1", 100.0, source=..., driver=..., shape=...) -> a TrialRecord; a field goes to whatever has it."""

    def build(schedule: str = "s1", value_us: float | None = 100.0, **changes: object) -> perfdb.TrialRecord:
        workload, topology, environment = WORKLOAD, TOPOLOGY, ENVIRONMENT
        rest: dict[str, object] = {"source": "measured", "status": "ok" if value_us is not None else "timeout"}
        for name, value in changes.items():
            if name in ("op", "shape", "dtype"):
                workload = replace(workload, digest=f"w-{value}", **{name: value})
            elif name == "world":
                workload = replace(workload, digest=f"w-{value}", world=value)
                topology = replace(topology, digest=f"t-{value}", world=value)
            elif name in perfdb.EnvironmentKey.__dataclass_fields__:
                environment = replace(environment, **{name: value})
            else:
                rest[name] = value
        key = perfdb.ScheduleKey(digest=schedule, label=f"label {schedule}")
        return perfdb.TrialRecord(workload, topology, environment, key, value_us=value_us, **rest)

    return build


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "perf.db"


@pytest.fixture
def db(path: Path) -> Iterator[perfdb.Database]:
    with perfdb.open_database(path) as database:
        yield database
