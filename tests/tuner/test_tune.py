"""tilescale.tuner.tune: budgets, exhaustion, resuming, determinism, what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from process_support import run_script
from support import ag_gemm
from tuner_support import SMALL, SPEC, Interrupted, fake, flat, guess, small_space, time_us

import perfdb
from tilescale.errors import RunnerError, ScheduleError, SpecError
from tilescale.runtime.fake import Fault
from tilescale.runtime.measure import Measurement
from tilescale.schedules import space as space_module
from tilescale.schedules.constraints import Constraint
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec, moe_dispatch, redistribute
from tilescale.spec.tensor import Dim, Tensor
from tilescale.spec.views import FullRow
from tilescale.tuner.progress import Progress
from tilescale.tuner.strategy import STRATEGIES
from tilescale.tuner.tune import tune


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "perf.db"


def test_finds_the_best_and_reports_everything(db: Path) -> None:
    result = tune(SPEC, trials=60, db=db, runner=fake(), space=SMALL, predictor=guess)
    fastest = min(small_space(), key=lambda schedule: time_us(SPEC, schedule))
    assert (result.best, result.best_us) == (fastest, time_us(SPEC, fastest))
    assert (result.status, result.source, result.seed) == ("complete", "predicted", 0)
    assert (len(result.trials), result.measured) == (60, 60)
    assert result.trials.schedule.is_unique
    assert set(result.trials.origin) == {"evaluated"}
    unfused = min(time_us(SPEC, s) for s in small_space() if s.overlap == "none" and s.compute == "library")
    assert result.baselines["unfused"] == unfused
    assert set(result.baselines) == {"unfused", "chunked"}
    assert result.prediction.source == "predicted"


def test_a_budget_in_trials_is_kept_and_one_in_time_allows_one_trial(db: Path) -> None:
    assert len(tune(SPEC, trials=7, db=db, runner=fake(), space=SMALL, predictor=guess).trials) == 7
    assert len(tune(SPEC, seconds=1e-9, runner=fake(), space=SMALL, predictor=guess).trials) == 1


@pytest.mark.parametrize("strategy", STRATEGIES.names())
def test_exhausts_a_space_and_says_so(strategy: str) -> None:
    feasible = small_space().feasible
    runner = fake()
    result = tune(SPEC, trials=10 * feasible, runner=runner, space=SMALL, predictor=flat, strategy=strategy)
    assert (result.status, len(result.trials), runner.measured) == ("exhausted", feasible, feasible)


def test_c7_a_large_space_with_few_valid_points_stops_at_these(monkeypatch: pytest.MonkeyPatch) -> None:
    # The whole crossed space, of which every point but 488 breaks a constraint.
    whole = Space(SPEC)
    valid = set(whole.schedules[:488])
    only = Constraint("valid", "it is one of the valid points", lambda spec, schedule: schedule in valid)
    monkeypatch.setattr(space_module, "first_broken", lambda spec, schedule: None if only.holds(spec, schedule) else only)
    found = Space(SPEC)
    assert (found.feasible, found.size) == (488, whole.size)
    result = tune(SPEC, trials=1000, runner=fake(), space=found, predictor=guess)
    assert (result.status, len(result.trials)) == ("exhausted", 488)


def test_c7_a_space_without_valid_points_is_an_error_that_counts_rejections() -> None:
    runner = fake()
    with pytest.raises(ScheduleError) as caught:
        tune(SPEC, runner=runner, space={"overlap": ["fused"], "compute": ["library"]})
    message = str(caught.value)
    assert "library_not_fused (a library call cannot wait inside)" in message
    found = Space(SPEC, {"overlap": ["fused"], "compute": ["library"]})
    for name, count in found.rejected.items():
        assert f"{count} points break {name}" in message
    assert runner.measured == 0


def test_a_second_run_measures_nothing(db: Path) -> None:
    first = tune(SPEC, trials=40, db=db, runner=fake(noise=0.01), space=SMALL, predictor=guess)
    runner = fake(noise=0.01)
    second = tune(SPEC, trials=40, db=db, runner=runner, space=SMALL, predictor=guess)
    assert runner.measured == 0
    assert set(second.trials.origin) == {"resumed"}
    assert list(second.trials.schedule) == list(first.trials.schedule)
    assert list(second.trials.value_us) == list(first.trials.value_us)
    assert (second.best, second.best_us, second.ties) == (first.best, first.best_us, first.ties)
    assert second.session != first.session


def test_without_resume_everything_is_measured_again(db: Path) -> None:
    tune(SPEC, trials=10, db=db, runner=fake(), space=SMALL, predictor=guess)
    runner = fake()
    tune(SPEC, trials=10, db=db, runner=runner, space=SMALL, predictor=guess, resume=False)
    assert runner.measured == 10


def test_a_larger_budget_goes_on_from_the_stored_trials(db: Path) -> None:
    first = tune(SPEC, trials=10, db=db, runner=fake(), space=SMALL, predictor=guess)
    runner = fake()
    second = tune(SPEC, trials=25, db=db, runner=runner, space=SMALL, predictor=guess)
    assert list(second.trials.schedule[:10]) == list(first.trials.schedule)
    assert runner.measured == 15


def test_the_best_of_an_earlier_search_is_remembered(db: Path) -> None:
    first = tune(SPEC, trials=60, db=db, runner=fake(), space=SMALL, predictor=guess)
    second = tune(SPEC, trials=3, db=db, runner=fake(), space=SMALL, predictor=flat, strategy="random", seed=5)
    assert second.best == first.best
    assert list(second.trials.origin).count("remembered") == 1


class Machine:
    """A fake runner that states its environment."""

    def __init__(self, **environment: str) -> None:
        self.inner, self.environment = fake(), environment

    @property
    def source(self) -> str:
        return self.inner.source

    def measure(self, spec: Spec, schedules: list[Schedule]) -> list[Measurement]:
        return self.inner.measure(spec, schedules)

    def close(self) -> None:
        self.inner.close()


def test_rows_of_another_machine_do_not_answer_and_the_result_says_why(db: Path) -> None:
    tune(SPEC, trials=5, db=db, runner=Machine(driver="580.65", gpu="H200"), space=SMALL, predictor=guess)
    again = Machine(driver="580.65", gpu="NVIDIA H200")
    assert tune(SPEC, trials=5, db=db, runner=again, space=SMALL, predictor=guess).measured == 0
    result = tune(SPEC, trials=5, db=db, runner=Machine(driver="590.10", gpu="H200"), space=SMALL, predictor=guess)
    assert result.measured == 5
    assert "580.65" in " ".join(result.notes)
    assert dict(result.environment)["driver"] == "590.10"


def test_rows_of_another_source_do_not_answer(db: Path) -> None:
    tune(SPEC, trials=5, db=db, runner=fake(source="predicted"), space=SMALL, predictor=guess)
    result = tune(SPEC, trials=5, db=db, runner=fake(source="replayed"), space=SMALL, predictor=guess)
    assert (result.measured, result.source) == (5, "replayed")
    assert set(result.trials.source) == {"replayed"}


C8 = """
import sys
from tuner_support import SMALL, SPEC, fake, flat
from tilescale.tuner.tune import tune
result = tune(SPEC, trials=45, seed=7, runner=fake(noise=0.02, workers=int(sys.argv[1]) if sys.argv[1:] else 1),
              space=SMALL, predictor=flat, strategy="model")
