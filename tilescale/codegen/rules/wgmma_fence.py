"""wgmma.fence orders the accumulators before the first product of a group; results are used after the wait."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._walk import Event, Facts

FENCED, FLYING, OPEN = "fenced", "in flight", "not committed"


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name == "wg_fence":
        return facts | {FENCED}, ""
    if event.name == "wgmma":
        return facts | {OPEN}, "" if FENCED in facts else "wgmma without wgmma.fence since its registers were touched"
    if event.name == "wg_commit":
        return (facts - {OPEN}) | ({FLYING} if OPEN in facts else set()), ""
    if event.name == "wg_wait" and event.template == "0":
        return facts - {FLYING, FENCED}, ""
    if event.name in ("store", "mb_arrive") and facts & {OPEN, FLYING}:
        return facts, "results are used, or a stage released, before wgmma is complete"
    return facts, ""


RULES.register(Rule("wgmma_fence", "wgmma.fence, products, commit, wait, then their results", judge=judge))
