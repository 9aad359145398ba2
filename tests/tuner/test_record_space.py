"""tilescale.tuner.record_space: spaces of predicted times."""

from __future__ import annotations

from pathlib import Path

import pytest
from tuner_support import SPEC, guess, small_space

from tilescale.costmodel.analytic import predict
from tilescale.runtime.replay import RecordedSpace, find_recorded
from tilescale.schedules.space import Space
from tilescale.tuner.recipe import read
from tilescale.tuner.record_space import main, record

RECIPE = """
[topology]
kind = "scale_model"
name = "8xH200-NVSwitch"
ranks = 2
[[workload]]
name = "tokens"
x = { shape = [512, 4096], dtype = "bfloat16", view = "FullRow" }
to = "Replicate"
"""


def test_every_schedule_has_its_predicted_time_and_nothing_is_estimated() -> None:
    space = record(SPEC, small_space(), guess)
    assert [row.schedule for row in space.rows] == list(small_space())
    assert all(row.value_us == pytest.approx(guess(SPEC, row.schedule).us, abs=1e-3) for row in space.rows)
    assert {row.source for row in space.rows} == {space.source} == {"predicted"}


def test_the_command_writes_what_replay_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    assert main([str(recipe), "--workload", "tokens", "-o", str(tmp_path)]) == 0
    assert "tokens" in capsys.readouterr().out
    spec = read(recipe).spec("tokens")
    space = find_recorded(spec, [tmp_path])
    assert isinstance(space, RecordedSpace)
    assert len(space.rows) == Space(spec).feasible
    for row in space.rows[::100]:
        assert row.value_us == pytest.approx(predict(spec, row.schedule).us, abs=1e-3)


def test_a_mistake_is_a_message_and_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    assert main([str(recipe), "--workload", "token", "-o", str(tmp_path)]) == 2
    assert "did you mean 'tokens'" in capsys.readouterr().err
