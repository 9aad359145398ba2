"""What a wait has acquired may have come through a multicast address, or be read through one: a proxy fence follows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._parse import Block, Branch, Call, Function, Leave, Plain, calls_of, statements

WAIT, FENCE = "wait_step", "fence_alias"
# Of operations that have no schedules through a switch.
PLAIN_ROLES = {"moe_role", "load_tile", "wait_left", "grouped_producer"}


def read(functions: Sequence[Function]) -> Iterable[tuple[str, str]]:
    for function in functions:
        if function.name in PLAIN_ROLES:
            continue
        calls = [call for call in _calls(function.body) if call.name.text in (WAIT, FENCE)]
        if any(call.name.text == WAIT for call in calls) and calls[-1].name.text != FENCE:
            yield calls[-1].name.place, f"{function.name} waits and has no fence.proxy.alias behind it"


def _calls(block: Block) -> Iterator[Call]:
    for statement in statements(block):
        if isinstance(statement, Plain | Leave):
            yield from (call for call in calls_of(statement.tokens) if isinstance(call, Call))
        elif isinstance(statement, Branch):
            yield from (call for call in calls_of(statement.condition) if isinstance(call, Call))


RULES.register(Rule("alias_fence_after_wait", "a wait in a kernel that may use multicast is followed by fence.proxy.alias",
                    read=read))
