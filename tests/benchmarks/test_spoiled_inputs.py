"""The script that spoils inputs counts what it is for, and its schedules are those of the space, all proved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WORLD = 4


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import spoiled_inputs

    return spoiled_inputs


def iterations(script: Any, fault: str) -> dict[str, int]:
    """All ranks of an operation on the host, some iterations; `fault` is what is wrong with it."""
    torch = pytest.importorskip("torch")
    inputs = [torch.zeros((2, 24), dtype=torch.bfloat16) for _ in range(WORLD)]
    given: list[Any] = []
    late: list[float] = []
    seen = {"nan": 0, "stale": 0}

    def call(rank: int, out: Any) -> None:
        here = [torch.nan_to_num(x, nan=0.0) if fault == "skips" else x for x in inputs]
        if fault == "late":  # reads operands when their owners have overwritten them
            here[0] = torch.full_like(here[0], float("nan"))
        if fault == "stale" and given:
            here[1] = given[-1]
        out.copy_(sum(here))

    ranks = [script.Iterations(torch, rank, inputs[rank], lambda a, out, rank=rank: call(rank, out), late.append, WORLD)
             for rank in range(WORLD)]
    for number in range(5):
        for rank in ranks[::-1]:  # rank 0, which spoils its input, is the last; each writes its own before any calls
            rank.a.copy_(rank.mine + number % script.STEP)
        before = inputs[1].clone()
        for rank in ranks[::-1]:
            rank.once(number)
        given.append(before)
    for rank in ranks:
        seen = {key: seen[key] + value for key, value in rank.counts().items()}
    assert late == [script.LATE_MS] * 5
    return seen


def test_what_is_right_counts_nothing(script: Any) -> None:
    assert iterations(script, "") == {"nan": 0, "stale": 0}


def test_an_operand_read_after_it_was_spoiled_is_a_nan(script: Any) -> None:
    found = iterations(script, "late")
    assert found["nan"] == 5 * WORLD * 48
    assert found["stale"] == 0


def test_an_operand_of_the_call_before_is_stale(script: Any) -> None:
    found = iterations(script, "stale")
    assert found["nan"] == 0
    assert found["stale"] == 4 * WORLD * 48


def test_the_schedules_are_proved_ones_of_every_kind(script: Any) -> None:
    from tilescale.schedules.lower import lower
    from tilescale.schedules.verify import verify

    found = script.chosen()
    kinds = {f"{a} {d}" for a in ("one_shot", "two_shot") for d in ("push", "pull")}
    assert kinds <= set(found)
    assert "one_shot pull in place" in found
    for spec, schedule in found.values():
        assert verify(lower(spec, schedule)).ok


def test_a_rank_that_ended_early_is_no_result(script: Any) -> None:
    elements = script.SHAPE[0] * script.SHAPE[1]
    line = {"name": "x", "nan": 0, "stale": 0, "seconds": 1.0, "control_nan": elements}
    lines = [{**line, "rank": rank} for rank in range(script.RANKS)]
    assert script.result_of({"x": "label"}, lines, 10)["complete"]
    assert not script.result_of({"x": "label"}, lines[1:], 10)["complete"]
    assert not script.result_of({"x": "label"}, [*lines[1:], {**line, "control_nan": 0}], 10)["complete"]
