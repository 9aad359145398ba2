"""Barriers in shared memory are made visible to the asynchronous proxy before anyone uses them."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import Event, Facts

FRESH, UNSEEN = "not fenced", "not behind a block barrier"
USES = {"mb_expect", "mb_arrive", "mb_try_wait", "cluster_mb_arrive", "cluster_mb_try_wait", "bulk_load", "tma_load_2d",
        "tma_load_3d", "tma_load_2d_multicast", "tma_load_3d_multicast"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name == "mb_init":
        return facts | {FRESH, UNSEEN}, ""
    if event.name == "mb_fence_init":
        return facts - {FRESH}, ""
    if event.name in ("sync", "cluster_sync"):
        return facts - {UNSEEN}, ""
    if event.name in USES and facts:
        wanted = "fence.mbarrier_init" if FRESH in facts else "a block barrier"
        return facts, f"an mbarrier is used without {wanted} after its initialisation"
    return facts, ""


RULES.register(Rule("barrier_init_fence", "mbarrier.init, fence.mbarrier_init, block barrier, then use", judge=judge))
