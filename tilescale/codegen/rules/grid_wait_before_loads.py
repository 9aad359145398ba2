"""A kernel that starts while the one before it still runs reads nothing that it may have written before it has waited."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import Event, Facts

EARLY = "beside the kernel before"
READS = {"load", "load_acquire", "load_relaxed", "bulk_load", "tma_load_2d", "tma_load_3d", "tma_load_2d_multicast",
         "tma_load_3d_multicast"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name == "grid_go":
        return facts | {EARLY}, ""
    if event.name == "grid_wait":
        return facts - {EARLY}, ""
    if event.name in READS and EARLY in facts:
        return facts, "memory is read before the kernel in front is known to have ended (griddepcontrol.wait)"
    return facts, ""


RULES.register(Rule(
    "grid_wait_before_loads", "griddepcontrol.wait stands before what a kernel that starts early reads", judge=judge))
