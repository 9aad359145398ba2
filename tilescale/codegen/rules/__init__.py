"""Static rules over emitted text: what emulation cannot model, checked on every path through the device library.

Weak memory and proxies do not exist on a CPU, and a run shows some orders only. So each kernel text is read together
with the device library it includes, its Config applied, and walked on all paths (see _walk.py). One rule a file; sorted
discovery finds them. A rule judges either every primitive on every path (`judge`), or the text itself (`read`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilescale.codegen.compile import INCLUDE
from tilescale.codegen.program import Kernel
from tilescale.codegen.rules._events import Facts, Judge
from tilescale.codegen.rules._library import Library
from tilescale.codegen.rules._parse import Function, functions_of, tokens_of
from tilescale.codegen.rules._walk import Walk
from tilescale.registry import Registry

# Primitives, one instruction or idiom each: rules judge their users, by their names.
PRIMITIVES = ("abi.cuh", "ptx.cuh", "mma.cuh")
ENTRY = "execute"
COMPARED = ("cluster_m", "split_k", "stream_k")  # constants that decide on a path by their value


@dataclass(frozen=True)
class Violation:
    """`rule` is broken at `place` (file:line): `message` says how."""

    rule: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message} ({self.place})"


Reader = Callable[[Sequence[Function]], Iterable[tuple[str, str]]]


@dataclass(frozen=True)
class Rule:
    """`says`: the rule in words. `start`: the facts that hold when a kernel starts. Exactly one of `judge` and `read`."""

    name: str
    says: str
    start: Facts = frozenset()
    judge: Judge | None = None
    read: Reader | None = None


RULES: Registry[Rule] = Registry("static rule", package="tilescale.codegen.rules")


def check_kernel(kernel: Kernel, include: Path = INCLUDE) -> tuple[Violation, ...]:
    """Everything that breaks a rule, sorted. Raises CompileError where the text is not in the subset that is read."""
    constants = constants_of(kernel.text)
    walked = ((name, value) for name, value in constants.items() if isinstance(value, bool) or name in COMPARED)
    key = tuple(sorted(walked))
    return _check(key, library_text(include))


def check_kernels(kernels: Iterable[Kernel], include: Path = INCLUDE) -> tuple[Violation, ...]:
    """Of all kernels, each violation once."""
    return tuple(sorted({v for kernel in kernels for v in check_kernel(kernel, include)}, key=str))


def check_text(text: str, entry: str, constants: Mapping[str, int] | None = None) -> tuple[Violation, ...]:
    """The rules over functions in `text`, walked from `entry`: for fragments that no Config names."""
    functions = functions_of(tokens_of(text, "text"))
    return _judge(Library({function.name: function for function in functions}), dict(constants or {}), entry)


def constants_of(text: str) -> dict[str, int]:
    """The constants of a kernel text's Config."""
    found: dict[str, int] = {}
    for kind, name, value in re.findall(r"static constexpr (\w+) (\w+) = (\w+);", text):
        found[name] = value == "true" if kind == "bool" else int(value)
    return found | _traits(dict(re.findall(r"using (\w+) = ts::(\w+)", text)))


def _traits(types: Mapping[str, str]) -> dict[str, int]:
    """What the device library asks of the types of a Config, by the words that it asks with."""
    scales = types.get("Scales", "")
    ends, blocks = scales in ("TensorScales", "RowColumnScales"), scales == "BlockScales"
    return {
        "EpilogueOf<C>::any": "Epilogue" in types, "ScalesOf<C>::type::ends": ends, "ScalesOf<C>::type::blocks": blocks,
        "ReadsBeside<C>::value": "Epilogue" in types or ends or blocks,
        "Operands<C>::promotes": types.get("Element") in ("E4m3", "E5m2"),
    }


def library_text(include: Path) -> tuple[tuple[str, str], ...]:
    """Names and texts of the device library's files that use primitives."""
    folder = include / "tilescale" if (include / "tilescale").is_dir() else include
    files = sorted(path for path in folder.rglob("*.cuh") if path.name not in PRIMITIVES)
    return tuple((path.name, path.read_text()) for path in files)


@functools.lru_cache(maxsize=512)
def _check(constants: tuple[tuple[str, int], ...], library: tuple[tuple[str, str], ...]) -> tuple[Violation, ...]:
    # Only these decide what is walked, so kernels that differ in sizes share one walk.
    return _judge(_library(library), dict(constants), ENTRY)


@functools.lru_cache(maxsize=8)
def _library(texts: tuple[tuple[str, str], ...]) -> Library:
    return Library({f.name: f for name, text in texts for f in functions_of(tokens_of(text, name))})


@functools.lru_cache(maxsize=8)
def _read(library: Library) -> frozenset[Violation]:
    """Of the rules that judge the text itself, whatever the kernel."""
    functions = tuple(library.functions.values())
    return frozenset(Violation(rule.name, place, message)
                     for rule in RULES if rule.read is not None for place, message in rule.read(functions))


def _judge(library: Library, constants: Mapping[str, int], entry: str) -> tuple[Violation, ...]:
    found = set(_read(library))
    for rule in RULES:
        if rule.judge is not None:
            walk = Walk(library, constants, rule.judge, rule.start)
            walk.run(entry)
            found |= {Violation(rule.name, place, message) for place, message in walk.found}
    return tuple(sorted(found, key=str))
