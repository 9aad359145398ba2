"""Every schedule of every shipped recipe, on 2, 4 and 8 ranks: lowered and proved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilescale.commands.worlds import shipped, targets_for
from tilescale.schedules.lower import lower
from tilescale.schedules.proof_cache import ProofCache
from tilescale.schedules.verify import verify

RECIPES = shipped(Path(__file__).parents[2] / "recipes")
CACHE = ProofCache()


def test_there_are_recipes_of_both_operations() -> None:
    assert {path.parent.name for path in RECIPES} == {"ag_gemm", "all_gather"}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_schedule_is_lowered_and_proved(path: Path, ranks: int) -> None:
    for target in targets_for(path, ranks):
        assert target.space.feasible > 0
        for schedule in target.space:
            proof = verify(lower(target.spec, schedule), cache=CACHE)
            assert proof.ok, f"{target.name} {schedule.label}: {proof.counterexample}"
