"""One system fence serves all signals behind it; each costs a barrier of the whole system."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import Event, Facts

DIRTY = "something to publish"
LOADED = "mb_try_wait"
PUBLISHED = {"store", "store_private", "bulk_store", "load_acquire", "tma_store_2d", "tma_store_3d", "bulk_reduce_add",
             "multimem_store", "multimem_red_add", "multimem_load_add", "tma_reduce_add_2d", "tma_reduce_add_3d"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    # A step that is no signal may do anything; of loads that have ended a signal may tell, too.
    if event.name in PUBLISHED or event.name == LOADED or (event.name == "step_begin" and event.kind != "kSignal"):
        return facts | {DIRTY}, ""
    if event.name == "fence_system":
        wrong = "" if DIRTY in facts else "a second system fence between signals: one serves all of them"
        return facts - {DIRTY}, wrong
    return facts, ""


RULES.register(Rule("one_fence", "several signals share one system fence", frozenset({DIRTY}), judge))
