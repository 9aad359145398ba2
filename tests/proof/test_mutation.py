"""A sample of the mutation suite: every change that changes behaviour is caught without a GPU, nothing else is.

The sample: every fourth plan mutant; all text mutants that a static rule catches, and every forty-eighth of the others.
`make bench-proof` runs the whole.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import suite
from plan_mutants import KINDS
from runs import PLANS, RUNS
from suite import Score, all_text_mutants, false_alarms, plan_mutants, score_plans, score_texts
from text_mutants import TextMutant, text_mutants

from tilescale.codegen.emit import emit
from tilescale.codegen.host.build import INCLUDE
from tilescale.codegen.rules import check_kernels
from tilescale.schedules.constraints import CONSTRAINTS


def test_every_plan_mutant_is_caught_or_known_to_change_nothing() -> None:
    every = list(plan_mutants())
    assert len(every) >= 2000
    score = Score()
    score_plans(score, every[::4])
    assert score.missed == []
    assert len(score.equivalent) <= 0.1 * score.mutants
    assert score.caught >= 500


def test_every_kind_of_change_is_made_to_some_plan() -> None:
    assert len(KINDS) >= 25
    assert {mutant.kind for _, _, mutant in plan_mutants()} == set(KINDS)


def by_rules(mutant: TextMutant, folder: Path) -> set[str]:
    include = folder / "include"
    shutil.copytree(INCLUDE, include)
    (include / "tilescale" / mutant.header).write_text(mutant.text)
    for name in mutant.runs:
        found = {v.rule for v in check_kernels(emit(*RUNS[name], PLANS.get(name)).kernels, include)}
        if found:
            return found
    return set()


# What emulation cannot see, by kind of change: the rule that must.
FENCES = {
    "lost fence", "weakened acquire", "fence before the barrier", "signal before its fence", "fence at the wrong signal",
    "fence at every signal", "fence of the wrong proxy", "fence before the acquire", "unbounded wait", "32-bit index",
    "counter compared by value",
}


@pytest.mark.parametrize("kind", sorted(FENCES))
def test_what_emulation_cannot_see_is_caught_by_rules(kind: str, tmp_path: Path) -> None:
    chosen = [mutant for mutant in text_mutants() if mutant.kind == kind]
    assert chosen
    for number, mutant in enumerate(chosen):
        assert by_rules(mutant, tmp_path / str(number)), mutant.place


def test_a_sample_of_text_mutants_is_caught() -> None:
    chosen = [mutant for mutant in all_text_mutants() if mutant.kind not in FENCES][::48]
    score = Score()
    score_texts(score, chosen)
    assert score.missed == []
    assert score.caught >= len(chosen) - len(score.equivalent) > 0


def test_runs_multiply_operands_that_kernels_can_read() -> None:
    # A run that is wrong by itself would count every mutant as caught.
    needed = [each for each in CONSTRAINTS if each.name in ("operand_alignment", "even_columns", "even_contraction")]
    assert len(needed) == 3
    assert [name for name, run in RUNS.items() if not all(each.holds(*run) for each in needed)] == []


def test_there_are_enough_mutants_of_enough_kinds() -> None:
    texts = all_text_mutants()
    assert len(texts) >= 150
    assert len({mutant.kind for mutant in texts} | set(KINDS)) >= 25


def test_nothing_is_said_against_unchanged_texts_and_plans() -> None:
    assert false_alarms(("copy", "tma small", "fused pull")) == []


def test_a_miss_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = next(each for each in text_mutants() if not each.harmless)
    monkeypatch.setattr(suite, "catch", lambda *_: "")
    score = Score()
    suite.score_texts(score, [mutant])
    assert score.missed == [f"text: {mutant.kind}: {mutant.place}"]
