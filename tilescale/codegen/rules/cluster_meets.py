"""Blocks of a cluster meet before one reaches into another's shared memory, and again before any of them leaves."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import EXIT, Event, Facts

UNSEEN, REACHED = "barriers that the cluster has not seen", "others may still reach this block"
REACHES = {"cluster_at", "cluster_mb_arrive", "cluster_store", "tma_load_2d_multicast", "tma_load_3d_multicast"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name == "mb_init":
        return facts | {UNSEEN}, ""
    if event.name == "cluster_sync":
        return frozenset(), ""
    if event.name in REACHES and UNSEEN in facts and event.name != "cluster_at":
        return facts | {REACHED}, "another block is reached before the cluster has met behind its setting up"
    if event.name in REACHES:
        return facts | {REACHED}, ""
    if event.name == EXIT and REACHED in facts:
        return facts, "a block leaves while others of its cluster may reach its shared memory"
    return facts, ""


RULES.register(Rule(
    "cluster_meets", "a cluster meets before its blocks reach each other, and before they leave", judge=judge))
