"""What an acquire has made visible to loads is not yet visible to TMA: a proxy fence stands between."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import Event, Facts

ACQUIRED = "acquired"
LOADS = {"bulk_load", "tma_load_2d", "tma_load_3d", "tma_load_2d_multicast", "tma_load_3d_multicast"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name == "load_acquire":
        return facts | {ACQUIRED}, ""
    if event.name == "fence_async_global":
        return facts - {ACQUIRED}, ""
    if event.name in LOADS and ACQUIRED in facts:
        return facts, "an asynchronous copy reads global memory after an acquire without a proxy fence"
    return facts, ""


RULES.register(Rule(
    "proxy_fence_after_acquire", "fence.proxy.async.global between an acquire and the TMA reads that rely on it",
    judge=judge))
