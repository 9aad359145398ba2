"""The same bytes through a multicast address and a plain one: `fence.proxy.alias` stands between."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import Event, Facts

PLAIN, MULTI = "plain", "multicast"
PLAIN_NAMES = {"load", "store", "bulk_load", "bulk_store", "tma_load_2d", "tma_load_3d"}
MULTI_NAMES = {"multimem_load_add", "multimem_store", "multimem_red_add"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name == "fence_alias":
        return frozenset(), ""
    mine, other = (MULTI, PLAIN) if event.name in MULTI_NAMES else (PLAIN, MULTI)
    if event.name not in PLAIN_NAMES | MULTI_NAMES:
        return facts, ""
    wrong = f"{mine} and {other} addresses may name the same bytes without fence.proxy.alias between"
    return facts | {mine}, wrong if other in facts else ""


RULES.register(Rule("alias_fence", "fence.proxy.alias between multicast and plain accesses of the same bytes", judge=judge))
