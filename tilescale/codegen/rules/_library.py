"""The functions of a text with what is asked of them for every rule and kernel: the calls inside of a statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilescale.codegen.rules._parse import (
    Block,
    Branch,
    Call,
    Function,
    Lambda,
    Leave,
    Loop,
    Named,
    Plain,
    Statement,
    Tokens,
    calls_of,
    closing,
    split,
    statements,
    text_of,
)

Called = tuple[str, str]  # a name, and the text of its template arguments


@dataclass(frozen=True)
class Condition:
    """`word` is "||", "&&" or "!" of `parts`, or else the text of a condition without parts."""

    word: str
    parts: tuple[Condition, ...] = ()


class Library:
    """`functions` by name. Answers are kept by the identity of statements and tokens, which are kept with them."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self.functions = functions
        self._parsed: dict[int, tuple[Tokens, Sequence[Call | Lambda]]] = {}
        self._conditions: dict[int, tuple[Tokens, Condition]] = {}
        self._inside: dict[int, tuple[Statement, frozenset[Called]]] = {}
        self._flags: dict[str, frozenset[str]] = {}
        self._moving: dict[int, tuple[Statement, bool]] = {}

    def calls(self, tokens: Tokens) -> Sequence[Call | Lambda]:
        """Calls of an expression, in the order in which they happen."""
        if id(tokens) not in self._parsed:
            self._parsed[id(tokens)] = (tokens, tuple(calls_of(tokens)))
        return self._parsed[id(tokens)][1]

    def condition(self, tokens: Tokens) -> Condition:
        if id(tokens) not in self._conditions:
            self._conditions[id(tokens)] = (tokens, _condition(tokens))
        return self._conditions[id(tokens)][1]

    def inside(self, statement: Statement) -> frozenset[Called]:
        """All calls inside of a statement, those of its blocks and lambdas too."""
        if id(statement) not in self._inside:
            found = frozenset(
                (item.name.text, text_of(item.template)) for each in statements(Block([statement]))
                for tokens in _expressions(each) for item in self.calls(tokens) if isinstance(item, Call))
            self._inside[id(statement)] = (statement, found)
        return self._inside[id(statement)][1]

    @cached_property
    def by_function(self) -> dict[str, frozenset[Called]]:
        return {name: self.inside(function.body) for name, function in self.functions.items()}

    @cached_property
    def primitives(self) -> frozenset[Called]:
        """Calls of what is not among the functions."""
        every = (call for found in self.by_function.values() for call in found)
        return frozenset(call for call in every if call[0] not in self.functions)

    @cached_property
    def bound(self) -> frozenset[str]:
        """Names that lambdas are called by, as parameters or where they are defined."""
        parameters = {parameter.name for function in self.functions.values() for parameter in function.parameters}
        every = (each for function in self.functions.values() for each in statements(function.body))
        return frozenset(parameters | {each.name for each in every if isinstance(each, Named)})

    def flags(self, function: Function) -> frozenset[str]:
        """Names of the booleans that a function declares."""
        if function.name not in self._flags:
            texts = [[token.text for token in each.tokens] for each in statements(function.body) if isinstance(each, Plain)]
            found = frozenset(words[words.index("bool") + 1] for words in texts if "bool" in words[:-1])
            self._flags[function.name] = found
        return self._flags[function.name]

    def moves(self, statement: Statement) -> bool:
        """Whether it leaves, names a lambda, comes to a step, or sets a value that may be followed."""
        if id(statement) not in self._moving:
            self._moving[id(statement)] = (statement, self._moves(statement, looped=False))
        return self._moving[id(statement)][1]

    def _moves(self, statement: Statement, looped: bool) -> bool:
        """`looped`: inside of a loop of its own, which is what a break leaves."""
        if isinstance(statement, Leave):
            return not looped or statement.word.text == "return"
        if isinstance(statement, Named):
            return True
        if isinstance(statement, Plain):
            return self._sets(statement.tokens)
        if isinstance(statement, Block):
            return any(self._moves(inner, looped) for inner in statement.statements)
        if isinstance(statement, Branch):
            return self._moves(statement.then, looped) or self._moves(statement.otherwise, looped)
        return self._sets(statement.first) or self._moves(statement.body, looped=True)

    def _sets(self, tokens: Tokens) -> bool:
        texts = [token.text for token in tokens]
        at = texts.index("=") if "=" in texts else 0
        lambdas = (item for item in self.calls(tokens) if isinstance(item, Lambda))
        followed = "Step" in texts[:2] or at == 1 or "bool" in texts[:at]
        return followed or any(self._moves(each.body, looped=False) for each in lambdas)


def _condition(tokens: Tokens) -> Condition:
    for separator in ("||", "&&"):
        parts = split(tokens, separator)
        if len(parts) > 1:
            return Condition(separator, tuple(map(_condition, parts)))
    texts = [t.text for t in tokens]
    if texts[:1] == ["("] and len(texts) > 1 and closing(tokens, 0) == len(tokens) - 1:
        return _condition(tokens[1:-1])
    return Condition("!", (_condition(tokens[1:]),)) if texts[:1] == ["!"] else Condition(" ".join(texts))


def _expressions(statement: Statement) -> tuple[Tokens, ...]:
    if isinstance(statement, Plain | Leave):
        return (statement.tokens,)
    if isinstance(statement, Loop):
        return statement.first, statement.condition, statement.step
    return (statement.condition,) if isinstance(statement, Branch) else ()
