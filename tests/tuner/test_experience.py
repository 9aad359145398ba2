"""What a database holds to learn from: measured rows of one source and one machine, whole and newest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from costmodel_support import made_up
from support import ag_gemm
from tuner_support import SMALL, SPEC, fake, guess, time_us

import perfdb
from tilescale.costmodel.rows import ModelError
from tilescale.runtime.measure import Measurement
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology
from tilescale.tuner.experience import Experience, from_database, from_spaces, of_other_workloads
from tilescale.tuner.records import key_of, workload_key
from tilescale.tuner.tune import tune

SOURCE = "measured_scale_model"
OTHER = ag_gemm((2048, 2048, 2048))


class Machine:
    """A fake runner on a machine with a power cap."""

    def __init__(self, watts: int, source: str = SOURCE, slower: float = 1.0) -> None:
        self.inner = fake(lambda spec, schedule: slower * time_us(spec, schedule), source=source)
        self.environment = {"power_cap_w": str(watts)}

    @property
    def source(self) -> str:
        return self.inner.source

    def measure(self, spec: Spec, schedules: Sequence[Schedule]) -> list[Measurement]:
        return self.inner.measure(spec, schedules)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "perf.db"


def search(db: Path, spec: Spec, trials: int, runner: object, **options: object) -> list[tuple[Schedule, float | None]]:
    result = tune(spec, trials=trials, db=db, runner=runner, space=SMALL, predictor=guess, **options)  # type: ignore[call-overload]
    return [(trial.schedule, trial.value_us) for trial in result.rows]


def read(db: Path, source: str = SOURCE, **options: object) -> Experience:
    with perfdb.open_database(db) as opened:
        return from_database(opened, source, **options)  # type: ignore[arg-type]


def test_rows_are_those_that_were_measured_failures_too(db: Path) -> None:
    runner = fake(source=SOURCE, faults=lambda schedule: "hang" if schedule.overlap == "fused" else None)
    trials = {*search(db, SPEC, 12, runner)}
    found = read(db)
    assert {(row.schedule, row.us) for row in found.rows} == trials
    assert {row.us is None for row in found.rows} == {True, False}
    assert {row.spec for row in found.rows} == {SPEC}
    assert {row.source for row in found.rows} == {SOURCE}
    assert found.notes == ()


@pytest.mark.parametrize("source", ["replayed", "predicted", "emulated"])
def test_other_sources_are_never_read(db: Path, source: str) -> None:
    search(db, SPEC, 3, fake(source=source))
    search(db, SPEC, 2, fake(source="measured_shared_gpu"))
    assert read(db).rows == ()
    with pytest.raises(ModelError, match=f"a model learns from one of .*; got: {source}"):
        read(db, source)


def test_the_machine_with_the_most_rows_is_taken_and_the_others_are_noted(db: Path) -> None:
    search(db, SPEC, 4, Machine(700))
    search(db, SPEC, 6, Machine(500, slower=1.3))
    found = read(db)
    assert (len(found.rows), dict(found.machine)["power_cap_w"]) == (6, "500")
    assert "4 rows of other machines left out" in found.notes[0]
    wanted = {**dict(found.machine), "power_cap_w": "700"}
    assert len(read(db, machine=wanted).rows) == 4


def test_the_newest_outcome_of_a_schedule_counts(db: Path) -> None:
    search(db, SPEC, 5, Machine(700))
    again = search(db, SPEC, 5, Machine(700, slower=2.0), resume=False)
    assert {(row.schedule, row.us) for row in read(db).rows} == {*again}


def test_a_workload_can_be_left_out_and_none_outweighs_the_others(db: Path) -> None:
    search(db, SPEC, 30, fake(source=SOURCE))
    search(db, OTHER, 8, fake(source=SOURCE))
    assert {row.spec for row in read(db, without=workload_key(SPEC).digest).rows} == {OTHER}
    few = read(db, per_workload=10)
    assert sorted(sum(row.spec == spec for row in few.rows) for spec in (SPEC, OTHER)) == [8, 10]
    assert "20 of 38 rows left out" in few.notes[0]
    assert len(read(db, limit=12).rows) == 12
    assert read(db, limit=12) == read(db, limit=12)


def test_a_workload_is_read_with_the_topology_of_its_trials(db: Path) -> None:
    # Its document is stored once, with the topology that it was tuned on first.
    real = ag_gemm(SPEC.mnk, on=Topology.named("8xH200-NVSwitch", ranks=4))
    search(db, real, 2, fake(source="measured"))
    search(db, SPEC, 2, fake(source=SOURCE))
    assert workload_key(real).digest == workload_key(SPEC).digest
    assert {row.spec for row in read(db).rows} == {SPEC}
    assert {row.spec for row in read(db, "measured").rows} == {real}


def test_a_search_learns_from_other_workloads_on_its_machine(db: Path) -> None:
    search(db, SPEC, 3, Machine(700))
    search(db, OTHER, 4, Machine(700))
    search(db, OTHER, 5, Machine(500))
    search(db, OTHER, 6, Machine(700, source="replayed"))
    with perfdb.open_database(db) as opened:
        found = {
            (watts, source): of_other_workloads(opened, key_of(SPEC, Machine(watts, source)))
            for watts, source in ((700, SOURCE), (500, SOURCE), (600, SOURCE), (700, "replayed"))
        }
    assert [len(rows) for rows in found.values()] == [4, 5, 0, 0]
    assert {row.spec for row in found[700, SOURCE]} == {OTHER}


def test_recorded_spaces_are_read_as_what_they_are() -> None:
    space = made_up(SPEC, 60)
    rows = from_spaces([space])
    assert [(row.schedule, row.us) for row in rows] == [(m.schedule, m.value_us if m.ok else None) for m in space.rows]
    with pytest.raises(ModelError, match="got: predicted"):
        from_spaces([made_up(SPEC, 3, source="predicted")])
