"""tilescale.tuner.runners: what measures where the caller names no runner."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import ag_gemm
from tuner_support import SMALL, SPEC, guess, small_space

from tilescale.errors import RunnerError, TopologyError
from tilescale.runtime import replay
from tilescale.spec import detect
from tilescale.spec.topology import Topology
from tilescale.tuner.progress import Progress
from tilescale.tuner.record_space import record
from tilescale.tuner.runners import choose, gpu_note
from tilescale.tuner.tune import tune


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recorded spaces are looked for here alone, and no GPU is here."""
    monkeypatch.setattr(replay, "user_folder", lambda: tmp_path)
    monkeypatch.setattr(replay, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(detect, "model_at_hand", lambda: None)
    return tmp_path


def test_without_times_the_error_says_what_is_missing_and_what_can_be_done() -> None:
    with pytest.raises(RunnerError) as caught:
        tune(SPEC, space=SMALL)
    message = str(caught.value)
    assert "no GPU is at hand, and no space is recorded of ag_gemm 2048x4096x2048" in message
    for word in ("space", "verify", "emulate", "emit", "predict", "--record", "runner="):
        assert word in message


def test_a_recorded_space_is_replayed_and_labelled(folder: Path) -> None:
    record(SPEC, small_space(), guess).save(folder)
    result = tune(SPEC, trials=30, space=SMALL, predictor=guess)
    assert result.source == "predicted"
    assert set(result.trials.source) == {"predicted"}
    assert result.notes[0].startswith("no GPU is at hand: times are predicted by the analytic model")
    assert result.best_us == pytest.approx(min(guess(SPEC, schedule).us for schedule in small_space()), abs=1e-3)


def test_a_measured_recording_is_labelled_replayed(folder: Path) -> None:
    space = record(SPEC, small_space(), guess)
    replay.RecordedSpace.of(SPEC, "measured_scale_model", space.rows).save(folder)
    result = tune(SPEC, trials=5, space=SMALL, predictor=guess)
    assert (result.source, set(result.trials.source)) == ("replayed", {"replayed"})
    assert "times are replayed from a recording (measured_scale_model" in result.notes[0]


def test_only_recorded_schedules_are_searched(folder: Path) -> None:
    record(SPEC, small_space(), guess).save(folder)
    recorded = set(small_space().schedules)
    result = tune(SPEC, trials=20, predictor=guess, strategy="random")
    assert set(result.trials.status) == {"ok"}
    assert {row.schedule for row in result.rows} <= recorded


def test_a_gpu_of_the_topology_measures_and_another_does_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(SPEC, small_space(), guess).save(folder)
    monkeypatch.setattr(detect, "devices", lambda: (object(),))
    monkeypatch.setattr(detect, "model_at_hand", lambda: "H200")
    choice = choose(SPEC)
    try:
        assert type(choice.runner).__name__ == "GpuRunner"
        assert choice.runner.source == SPEC.topology.source
        assert choice.note == "a GPU is at hand (H200): times are measured scale model on it, shared by 4 ranks"
    finally:
        choice.runner.close()
    monkeypatch.setattr(detect, "model_at_hand", lambda: "H100")
    other = choose(SPEC)
    assert other.runner.source == "predicted"
    assert other.note.startswith("a GPU is at hand (H100), and")
    real = replace(SPEC, topology=Topology.named("8xH200-NVSwitch", ranks=4))
    monkeypatch.setattr(detect, "model_at_hand", lambda: "H200")
    with pytest.raises(RunnerError, match="1 of the 4 that"):
        choose(real)

    def undescribed() -> str:
        raise TopologyError("the GPU at hand is described by a topology", "'H20'")

    monkeypatch.setattr(detect, "model_at_hand", undescribed)
    assert gpu_note() == "a GPU is at hand, but no topology describes it ('H20')"


def test_one_spec_without_times_is_said_before_the_others_are_searched(folder: Path) -> None:
    record(SPEC, small_space(), guess).save(folder)
    other = ag_gemm((2048, 2048, 2048))
    reports: list[Progress] = []
    with pytest.raises(RunnerError, match="no space is recorded of ag_gemm 2048x2048x2048"):
        tune({"up": SPEC, "other": other}, space=SMALL, predictor=guess, progress=reports.append)
    assert not reports
