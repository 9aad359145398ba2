"""Schedules of every shipped recipe, lowered and proved. `make bench-proof` proves all of them, on 2, 3, 4, 6 and 8 ranks.

The sample here: every schedule on 4 ranks of the all_gather, all_reduce and reduce_scatter recipes, and of the smallest
workload of ag_gemm; of the others, and on 2, 3, 6 and 8 ranks, SPREAD of each workload, evenly from the first on. Two
schedules that differ in their tiles alone are one plan but for the size of launches, so this is most of what differs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tilescale.commands.selection import spread
from tilescale.commands.target import Target
from tilescale.commands.worlds import shipped, targets_for
from tilescale.schedules.lower import lower
from tilescale.schedules.proof_cache import ProofCache
from tilescale.schedules.verify import verify
from tilescale.spec.operation import OPERATIONS

RECIPES = shipped(Path(__file__).parents[2] / "recipes")
WHOLE = {"all_gather", "all_reduce", "reduce_scatter"}
SPREAD = 16
CACHE = ProofCache()


def test_every_operation_with_kernels_between_ranks_has_a_recipe() -> None:
    moving = {operation.name for operation in OPERATIONS if operation.kernels and operation.moves}
    assert {path.parent.name for path in RECIPES} >= moving


def in_full(path: Path, ranks: int, target: Target) -> bool:
    return ranks == 4 and (path.parent.name in WHOLE or target.name.startswith("mlp_up_512"))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_schedules_are_lowered_and_proved(path: Path, ranks: int) -> None:
    for target in targets_for(path, ranks):
        assert target.space.feasible > 0
        schedules = target.space.schedules
        for schedule in schedules if in_full(path, ranks, target) else spread(schedules, SPREAD):
            proof = verify(lower(target.spec, schedule), cache=CACHE)
            assert proof.ok, f"{target.name} {schedule.label}: {proof.counterexample}"
