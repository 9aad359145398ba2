"""Bulk and tensor stores are complete before a signal: committed, and waited for in full; `.read` frees the tile only."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._walk import Event, Facts

OPEN, FLYING = "not committed", "in flight"
STORES = {"bulk_store", "tma_store_2d", "tma_store_3d", "bulk_reduce_add", "tma_reduce_add_2d", "tma_reduce_add_3d"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name in STORES:
        return facts | {OPEN}, ""
    if event.name == "bulk_commit":
        return (facts - {OPEN}) | ({FLYING} if OPEN in facts else set()), ""
    if event.name == "bulk_wait" and event.template == "0":
        return facts - {FLYING}, ""
    if event.name == "signal_add" and facts & {OPEN, FLYING}:
        state = "not even committed" if OPEN in facts else "waited for by .read at most"
        return facts, f"a signal follows bulk stores that are {state}"
    return facts, ""


RULES.register(Rule(
    "full_wait_before_signal", "bulk stores are committed and waited for in full before a signal", judge=judge))
