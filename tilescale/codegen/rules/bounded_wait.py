"""No unbounded spin: a loop around a wait has a limit of time or of tries, at which it leaves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._parse import Block, Branch, Call, Function, Leave, Loop, Plain, calls_of, statements

_CONSTANT = re.compile(r"k[A-Z]\w*|\d+u?")
WAITS = {"load_acquire", "load_relaxed", "mb_try_wait", "pause_until", "cluster_mb_try_wait", "packet_pause"}


def read(functions: Sequence[Function]) -> Iterable[tuple[str, str]]:
    for function in functions:
        for loop in loops(function.body):
            if _counted(loop):  # ends by itself, and is part of the loop around it
                continue
            names = {call.name.text for call in _calls(loop) if isinstance(call, Call)}
            if names & WAITS and not _limited(loop):
                yield loop.word.place, f"{function.name} spins on {sorted(names & WAITS)[0]} without a limit"


def loops(block: Block) -> Iterator[Loop]:
    return (statement for statement in statements(block) if isinstance(statement, Loop))


def _calls(loop: Loop) -> Iterator[object]:
    """Calls of the loop itself; those of loops inside it are theirs."""
    yield from calls_of([*loop.condition, *loop.step])
    inner = {id(s) for nested in loops(loop.body) if not _counted(nested) for s in statements(nested.body)}
    for statement in statements(loop.body):
        if id(statement) not in inner and isinstance(statement, Plain | Leave):
            yield from calls_of(statement.tokens)
        elif id(statement) not in inner and isinstance(statement, Branch):
            yield from calls_of(statement.condition)


def _counted(loop: Loop) -> bool:
    """Whether a loop counts up to a constant: `for (...; u < kUnits; ++u)`."""
    texts, step = [token.text for token in loop.condition], {token.text for token in loop.step}
    return len(texts) == 3 and texts[1] == "<" and bool(_CONSTANT.fullmatch(texts[2])) and {"++", texts[0]} <= step


def _limited(loop: Loop) -> bool:
    """Whether a branch inside looks at the time or at the count of tries, and leaves."""
    counted = {token.text for token in loop.step if token.text.isidentifier()}
    for statement in statements(loop.body):
        if isinstance(statement, Branch):
            texts = {token.text for token in statement.condition}
            leaves = any(isinstance(s, Leave) and s.word.text in ("return", "break") for s in statements(statement.then))
            if leaves and ("time_ns" in texts or texts & counted) and texts & {">", ">=", "=="}:
                return True
    return False


RULES.register(Rule("bounded_wait", "every loop around a wait has a limit", read=read))
