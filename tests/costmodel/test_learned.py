"""The learned model: better than its prior where it was not fitted, honest about what it does not know."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from costmodel_support import fault, made_up
from process_support import run_script
from support import ag_gemm, all_gather

from tilescale.costmodel import analytic, model_file
from tilescale.costmodel import predict as public
from tilescale.costmodel.costs import DEFAULT
from tilescale.costmodel.feasibility import Feasibility
from tilescale.costmodel.learned import COVERAGE, LearnedModel, fit
from tilescale.costmodel.rows import ModelError, Row, matrix
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

FIRST, SECOND, THIRD = ag_gemm((2048, 4096, 2048)), ag_gemm((4096, 2048, 4096)), ag_gemm((1024, 8192, 2048))


@cache
def rows_of(spec: Spec, count: int = 150) -> tuple[Row, ...]:
    rows = made_up(spec, count).rows
    found = [Row(spec, row.schedule, row.value_us if row.ok else None, row.source) for row in rows]
    return tuple(replace(row, prior=row.predicted) for row in found)


@cache
def model() -> LearnedModel:
    return fit([*rows_of(FIRST), *rows_of(SECOND)])


def errors(spec: Spec, rows: tuple[Row, ...]) -> tuple[float, float, float]:
    """Median relative error of the prior and of the model, and the share of rows inside the model's interval."""
    good = [row for row in rows if row.us is not None]
    found = model().predict_many(spec, [row.schedule for row in good], [row.predicted for row in good])
    us = np.array([row.us for row in good], dtype=np.float64)
    prior = np.array([row.predicted.us for row in good])
    inside = (found.low_us <= us) & (us <= found.high_us)
    return float(np.median(abs(prior / us - 1))), float(np.median(abs(found.us / us - 1))), float(inside.mean())


def test_a_workload_that_was_not_learned_is_predicted_better_than_by_the_prior() -> None:
    prior, learned, inside = errors(THIRD, rows_of(THIRD))
    assert learned < prior / 2
    assert inside > COVERAGE - 0.15


def test_the_errors_that_a_model_states_are_of_held_out_rows() -> None:
    found = model()
    assert found.new_error is not None
    # Trees that have seen a row miss it by less than trees that have not.
    seen = errors(FIRST, rows_of(FIRST))[1]
    assert seen < found.known_error <= found.new_error < found.prior_error
    assert (found.rows + found.failures, len(found.workloads)) == (300, 2)
    assert found.failures == sum(1 for row in (*rows_of(FIRST), *rows_of(SECOND)) if row.us is None) > 0


def test_one_prediction_is_that_of_the_batch_and_its_parts_add_up() -> None:
    schedules = [row.schedule for row in rows_of(THIRD)[:7]]
    many = model().predict_many(THIRD, schedules)
    for at, schedule in enumerate(schedules):
        one = model().predict(THIRD, schedule)
        batch = (many.us[at], many.low_us[at], many.high_us[at])
        assert (one.us, one.low_us, one.high_us) == pytest.approx(batch, rel=1e-12)
        assert 0 < one.low_us < one.us < one.high_us
        assert sum(us for _, us in one.parts) == pytest.approx(one.us)
        assert one.source == "predicted"


def test_equal_rows_give_equal_models_whatever_their_order() -> None:
    rows = [*rows_of(FIRST), *rows_of(SECOND)]
    random.Random(1).shuffle(rows)
    schedules = [row.schedule for row in rows_of(THIRD)]
    first, second = (m.predict_many(THIRD, schedules) for m in (model(), fit(rows)))
    assert np.array_equal(first.us, second.us)
    assert np.array_equal(first.high_us, second.high_us)
    assert np.array_equal(first.failure, second.failure)


def test_a_model_of_one_workload_is_no_surer_of_another_than_the_prior() -> None:
    lone = fit(rows_of(FIRST))
    assert (lone.new_width, lone.new_error) == (None, None)
    schedule = rows_of(THIRD)[0].schedule
    found, prior = lone.predict(THIRD, schedule), analytic.predict(THIRD, schedule)
    assert found.high_us / found.us >= prior.high_us / prior.us * (1 - 1e-12)
    known = rows_of(FIRST)[0]
    own = lone.predict(FIRST, known.schedule)
    assert own.high_us / own.us < known.predicted.high_us / known.predicted.us


def test_without_calibration_intervals_say_nothing() -> None:
    found = fit(rows_of(FIRST), calibrated=False).predict(FIRST, rows_of(FIRST)[0].schedule)
    assert (found.low_us, found.high_us) == (0.0, float("inf"))
    assert found.us == fit(rows_of(FIRST)).predict(FIRST, rows_of(FIRST)[0].schedule).us


@pytest.mark.parametrize("source", ["replayed", "predicted", "emulated"])
def test_nothing_is_learned_from_times_that_were_not_measured(source: str) -> None:
    with pytest.raises(ModelError, match=f"a model learns from one of measured, .*; got: {source}"):
        Row(FIRST, Schedule(), 1.0, source)


def test_rows_that_cannot_be_learned_from_are_refused() -> None:
    rows = rows_of(FIRST)
    with pytest.raises(ModelError, match=r"fitted on one source.*'measured', 'measured_scale_model'"):
        fit([*rows, replace(rows[0], source="measured")])
    with pytest.raises(ModelError, match="at least 20 good rows; got: 0"):
        fit([replace(row, us=None) for row in rows])
    with pytest.raises(ModelError, match="at least 20 good rows; got: 0"):
        fit([])
    for wrong in (0.0, float("nan"), float("inf")):
        with pytest.raises(ModelError, match="a time is positive"):
            Row(FIRST, Schedule(), wrong, "measured")


