"""Counters wrap, so they are compared by difference: `(int)(found - wanted) >= 0`, and equality is no order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._parse import Branch, Function, Loop, Plain, Token, Tokens, closing, statements, text_of

_ASSIGNED = re.compile(r"(\w+) = load_acquire \(")
_ORDER = r"(?:<|>|<=|>=|==|!=)"


def read(functions: Sequence[Function]) -> Iterable[tuple[str, str]]:
    for function in functions:
        found = list(statements(function.body))
        texts = [text_of(s.tokens) for s in found if isinstance(s, Plain)]
        counters = {name for text in texts for name in _ASSIGNED.findall(text)}
        for statement in found:
            if not isinstance(statement, Branch | Loop) or not statement.condition:
                continue
            condition = text_of(statement.condition)
            left = text_of(_without_differences(statement.condition))
            named = "|".join(sorted(counters)) or "(?!)"
            if re.search(rf"\b(?:{named})\b.*{_ORDER}|{_ORDER}.*\b(?:{named})\b|load_acquire .*{_ORDER}", left):
                place = statement.condition[0].place
                yield place, f"{function.name} compares a counter by value, which is wrong once it wraps: {condition}"


def _without_differences(tokens: Tokens) -> Tokens:
    """A condition without `(int)(a - b) >= 0` and `(int)(a - b) < 0`."""
    left: list[Token] = []
    index = 0
    while index < len(tokens):
        if [t.text for t in tokens[index : index + 4]] == ["(", "int", ")", "("]:
            end = closing(tokens, index + 3)
            inside = [t.text for t in tokens[index + 3 : end]]
            if "-" in inside and [t.text for t in tokens[end + 1 : end + 3]] in ([">=", "0"], ["<", "0"]):
                index = end + 3
                continue
        left.append(tokens[index])
        index += 1
    return left


RULES.register(Rule("wrapping_compare", "counters are compared by difference", read=read))
