"""A signal publishes what came before it: all stores, a block barrier, then one system fence, then the signals."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import Event, Facts

STORED, UNFENCED = "stored by many threads", "not fenced"
STORES = {"store", "store_private", "multimem_store", "multimem_red_add"}
# What one thread has done or seen, and a signal must publish too: its bulk copies, and what it has acquired.
OWN = {"bulk_store", "tma_store_2d", "tma_store_3d", "bulk_reduce_add", "tma_reduce_add_2d", "tma_reduce_add_3d",
       "load_acquire", "multimem_load_add"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name in STORES:
        return facts | ({UNFENCED} if event.leader else {STORED, UNFENCED}), ""
    if event.name in OWN:
        return facts | {UNFENCED}, ""
    if event.name in ("sync", "named_barrier"):  # of the whole block, or of those that store
        return (facts - {STORED}) | ({UNFENCED} if STORED in facts else set()), ""
    if event.name == "fence_system":
        return facts if STORED in facts else facts - {UNFENCED}, ""
    if event.name == "signal_add":
        if STORED in facts:
            return facts, "a signal follows stores of other threads without a block barrier"
        if UNFENCED in facts:
            return facts, "a signal follows stores without a system fence between"
    return facts, ""


RULES.register(Rule(
    "fence_before_signal", "stores, block barrier, one system fence, then the relaxed signals",
    frozenset({UNFENCED}), judge))
