"""Marks of packets say which call they are of, and nothing else: they are compared for equality, never for order.

A mark begins anew when the epoch wraps, so a smaller one may be the later one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._parse import Branch, Function, Leave, Loop, Plain, statements, text_of

_MARK = r"\w+ (?:\[ [^\]]* \] )*\. [yw]\b"
_ORDERED = re.compile(rf"{_MARK} (?:<|>|<=|>=) |(?:<|>|<=|>=) {_MARK}|- {_MARK}|{_MARK} - ")


def read(functions: Sequence[Function]) -> Iterable[tuple[str, str]]:
    for function in functions:
        for statement in statements(function.body):
            if isinstance(statement, Plain | Leave):
                tokens = statement.tokens
            elif isinstance(statement, Branch | Loop):
                tokens = statement.condition
            else:
                continue
            if tokens and _ORDERED.search(text_of(tokens)):
                yield tokens[0].place, f"{function.name} compares the mark of a packet for order: {text_of(tokens)}"


RULES.register(Rule("packet_marks", "marks of packets are compared for equality", read=read))
