"""Bulk and tensor stores are complete before a signal: committed, waited for in full (`.read` frees the tile only) by every
thread that made some, and these have met the thread that signals. A block does not leave before, either: they read its
shared memory."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import EXIT, Event, Facts

OPEN, FLYING, MANY, APART = "not committed", "in flight", "made by many threads", "known to each thread alone"
STORES = {"bulk_store", "tma_store_2d", "tma_store_3d", "bulk_reduce_add", "tma_reduce_add_2d", "tma_reduce_add_3d"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name in STORES:
        return facts | {OPEN} | (set() if event.leader else {MANY}), ""
    if event.name == "bulk_commit":
        return (facts - {OPEN}) | ({FLYING} if OPEN in facts else set()), ""
    if event.name == "bulk_wait" and event.template == "0" and not (MANY in facts and event.leader):
        return facts - {FLYING, MANY} | ({APART} if MANY in facts else set()), ""
    if event.name in ("sync", "named_barrier", "cluster_sync"):
        return facts - {APART}, ""
    if event.name == "signal_add" and facts & {OPEN, FLYING}:
        state = "not even committed" if OPEN in facts else "waited for by .read, or by another thread, at most"
        return facts, f"a signal follows bulk stores that are {state}"
    if event.name == EXIT and facts & {OPEN, FLYING}:
        return facts, "a block leaves while bulk stores may read its shared memory"
    if event.name == "signal_add" and APART in facts:
        return facts, "a signal follows bulk stores that other threads have waited for, without a block barrier"
    return facts, ""


RULES.register(Rule(
    "full_wait_before_signal", "bulk stores are committed and waited for in full by their threads before a signal",
    judge=judge))