print(result.best.digest, [s.digest for s in result.ties], list(result.trials.schedule), result.seed)
"""


def test_c8_the_same_seed_gives_the_same_search_for_every_hash_seed_and_worker_count() -> None:
    runs = {run_script(f"import sys; sys.argv = ['', '{workers}']\n" + C8, {"PYTHONHASHSEED": seed})
            for seed, workers in (("1", 1), ("2", 8), ("3", 1))}
    assert len(runs) == 1
    (only,) = runs
    assert only.strip().endswith(" 7")


def test_another_seed_gives_another_search() -> None:
    searches = [tune(SPEC, trials=45, seed=seed, runner=fake(), space=SMALL, predictor=flat) for seed in (0, 1)]
    assert list(searches[0].trials.schedule) != list(searches[1].trials.schedule)


def test_c2_failures_are_classified_stored_and_do_not_disturb_the_good_ones(db: Path) -> None:
    kinds = ("compile_crash", "segv", "launch_error", "exception", "hang", "wrong_result", "compile_error")
    schedules = sorted(small_space(), key=lambda schedule: time_us(SPEC, schedule))
    faults: dict[str, Fault | str] = {schedule.digest: kind for kind, schedule in zip(kinds, schedules, strict=False)}
    count = small_space().feasible
    clean = tune(SPEC, trials=count, runner=fake(noise=0.02), space=SMALL, predictor=guess)
    result = tune(SPEC, trials=count, db=db, runner=fake(noise=0.02, faults=faults), space=SMALL, predictor=guess)
    assert result.failures == {"compile_error": 2, "launch_error": 3, "timeout": 1, "wrong_result": 1}
    bad = result.trials[result.trials.status != "ok"]
    assert set(bad.schedule) == set(faults)
    assert bad.value_us.isna().all()
    assert (bad.message != "").all()
    assert result.best.digest not in faults
    good = result.trials[result.trials.status == "ok"].set_index("schedule").value_us
    assert (clean.trials.set_index("schedule").value_us[good.index] == good).all()
    # Stored failures are skipped when the search is resumed.
    runner = fake(noise=0.02)
    again = tune(SPEC, trials=count, db=db, runner=runner, space=SMALL, predictor=guess)
    assert (runner.measured, again.failures) == (0, result.failures)


def test_when_all_candidates_fail_the_error_counts_them(db: Path) -> None:
    runner = fake(faults=lambda schedule: "launch_error")
    with pytest.raises(RunnerError, match=r"all 5 failed: 5 launch_error; .*fake: launch_error"):
        tune(SPEC, trials=5, db=db, runner=runner, space=SMALL, predictor=guess)
    with perfdb.open_database(db) as database:
        assert len(perfdb.trials(database, statuses="launch_error")) == 5


def test_several_specs_share_a_session_and_have_a_table(db: Path) -> None:
    specs = {"up": SPEC, "qkv": ag_gemm((2048, 2048, 2048))}
    results = tune(specs, trials=8, db=db, runner=fake(), space=SMALL, predictor=guess)
    assert list(results) == ["up", "qkv"]
    assert results["up"].session == results["qkv"].session == results.session
    assert list(results.table.name) == ["up", "qkv"]
    assert list(results.table.source) == ["predicted"] * 2
    assert results.status == "complete"
    with perfdb.open_database(db) as database:
        stored = perfdb.trials(database, session_id=results.session)
    assert set(stored.workload_label) == {SPEC.label, specs["qkv"].label}


def test_an_interruption_keeps_what_was_measured(db: Path) -> None:
    result = tune(SPEC, trials=20, db=db, runner=Interrupted(fake(), 6), space=SMALL, predictor=guess)
    assert (result.status, len(result.trials)) == ("interrupted", 6)
    runner = fake()
    again = tune(SPEC, trials=20, db=db, runner=runner, space=SMALL, predictor=guess)
    assert (again.status, runner.measured) == ("complete", 14)


def test_an_interruption_before_any_good_trial_is_raised_and_noted(db: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(SPEC, trials=20, db=db, runner=Interrupted(fake(), 0), space=SMALL, predictor=guess)
    with perfdb.open_database(db) as database, database.read() as connection:
        assert connection.exec_driver_sql("select status from session").scalars().all() == ["interrupted"]


def test_an_interruption_of_several_names_those_without_a_result(db: Path) -> None:
    specs = {"up": SPEC, "qkv": ag_gemm((2048, 2048, 2048))}
    results = tune(specs, trials=8, db=db, runner=Interrupted(fake(), 8), space=SMALL, predictor=guess)
    assert (list(results), results.unfinished, results.status) == (["up"], ("qkv",), "interrupted")


def test_an_unexpected_exception_propagates_and_the_session_has_failed(db: Path) -> None:
    def broken(spec: Spec, schedule: Schedule) -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tune(SPEC, trials=8, db=db, runner=fake(broken), space=SMALL, predictor=guess)
    with perfdb.open_database(db) as database, database.read() as connection:
        assert connection.exec_driver_sql("select status from session").scalars().all() == ["failed"]


def test_a_tie_is_stored_as_a_decision(db: Path) -> None:
    result = tune(SPEC, trials=40, db=db, runner=fake(lambda spec, schedule: 100.0), space=SMALL, predictor=flat)
    assert len(result.ties) == 39
    assert "the simplest of 40 whose intervals overlap" in result.reason
    with perfdb.open_database(db) as database, database.read() as connection:
        rows = connection.exec_driver_sql("select winner_trial_id, tie_trial_ids from decision").all()
    winner = result.trials.set_index("schedule").trial_id[result.best.digest]
    assert len(rows) == 1
    assert rows[0][0] == winner
    assert len(json.loads(rows[0][1])) == 39


def test_progress_counts_candidates_and_names_the_best() -> None:
    reports: list[Progress] = []
    result = tune(SPEC, trials=9, runner=fake(), space=SMALL, predictor=guess, progress=reports.append)
    search = [report for report in reports if report.stage == "search"]
    assert [report.done for report in search] == list(range(1, 10))
    assert {report.total for report in search} == {9}
    assert search[-1].best_us == min(result.trials.value_us)
    assert search[-1].measured == 9
    assert {report.stage for report in reports} == {"predict", "search"}


def test_what_is_stored_holds_samples_and_their_source(db: Path) -> None:
    result = tune(SPEC, trials=3, db=db, runner=fake(noise=0.1, samples=7), space=SMALL, predictor=guess)
    with perfdb.open_database(db) as database:
        frame = perfdb.samples(database, int(result.trials.trial_id[0]))
    assert len(frame) == 7 * SPEC.world
    assert set(frame.source) == {"predicted"}


class Wrong:
    """A runner that breaks the contract in one way."""

    source = "replayed"

    def __init__(self, how: str) -> None:
        self.how = how

    def measure(self, spec: Spec, schedules: list[Schedule]) -> list[Measurement]:
        source = "measured" if self.how == "source" else "replayed"
        found = [Measurement(schedule, "ok", source, ((1.0,),) * spec.world) for schedule in schedules]
        return [] if self.how == "none" else found * 2 if self.how == "many" else found

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("how", "rule"), [
    ("source", "a runner's measurements carry its source; got: measured"),
    ("none", "one measurement a schedule"),
    ("many", "one measurement a schedule"),
])
def test_a_runner_that_breaks_its_contract_is_refused(how: str, rule: str) -> None:
    with pytest.raises(RunnerError, match=rule):
        tune(SPEC, trials=3, runner=Wrong(how), space=SMALL, predictor=guess)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [
    {"trials": 0}, {"trials": 1.5}, {"trials": True}, {"seconds": 0}, {"seconds": float("nan")}, {"seed": -1},
    {"seed": "a"},
])
def test_a_wrong_budget_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(RunnerError):
        tune(SPEC, runner=fake(), space=SMALL, **options)  # type: ignore[call-overload]


def test_specs_that_cannot_be_tuned_are_refused_with_a_remedy() -> None:
    routed = moe_dispatch(Tensor((4096, 8192), "bfloat16", FullRow, order="col"), 16, 2, SPEC.topology)
    with pytest.raises(SpecError, match="moe_dispatch has kernels"):
        tune(routed, runner=fake())
    gathered = redistribute(Tensor((Dim("M", 1, 4096), 64), "bfloat16", FullRow), "Replicate", SPEC.topology)
    with pytest.raises(SpecError, match=r"spec.bind\(M=4096\)"):
        tune(gathered, runner=fake())
    with pytest.raises(SpecError, match="there is something to tune"):
        tune({}, runner=fake())
