"""Keys and records to test with; every field can be changed by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import perfdb
from perfdb.models import Base
from tests.perfdb import postgres_server

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


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a database of the current schema on a server of our own; skips where there can be none."""
    try:
        with postgres_server.server() as url:
            made = postgres_server.make_database(url, "perfdb_tests")
            perfdb.open_database(made).close()
            yield made
    except postgres_server.NoServer as reason:
        pytest.skip(str(reason))


@pytest.fixture
def postgres_url(postgres: str) -> Iterator[str]:
    """The same database, empty; its ids begin at 1."""
    yield postgres
    postgres_server.empty_database(postgres, [table.name for table in Base.metadata.sorted_tables])


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Where an empty database may be opened, on both engines in turn."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("path"))
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def db(url: str) -> Iterator[perfdb.Database]:
    """An open, empty database, on both engines in turn."""
    with perfdb.open_database(url) as database:
        yield database


@pytest.fixture
def local(path: Path) -> Iterator[perfdb.Database]:
    """An open, empty SQLite database, for what a server does not have."""
    with perfdb.open_database(path) as database:
        yield database
