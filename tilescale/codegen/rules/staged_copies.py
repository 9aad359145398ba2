"""Tiles that threads copy to shared memory are read when all have landed, and filled again when all have read them."""

from __future__ import annotations

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._events import Event, Facts

ALONE, TOGETHER, READ = "a thread's own copies have landed", "all copies have landed", "read since the block met"
READS = {"load_matrices", "load_matrices_turned"}


def judge(facts: Facts, event: Event) -> tuple[Facts, str]:
    if event.name == "copy_async_wait":
        return (facts - {TOGETHER}) | {ALONE}, ""
    if event.name == "sync":
        return facts - {ALONE, READ} | ({TOGETHER} if ALONE in facts else set()), ""
    if event.name in READS:
        wrong = "" if TOGETHER in facts else "a tile is read before its copies were waited for and the block has met"
        return facts | {READ}, wrong
    if event.name == "copy_async" and READ in facts:
        return facts, "a tile is filled while others of the block may still read it"
    return facts, ""


RULES.register(Rule(
    "staged_copies", "cp.async: a wait and a block barrier before a tile is read, a barrier before it is filled again",
    judge=judge))
