"""What threads wrote to shared memory is seen by a tensor store behind a proxy fence of each and a barrier of them all; and
they write to it again when the store before has read it."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import Event, Facts

WRITTEN, FENCED, READING = "written by threads", "fenced by each thread", "a store may still read it"
WRITES = {"pack1", "pack2", "pair_bits"}  # values on their way to shared memory
STORES = {"tma_store_2d", "tma_store_3d", "tma_reduce_add_2d", "tma_reduce_add_3d"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name in WRITES:
        wrong = "a staged result is written while a tensor store may read what was there" if READING in facts else ""
        return frozenset({WRITTEN}), wrong
    if event.name in STORES and WRITTEN not in facts:
        return facts | {READING}, ""
    if event.name in ("bulk_wait", "bulk_wait_read") and (event.template == "0" or event.template.endswith("- 1")):
        return facts - {READING}, ""
    if event.name == "fence_async_smem":
        return facts | ({FENCED} if WRITTEN in facts else set()), ""
    if event.name in ("warp_sync", "sync", "named_barrier") and FENCED in facts:
        return facts - {WRITTEN, FENCED}, ""
    if event.name in STORES and WRITTEN in facts:
        return facts, "a tensor store reads what threads wrote to shared memory without their proxy fences and a barrier"
    return facts, ""


RULES.register(Rule(
    "staged_fence", "fence.proxy.async.shared::cta by each thread, then a barrier, between writes and a tensor store",
    judge=judge))
