"""tilescale.tuner.result and remembered: tables, and results without a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import ag_gemm
from tuner_support import SMALL, SPEC, fake, guess

from tilescale.errors import RunnerError
from tilescale.tuner import export as export_module
from tilescale.tuner.remembered import recall
from tilescale.tuner.result import Result, Results
from tilescale.tuner.tune import tune


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "perf.db"


@pytest.fixture
def result(db: Path) -> Result:
    return tune(SPEC, trials=12, db=db, runner=fake(noise=0.01), space=SMALL, predictor=guess)


def test_a_row_a_trial_with_its_knobs_and_its_label(result: Result) -> None:
    assert list(result.trials.number) == list(range(12))
    row = result.trials.set_index("schedule").loc[result.best.digest]
    assert {knob: row[knob] for knob in result.best.as_dict()} == result.best.as_dict()
    assert (row.label, row.value_us, row.source) == (result.best.label, result.best_us, "predicted")
    assert row.predicted_us == guess(SPEC, result.best).us


def test_the_top_is_sorted_and_good(result: Result) -> None:
    top = result.top(5)
    assert [trial.time_us for trial in top] == sorted(result.trials.value_us)[:5]


def test_results_are_a_mapping_with_one_source(result: Result) -> None:
    results = Results({"up": result})
    assert (list(results), results["up"], len(results)) == (["up"], result, 1)
    assert results.source == "predicted"
    other = tune(SPEC, trials=3, runner=fake(source="replayed"), space=SMALL, predictor=guess)
    with pytest.raises(RunnerError, match=r"\['predicted', 'replayed'\]"):
        Results({"up": result, "again": other}).source  # noqa: B018


def test_export_gets_the_results_what_they_share_and_the_verdict(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def export(results: Results, folder: Path, **options: Any) -> Path:
        given.extend([dict(results), options["environment"], options["emulate"](result)])
        return folder

    monkeypatch.setattr(export_module, "export", export)
    assert result.export(tmp_path / "bundle", lambda result: f"right: {result.name}") == tmp_path / "bundle"
    assert given == [{"ag_gemm": result}, dict(result.environment), "right: ag_gemm"]
    assert given[1]["gpu"] == "H200"


def test_the_winner_has_its_samples_even_where_it_was_resumed(result: Result, db: Path) -> None:
    again = tune(SPEC, trials=12, db=db, runner=fake(), space=SMALL, predictor=guess)
    assert again.measured == 0
    samples = {trial.schedule: trial.samples_us for trial in again.rows}[again.best]
    assert samples == {trial.schedule: trial.samples_us for trial in result.rows}[again.best]
    assert len(samples) == SPEC.world


def test_the_best_is_recalled_without_a_search(result: Result, db: Path) -> None:
    found = recall({"up": SPEC}, db)["up"]
    fastest = result.top(1)[0]
    assert (found.best, found.best_us, found.source) == (fastest.schedule, fastest.time_us, "predicted")
    assert (len(found.rows), found.session, found.measured) == (12, result.session, 0)
    assert found.baselines == result.baselines
    assert found.environment == result.environment
    assert {trial.schedule: trial.samples_us for trial in found.rows}[found.best] == fastest.samples_us


def test_nothing_stored_of_one_source_for_all_is_an_error(result: Result, db: Path) -> None:
    with pytest.raises(RunnerError, match="tune them first"):
        recall({"up": SPEC, "other": ag_gemm((2048, 2048, 2048))}, db)
    with pytest.raises(RunnerError, match="none of measured for up"):
        recall({"up": SPEC}, db, "measured")
