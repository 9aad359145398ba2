"""wgmma.fence orders the accumulators before the first product of a group; results are used after the wait. While one group
is in flight, only the stage `previous` to its own may be released."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._walk import Event, Facts

FENCED, FLYING, OLDER, OPEN = "fenced", "in flight", "two in flight", "not committed"
ARRIVALS = ("mb_arrive", "cluster_mb_arrive")


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name == "wg_fence":
        return facts | {FENCED}, ""
    if event.name == "wgmma":
        return facts | {OPEN}, "" if FENCED in facts else "wgmma without wgmma.fence since its registers were touched"
    if event.name == "wg_commit":
        older = {OLDER} if FLYING in facts else set()
        return (facts - {OPEN}) | ({FLYING, *older} if OPEN in facts else set()), ""
    if event.name == "wg_wait" and event.template == "0":
        return facts - {FLYING, OLDER, FENCED}, ""
    if event.name == "wg_wait" and event.template == "1":
        return facts - {OLDER}, ""
    if event.name in ARRIVALS and event.arguments[0] == "previous" and not facts & {OPEN, OLDER}:
        return facts, ""
    if event.name in ("store", *ARRIVALS) and facts & {OPEN, FLYING}:
        return facts, "results are used, or a stage released, before wgmma is complete"
    return facts, ""


RULES.register(Rule("wgmma_fence", "wgmma.fence, products, commit, wait, then their results", judge=judge))