@pytest.mark.parametrize("spec", [
    all_gather(), ag_gemm(FIRST.mnk, on=Topology.named("8xH200-NVSwitch")), ag_gemm(FIRST.mnk, on=Topology.shared_gpu(4)),
])
def test_another_operation_or_kind_of_topology_is_not_covered(spec: Spec) -> None:
    assert model().covers(THIRD)
    assert not model().covers(spec)
    with pytest.raises(ModelError, match=f"got: {spec.op} on H200 \\({spec.topology.source}\\)"):
        model().predict_many(spec, [])


def test_columns_that_are_no_features_any_more_ask_for_a_new_model() -> None:
    row = rows_of(FIRST)[0]
    with pytest.raises(ModelError, match="got: gone; fit it again"):
        matrix([FIRST], [row.schedule], [row.predicted], ("world", "gone"))


def test_failures_teach_which_schedules_fail() -> None:
    schedules = Space(THIRD).schedules
    found = np.array(model().feasibility.failure(schedules))
    fails = np.array([bool(fault(schedule)) for schedule in schedules])
    assert 0 < fails.mean() < 0.2
    # Shown 300 schedules of other workloads: of a failing one and a good one, the failing one is told nearly always.
    order = found[fails][:, None] > found[~fails][None, ::7]
    assert order.mean() > 0.95
    assert found[~fails].mean() < 0.1 < found[fails].mean()
    assert Feasibility.fit((s, True) for s in schedules[:50]).failure(schedules[:3]) == [0.0] * 3
    assert min(Feasibility.fit((s, False) for s in schedules[:50]).failure(schedules[:3])) > 0.9


def test_a_model_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "models" / "m.model"
    digest = model_file.save(model(), path)
    loaded = model_file.load(path)
    assert replace(loaded, trees=None) == replace(model(), trees=None)
    schedules = [row.schedule for row in rows_of(THIRD)[:20]]
    assert np.array_equal(loaded.predict_many(THIRD, schedules).us, model().predict_many(THIRD, schedules).us)
    assert [file.name for file in path.parent.iterdir()] == ["m.model"]
    header = json.loads(path.read_bytes().partition(b"\n")[0])
    assert (header["digest"], header["source"], header["rows"]) == (digest, "measured_scale_model", model().rows)


def edited(path: Path, **changes: object) -> None:
    """Change the header of a model file."""
    first, _, body = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(first), **changes}).encode() + b"\n" + body)


def test_a_file_that_cannot_be_used_is_refused_before_it_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.model"
    model_file.save(model(), path)
    whole = path.read_bytes()
    monkeypatch.setattr(model_file.pickle, "loads", lambda body: pytest.fail("unpickled"))
    path.write_bytes(whole[:-1])
    with pytest.raises(ModelError, match=r"m\.model is whole"):
        model_file.load(path)
    path.write_bytes(whole)
    edited(path, sklearn="0.24.2")
    with pytest.raises(ModelError, match=r"installed scikit-learn .*; got: fitted under 0.24.2; fit it again: tilescale"):
        model_file.load(path)
    edited(path, format=99)
    with pytest.raises(ModelError, match="format 1; got: 99"):
        model_file.load(path)
    for text in (b"", b"[1]\n", b"\xff\n"):
        path.write_bytes(text)
        with pytest.raises(ModelError, match=r"m\.model is a learned model"):
            model_file.load(path)
    with pytest.raises(ModelError, match="no such file"):
        model_file.load(tmp_path / "none.model")


def test_the_public_prediction_is_the_learned_one_where_the_user_has_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public, "user_path", lambda source: tmp_path / f"{source}.model")
    schedule = rows_of(THIRD)[0].schedule
    prior = analytic.predict(THIRD, schedule)
    assert public.predict(THIRD, schedule) == prior
    model_file.save(model(), tmp_path / "measured_scale_model.model")
    learned = public.predict(THIRD, schedule)
    assert learned == model().predict(THIRD, schedule) != prior
    assert public.predict(THIRD, schedule, parameters=replace(DEFAULT, wait_us=0.0)).us < prior.us
    for spec in (ag_gemm(THIRD.mnk, on=Topology.named("8xH200-NVSwitch")), all_gather()):
        one = Space(spec).schedules[0]
        assert public.predict(spec, one) == analytic.predict(spec, one)


def test_a_model_that_cannot_be_loaded_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "user_path", lambda source: tmp_path / f"{source}.model")
    path = tmp_path / "measured_scale_model.model"
    model_file.save(model(), path)
    edited(path, sklearn="0.24.2")
    schedule = rows_of(THIRD)[0].schedule
    with pytest.warns(RuntimeWarning, match="analytic model's: .*fitted under 0.24.2") as caught:
        found = [public.predict(THIRD, schedule) for _ in range(3)]
    assert found == [analytic.predict(THIRD, schedule)] * 3
    assert len(caught) == 1


def test_predicting_without_a_model_loads_no_library(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from support import ag_gemm
from tilescale.costmodel import predict
from tilescale.schedules.space import Space
predict.user_path = lambda source: Path({str(tmp_path)!r}) / "none"
spec = ag_gemm((2048, 4096, 2048))
predict.predict(spec, Space(spec).schedules[0])
print(sorted({{"numpy", "scipy", "sklearn", "pandas", "perfdb"}} & set(sys.modules)))
"""
    assert run_script(script).strip() == "[]"
