"""A wait ends with an acquire, and the rest of the block follows behind a block barrier."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import Event, Facts

LOOKED, FAILED, ALONE = "acquired", "gave up", "one thread knows"


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name == "step_begin":
        return facts - {LOOKED, FAILED}, ""
    if event.name == "load_acquire":
        return facts | {LOOKED} | ({ALONE} if event.leader else set()), ""
    if event.name == "pause_until":
        return facts - {LOOKED}, ""
    if event.name == "atomic_add":  # the failure is counted: the kernel drains
        return facts | {FAILED}, ""
    if event.name in ("sync", "named_barrier"):  # of the whole block, or of those that go on behind the wait
        return facts - {ALONE}, ""
    if event.name in ("load", "store", "copy_async") and ALONE in facts and not event.leader:
        return facts, "threads go on behind a wait of one thread without a block barrier"
    if event.name == "step_end" and event.kind == "kWait" and not facts & {LOOKED, FAILED}:
        return facts, "a wait ends without an acquire"
    return facts, ""


RULES.register(Rule("wait_acquires", "a wait ends with ld.acquire.sys, then a block barrier", judge=judge))
