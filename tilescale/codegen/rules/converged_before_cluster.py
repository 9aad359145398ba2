"""The barrier of a cluster is an aligned instruction: the lanes of a warp that have parted come together before it."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import Event, Facts

PARTED = "one thread runs ahead or behind"
TOGETHER = {"warp_sync", "sync", "named_barrier"}
ARRIVALS = ("mb_arrive", "cluster_mb_arrive")  # of one lane for its warp


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name in TOGETHER and not event.leader:
        return facts - {PARTED}, ""
    if event.name == "cluster_sync" and PARTED in facts:
        return facts, "a cluster barrier behind code of one thread, without a barrier of its warp"
    return facts | ({PARTED} if event.leader or event.name in ARRIVALS else set()), ""


RULES.register(Rule(
    "converged_before_cluster", "one thread's work, a barrier of its warp, then the cluster's", judge=judge))
