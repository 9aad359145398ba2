"""The statements of the device library, read just far enough to follow calls: functions, blocks, branches, loops.

It knows the subset of C++ that the library is written in (see STYLE: one statement says one thing): no overloads, no
function pointers, lambdas only by reference. What it cannot read is an error, never skipped in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tilescale.errors import CompileError

_TOKEN = re.compile(
    r"[A-Za-z_]\w*|0[xX][0-9a-fA-F]+\w*|\d[\w.]*|\"[^\"]*\"|::|->|\+\+|--|<=|>=|==|!=|&&|\|\||[-+*/%|&^]=|\S"
)
_KEYWORDS = {"if", "for", "while", "do", "return", "switch", "sizeof", "constexpr", "else", "static_assert"}
_TEMPLATE_LENGTH = 16
_TEMPLATE_TOKENS = re.compile(r"[\w:,/*+-]+|typename")


class Token(NamedTuple):
    """`text`, and where it stands."""

    text: str
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


Tokens = Sequence[Token]


@dataclass(frozen=True)
class Parameter:
    """`kind`: the text of its type."""

    name: str
    kind: str


@dataclass(eq=False)
class Lambda:
    """`[&](parameters) { body }`."""

    parameters: tuple[Parameter, ...]
    body: Block


@dataclass(eq=False)
class Call:
    """A call inside an expression; `template` and `arguments` as token lists."""

    name: Token
    template: Tokens
    arguments: tuple[Tokens, ...]
    method: bool = False


@dataclass(eq=False)
class Block:
    statements: list[Statement] = field(default_factory=list)


@dataclass(eq=False)
class Plain:
    """An expression or a declaration."""

    tokens: Tokens


@dataclass(eq=False)
class Branch:
    condition: Tokens
    then: Block
    otherwise: Block


@dataclass(eq=False)
class Loop:
    """`for`, `while` and `do`; parts that are not there are empty. `after`: the condition is looked at after the body."""

    word: Token
    first: Tokens
    condition: Tokens
    step: Tokens
    body: Block
    after: bool = False


@dataclass(eq=False)
class Leave:
    """`return`, `break` or `continue`, with what is returned."""

    word: Token
    tokens: Tokens


@dataclass(eq=False)
class Named:
    """`auto name = [&](...) {...};`"""

    name: str
    function: Lambda


Statement = Block | Plain | Branch | Loop | Leave | Named


@dataclass(eq=False)
class Function:
    """`kind`: the text of the type returned."""

    name: str
    kind: str
    parameters: tuple[Parameter, ...]
    body: Block
    place: str


def tokens_of(text: str, file: str) -> list[Token]:
    """Tokens without comments and preprocessor lines."""
    text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found.group().count("\n"), text, flags=re.DOTALL)
    found: list[Token] = []
    continued = False
    for number, line in enumerate(text.splitlines(), start=1):
        directive = continued or line.lstrip().startswith("#")
        continued = directive and line.rstrip().endswith("\\")
        if not directive:
            found += [Token(match, file, number) for match in _TOKEN.findall(line.split("//")[0])]
    return found


def closing(tokens: Tokens, start: int) -> int:
    """Index of the bracket that closes the one at `start`."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    depth: list[str] = []
    for index in range(start, len(tokens)):
        text = tokens[index].text
        if text in pairs:
            depth.append(pairs[text])
        elif depth and text == depth[-1]:
            depth.pop()
            if not depth:
                return index
    raise CompileError("brackets of the device library close", tokens[start].place, "see codegen/rules/_parse.py")


def split(tokens: Tokens, separator: str = ",") -> list[Tokens]:
    """Parts between separators outside of brackets."""
    parts: list[Tokens] = []
    first = index = 0
    while index < len(tokens):
        if tokens[index].text in "({[":
            index = closing(tokens, index)
        elif tokens[index].text == separator:
            parts.append(tokens[first:index])
            first = index + 1
        index += 1
    return [*parts, tokens[first:]] if tokens else []


def text_of(tokens: Tokens) -> str:
    return " ".join(token.text for token in tokens)


def template_end(tokens: Tokens, index: int) -> int:
    """Index of the `>` of template arguments that start behind `tokens[index]`; `index` where there are none."""
    if index + 1 >= len(tokens) or tokens[index + 1].text != "<":
        return index
    depth = 0
    for at in range(index + 1, min(len(tokens), index + _TEMPLATE_LENGTH)):
        text = tokens[at].text
        depth += (text == "<") - (text == ">")
        if depth == 0:
            return at
        if text not in "<>" and not _TEMPLATE_TOKENS.fullmatch(text):
            break
    return index


def calls_of(tokens: Tokens) -> list[Call | Lambda]:
    """Calls in the order in which they happen: arguments before the call. Lambdas stand for themselves."""
    found: list[Call | Lambda] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.text == "[" and [t.text for t in tokens[index + 1 : index + 3]] == ["&", "]"]:
            function, index = _lambda(tokens, index)
            found.append(function)
            continue
        end = template_end(tokens, index)
        named = token.text.isidentifier() and token.text not in _KEYWORDS
        if named and end + 1 < len(tokens) and tokens[end + 1].text == "(":
            close = closing(tokens, end + 1)
            arguments = tuple(split(tokens[end + 2 : close]))
            for argument in arguments:
                found += calls_of(argument)
            method = index > 0 and tokens[index - 1].text in (".", "->")
            found.append(Call(token, tokens[index + 2 : end], arguments, method))
            index = close + 1
            continue
        index += 1
    return found


