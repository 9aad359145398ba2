"""wgmma.fence orders the accumulators before the first product of a group; results are used, and stages released, after the
wait. With one group in flight the stage of the group before it may be released (which of the two it is, emulation sees)."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import Event, Facts

FENCED, FLYING, OPEN, NEWEST = "fenced", "in flight", "not committed", "only the newest group is in flight"


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name == "wg_fence":
        return facts | {FENCED}, ""
    if event.name == "wgmma":
        return facts | {OPEN}, "" if FENCED in facts else "wgmma without wgmma.fence since its registers were touched"
    if event.name == "wg_commit":
        return (facts - {OPEN, NEWEST}) | ({FLYING} if OPEN in facts else set()), ""
    if event.name == "wg_wait" and event.template == "0":
        return facts - {FLYING, FENCED, NEWEST}, ""
    if event.name == "wg_wait" and event.template == "1":
        return facts | {NEWEST}, ""
    released = event.name in ("mb_arrive", "cluster_mb_arrive")
    if (event.name == "store" or released) and facts & {OPEN, FLYING} and not (released and NEWEST in facts):
        return facts, "results are used, or a stage released, before wgmma is complete"
    return facts, ""


RULES.register(Rule("wgmma_fence", "wgmma.fence, products, commit, wait, then their results", judge=judge))
