"""What threads wrote to shared memory is made visible to the asynchronous proxy, by each of them, before one of them sends
it by a tensor store."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._walk import Event, Facts

FENCED, TOGETHER = "fenced", "behind a barrier"
STORES = {"tma_store_2d", "tma_store_3d", "tma_reduce_add_2d", "tma_reduce_add_3d"}
BARRIERS = {"warp_sync", "sync", "named_barrier"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name == "fence_async_smem":
        return facts | {FENCED}, ""
    if event.name in BARRIERS:
        return facts | ({TOGETHER} if FENCED in facts else set()), ""
    if event.name in STORES and TOGETHER not in facts:
        return facts, "staged results are sent without a proxy fence of every writer and a barrier behind it"
    if event.name == "bulk_commit":
        return facts - {FENCED, TOGETHER}, ""
    return facts, ""


RULES.register(Rule(
    "staged_store_fence", "writes to shared memory, fence.proxy.async, a barrier of the writers, then the tensor store",
    judge=judge))
