"""No index that overflows: products and sums that address memory are 64 bits wide, and never narrowed in silence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tilescale.codegen.rules import RULES, Rule
from tilescale.codegen.rules._parse import Function, Parameter, Plain, Token, Tokens, closing, statements, text_of
from tilescale.codegen.rules.bounded_wait import loops

NARROW = {"u32", "int", "u16", "u8", "short"}
# Fields of 64 bits that tables and arguments hold, by name.
WIDE_FIELDS = {"source_offset", "target_offset", "size", "base", "stride", "begin", "end", "counters", "time_limit_ns"}
NARROW_STRUCTS = {"KRange"}  # whose fields of those names are narrow
_CONSTANT = re.compile(r"k[A-Z]\w*")
_BASES = {"p", "out", "from", "to", "source", "target"}


def read(functions: Sequence[Function]) -> Iterable[tuple[str, str]]:
    for function in functions:
        types = _types(function)
        for tokens in _expressions(function):
            yield from _products(function, tokens, types)
            yield from _narrowed(function, tokens, types)


def _expressions(function: Function) -> Iterator[Tokens]:
    for statement in statements(function.body):
        if isinstance(statement, Plain):
            yield statement.tokens
    for loop in loops(function.body):
        yield from (part for part in (loop.first, loop.step) if part)


def _types(function: Function) -> dict[str, str]:
    """Types of parameters and local variables, "pointer" for pointers."""
    found = {p.name: _kind(p) for p in function.parameters}
    for tokens in _expressions(function):
        texts = [t.text for t in tokens]
        if "=" in texts:
            head = texts[: texts.index("=")]
            kind = next((t for t in head[:-1] if t in NARROW | NARROW_STRUCTS | {"u64"}), "")
            if kind and len(head) > 1:
                names = [head[-1], *_further(texts)]
                found |= dict.fromkeys(names, "pointer" if "*" in head else kind)
    return found


def _further(texts: Sequence[str]) -> list[str]:
    """Names behind commas of one declaration: `const u64 begin = ..., end = ...`."""
    depth, found = 0, []
    for at, text in enumerate(texts[:-2]):
        depth += (text in "({[") - (text in ")}]")
        if text == "," and depth == 0 and texts[at + 2] == "=":
            found.append(texts[at + 1])
    return found


def _kind(parameter: Parameter) -> str:
    words = parameter.kind.split()
    return "pointer" if "*" in words else next((w for w in words if w in NARROW | NARROW_STRUCTS | {"u64"}), "")


def _wide(tokens: Tokens, types: Mapping[str, str]) -> bool:
    """Whether an operand is 64 bits wide, or no number that grows with the shape (a constant, a Config member)."""
    texts = [t.text for t in tokens]
    owners = ["", "", *texts]  # what is two words before: `owner . field`
    if "u64" in texts or any(t in WIDE_FIELDS and types.get(owners[i]) not in NARROW_STRUCTS for i, t in enumerate(texts)):
        return True
    names = [t for t in texts if t.isidentifier() and t not in ("C", "Unit", "sizeof")]
    return any(types.get(name) == "u64" for name in names)


def _grows(tokens: Tokens, types: Mapping[str, str]) -> bool:
    """Constants (kName) do not."""
    names = [t.text for t in tokens if not _CONSTANT.fullmatch(t.text)]
    return any(types.get(name) in NARROW or name in ("rows", "n", "k", "m") for name in names)


def _products(function: Function, tokens: Tokens, types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Products of two numbers that grow, inside an expression that starts from a pointer."""
    texts = [t.text for t in tokens]
    addresses = any(types.get(t) == "pointer" or t in _BASES for t in texts) or "bulk" in "".join(texts)
    for at, token in enumerate(tokens):
        if token.text != "*" or not addresses or at == 0 or not _operand(tokens[at - 1]):
            continue
        left, right = _before(tokens, at), _after(tokens, at)
        if _grows(left, types) and _grows(right, types) and not (_wide(left, types) or _wide(right, types)):
            product = f"{text_of(left)} * {text_of(right)}"
            yield token.place, f"{function.name} addresses memory by a 32-bit product, {product}"


def _operand(token: Token) -> bool:
    return (token.text.isidentifier() and token.text not in NARROW | {"u64", "float"}) or token.text in ")]"


def _before(tokens: Tokens, at: int) -> Tokens:
    """The product of factors that ends before `at`: back to a bracket, a sum, a comma or an assignment."""
    depth, index = 0, at - 1
    while index >= 0:
        text = tokens[index].text
        depth += (text in ")]") - (text in "([")
        if depth < 0 or (depth == 0 and text in ("+", "-", ",", "=", "return", "?", ":", "<", ">")):
            break
        index -= 1
    return tokens[index + 1 : at]


def _after(tokens: Tokens, at: int) -> Tokens:
    index = at + 1
    while index < len(tokens) and tokens[index].text not in ("+", "-", ",", ")", "]", "?", ":", "<", ">", "*"):
        index = closing(tokens, index) + 1 if tokens[index].text in "([" else index + 1
    return tokens[at + 1 : index]


def _narrowed(function: Function, tokens: Tokens, types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """A 32-bit variable that is given a 64-bit value without a cast."""
    texts = [t.text for t in tokens]
    at = texts.index("=") if "=" in texts else 0
    if at == 0 or set(texts[:at]) & {"*", "(", "["}:
        return
    declared = next((t for t in texts[: max(0, at - 1)] if t in NARROW), "")
    kind = declared or (types.get(texts[0], "") if at == 1 else "")
    value = tokens[at + 1 :]
    cast = [t.text for t in value[:3]] in (["(", name, ")"] for name in NARROW)
    if kind in ("u32", "int") and not cast and _wide(value, types) and "load" not in texts and "%" not in texts:
        yield tokens[at].place, f"{function.name} narrows 64 bits to {kind}: {text_of(tokens)}"


RULES.register(Rule("wide_index", "offsets into memory are 64 bits wide", read=read))
