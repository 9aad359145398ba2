"""Blocks of a cluster meet before one reaches into another's shared memory, and again before any of them leaves. Warps come
to a meeting whole: a thread that worked alone has met its warp before."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._walk import EXIT, Event, Facts

UNSEEN, REACHED, ALONE = "barriers that the cluster has not seen", "others may still reach this block", "a thread is alone"
REACHES = {"cluster_mb_arrive", "cluster_at", "tma_load_2d_multicast", "tma_load_3d_multicast"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    facts = facts | {ALONE} if event.leader else facts
    if event.name == "mb_init":
        return facts | {UNSEEN}, ""
    if event.name in ("sync", "warp_sync"):
        return facts - {ALONE}, ""
    if event.name == "cluster_sync":
        return frozenset(), "a warp comes to a meeting of the cluster in parts" if ALONE in facts else ""
    if event.name in REACHES and UNSEEN in facts and event.name != "cluster_at":
        return facts | {REACHED}, "another block's barrier is used before the cluster has met behind its initialisation"
    if event.name in REACHES:
        return facts | {REACHED}, ""
    if event.name == EXIT and REACHED in facts:
        return facts, "a block leaves while others of its cluster may reach its shared memory"
    return facts, ""


RULES.register(Rule(
    "cluster_meets", "a cluster meets before its blocks reach each other, and before they leave", judge=judge))