def statements(block: Block) -> Iterator[Statement]:
    """All statements inside, the nested ones too."""
    for statement in block.statements:
        yield statement
        if isinstance(statement, Block):
            yield from statements(statement)
        elif isinstance(statement, Branch):
            yield from statements(statement.then)
            yield from statements(statement.otherwise)
        elif isinstance(statement, Loop):
            yield from statements(statement.body)
        elif isinstance(statement, Named):
            yield from statements(statement.function.body)
        elif isinstance(statement, Plain | Leave):
            for item in calls_of(statement.tokens):
                if not isinstance(item, Call):
                    yield from statements(item.body)


def _lambda(tokens: Tokens, index: int) -> tuple[Lambda, int]:
    opened = index + 3
    close = closing(tokens, opened)
    last = closing(tokens, close + 1)
    return Lambda(_parameters(tokens[opened + 1 : close]), block_of(tokens[close + 2 : last])), last + 1


def _parameters(tokens: Tokens) -> tuple[Parameter, ...]:
    found = []
    for part in split(tokens):
        names = [t.text for t in part if t.text.isidentifier()]
        texts = [t.text for t in part]
        reference = next((texts[i + 2] for i, t in enumerate(texts[:-2]) if t == "(" and texts[i + 1] == "&"), "")
        name = reference or (names[-1] if names else "")
        found.append(Parameter(name, " ".join(t for t in texts if t != name)))
    return tuple(found)


def block_of(tokens: Tokens) -> Block:
    """The statements of a body, without its braces."""
    block, index = Block(), 0
    while index < len(tokens):
        statement, index = _statement(tokens, index)
        if statement is not None:
            block.statements.append(statement)
    return block


def _statement(tokens: Tokens, index: int) -> tuple[Statement | None, int]:
    word = tokens[index].text
    if word == "{":
        close = closing(tokens, index)
        return block_of(tokens[index + 1 : close]), close + 1
    if word == "if":
        return _branch(tokens, index)
    if word in ("for", "while", "do"):
        return _loop(tokens, index)
    end = index
    while end < len(tokens) and tokens[end].text != ";":
        end = closing(tokens, end) + 1 if tokens[end].text in "({[" else end + 1
    body = tokens[index:end]
    if not body:
        return None, end + 1
    if word in ("return", "break", "continue"):
        return Leave(tokens[index], body[1:]), end + 1
    if word == "auto" and len(body) > 4 and body[2].text == "=" and body[3].text == "[":
        return Named(body[1].text, _lambda(body, 3)[0]), end + 1
    return Plain(body), end + 1


def _one(tokens: Tokens, index: int) -> tuple[Block, int]:
    statement, index = _statement(tokens, index)
    if isinstance(statement, Block):
        return statement, index
    return Block([] if statement is None else [statement]), index


def _branch(tokens: Tokens, index: int) -> tuple[Statement, int]:
    opened = index + 1 + (tokens[index + 1].text == "constexpr")
    close = closing(tokens, opened)
    then, after = _one(tokens, close + 1)
    otherwise = Block()
    if after < len(tokens) and tokens[after].text == "else":
        otherwise, after = _one(tokens, after + 1)
    return Branch(tokens[opened + 1 : close], then, otherwise), after


def _loop(tokens: Tokens, index: int) -> tuple[Statement, int]:
    word = tokens[index]
    if word.text == "do":
        body, after = _one(tokens, index + 1)
        close = closing(tokens, after + 1)
        return Loop(word, (), tokens[after + 2 : close], (), body, after=True), close + 2
    close = closing(tokens, index + 1)
    inside = tokens[index + 2 : close]
    body, after = _one(tokens, close + 1)
    if word.text == "while":
        return Loop(word, (), inside, (), body), after
    first, condition, step = (*split(inside, ";"), (), ())[:3]
    return Loop(word, first, condition, step, body), after


def functions_of(tokens: Tokens) -> list[Function]:
    """Functions defined with TS_DEV or TS_KERNEL, those of structures too."""
    found = []
    for index, token in enumerate(tokens):
        if token.text != "TS_DEV":
            continue
        opened = next(i for i in range(index, len(tokens)) if tokens[i].text == "(")
        close = closing(tokens, opened)
        body = close + 1
        while body < len(tokens) and tokens[body].text in ("const", "noexcept"):
            body += 1
        if body >= len(tokens) or tokens[body].text != "{":
            continue
        name, last = tokens[opened - 1], closing(tokens, body)
        found.append(
            Function(
                name.text,
                text_of(tokens[index + 1 : opened - 1]),
                _parameters(tokens[opened + 1 : close]),
                block_of(tokens[body + 1 : last]),
                name.place,
            )
        )
    return found
