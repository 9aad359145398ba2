"""All paths of a kernel through the device library, as sequences of primitive calls, folded into states of a rule.

A block is walked as one program: code that one thread runs (`thread() == 0`, or 128, the first that multiplies) is taken,
and calls know that they are its own (`leader`); where warps part (`thread() < 128`) both sides are walked, and so is code
of one thread a warp taken and not taken. The step that a role comes to is chosen freely, so every order of kinds of steps
is walked. Booleans are followed, other values are not: a condition on them may go either way. Loops and recursive
templates are walked until no new state comes out. So a rule sees every order of primitives that can happen, and some that
cannot. At the end of the kernel comes an event of its own, `EXIT`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from tilescale.codegen.rules._events import EXIT, KINDS, MULTICAST_KINDS, Event, Facts, Judge, Value
from tilescale.codegen.rules._library import Condition, Library
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
    text_of,
)
from tilescale.codegen.rules._relevant import Relevant

KIND, LEADER = "step.kind", "@leader"
_CONSTANT = re.compile(r"(?:C|Config) :: (\w+)")
# Which other texts do not have.
_OPTIONAL = {"Contracts < C > :: value": "contracts", "Moe < C > :: value": "has_moe", "Streams < C > :: value": "stream_k",
             "WarpProducts < C > :: value": "mma_sync", "Packets < C > :: value": "packets",
             "Grouped < C > :: value": "has_groups", "Pingpong < C > :: value": "pingpong",
             "Slotted < C > :: value": "slotted"}
_COMPARED = re.compile(r"(?:C|Config) :: (\w+) (>|==|!=) (\d+)u?")
_ORDERS: dict[str, Callable[[int, int], bool]] = {">": operator.gt, "==": operator.eq, "!=": operator.ne}
# One thread of a block, of those that multiply, or a wait: waits that follow each other are waited for side by side.
_LEADER = re.compile(r"thread \( \) (?:(?:% kMultiply )?== (?:0u?|128u?)|< waits)")


@dataclass(frozen=True)
class State:
    """What a path knows: `values` of followed variables, sorted by name, and the `facts` of the rule."""

    values: tuple[tuple[str, Value], ...]
    facts: Facts

    def get(self, name: str) -> Value:
        return dict(self.values).get(name)

    def put(self, name: str, value: Value) -> State:
        values = {**dict(self.values), name: value}
        kept = tuple(sorted((k, v) for k, v in values.items() if v is not None))
        return State(kept, self.facts)

    def back_in(self, caller: State, own: set[str]) -> State:
        """Of the end of a call: what the caller knew, changed by its lambdas at most. `own`: names of the callee."""
        now = dict(self.values)
        return State(tuple((k, v if k in own else now.get(k, v)) for k, v in caller.values), self.facts)


States = frozenset[State]
Visit = tuple[str, State, tuple[int, ...]]  # function, the state inside, the lambdas in sight
NONE: States = frozenset()


@dataclass(frozen=True)
class Ends:
    """Where the states of a statement go on."""

    here: States = NONE
    returned: States = NONE
    broke: States = NONE
    again: States = NONE

    def then(self, more: Ends) -> Ends:
        """`more` follows where this went on."""
        return Ends(more.here, self.returned | more.returned, self.broke | more.broke, self.again | more.again)


class Walk:
    """Walks from one function with one rule; `found` collects (place, message)."""

    def __init__(self, library: Library, constants: Mapping[str, int], judge: Judge, start: Facts) -> None:
        self.library, self.constants, self.judge, self.start = library, constants, judge, start
        self.relevant = Relevant(library, judge, start)
        self.found: set[tuple[str, str]] = set()
        self.bound: list[dict[str, Lambda]] = [{}]
        self.open: dict[Visit, States] = {}  # calls being walked, with the ends known so far
        self.recursive: set[Visit] = set()
        self.known: dict[Visit, States] = {}  # ends of calls that have been walked

    def run(self, entry: str) -> States:
        """Every state at the end of `entry`."""
        function = self.library.functions[entry]
        states = self._inline(function, (), frozenset({State((), self.start)}))
        for state in states:
            _, wrong = self.judge(state.facts, Event(EXIT, "", (), function.place, None, False))
            if wrong:
                self.found.add((function.place, wrong))
        return states

    # -- statements ----------------------------------------------------------------------------------------------------
    def block(self, block: Block, states: States) -> Ends:
        ends = Ends(states)
        for statement in block.statements:
            if not ends.here:
                break
            if not self.relevant(statement):
                continue
            ends = ends.then(self.statement(statement, ends.here))
        return ends

    def statement(self, statement: Statement, states: States) -> Ends:
        if isinstance(statement, Block):
            return self.block(statement, states)
        if isinstance(statement, Branch):
            return self._branch(statement, states)
        if isinstance(statement, Loop):
            return self._loop(statement, states)
        if isinstance(statement, Named):
            self.bound[-1][statement.name] = statement.function
            return Ends(states)
        if isinstance(statement, Leave):
            states = self.expression(statement.tokens, states)
            word = statement.word.text
            return Ends(**{{"return": "returned", "break": "broke", "continue": "again"}[word]: states})
        return Ends(self._plain(statement, states))

    def _branch(self, branch: Branch, states: States) -> Ends:
        states = self.expression(branch.condition, states)
        leads = _LEADER.search(text_of(branch.condition)) is not None
        yes: set[State] = set()
        no: set[State] = set()
        for state in states:
            value = self.truth(branch.condition, state)
            if value is not False:
                yes.add(self._assume(branch.condition, state.put(LEADER, True) if leads else state, True))
            if value is not True:
                no.add(self._assume(branch.condition, state, False))
        taken = self.block(branch.then, frozenset(yes))
        if leads:
            before = {state.get(LEADER) for state in states}
            taken = _each(taken, lambda state: state.put(LEADER, True if before == {True} else None))
        other = self.block(branch.otherwise, frozenset(no))
        return Ends(*(getattr(taken, part) | getattr(other, part) for part in ("here", "returned", "broke", "again")))

    def _loop(self, loop: Loop, states: States) -> Ends:
        states = self._plain(Plain(loop.first), states)
        seen: set[State] = set()
        left: set[State] = set()
        returned: set[State] = set()
        fresh = frozenset(states)
        first = loop.after
        while fresh:
            seen |= fresh
            if not first:
                fresh = self.expression(loop.condition, fresh)
                left |= {s for s in fresh if loop.condition and self.truth(loop.condition, s) is not True}
                fresh = frozenset(s for s in fresh if not loop.condition or self.truth(loop.condition, s) is not False)
            first = False
            ends = self.block(loop.body, fresh)
            returned |= ends.returned
            left |= ends.broke
            fresh = frozenset(self.expression(loop.step, ends.here | ends.again) - seen)
        return Ends(frozenset(left), frozenset(returned))

    def _plain(self, statement: Plain, states: States) -> States:
        tokens = statement.tokens
        texts = [t.text for t in tokens]
        if "Step" in texts[:2]:  # the next step: any kind
            kinds: tuple[str, ...] = ("kGemm",) if self.constants.get("solo") else KINDS
            kinds = ("kPackets",) if self.constants.get("packets") else kinds
            kinds += MULTICAST_KINDS if self.constants.get("multimem") else ()
            found = {state.put(KIND, kind) for state in self.expression(tokens, states) for kind in kinds}
            return frozenset(found)
        states = self.expression(tokens, states)
        if "=" not in texts:
            return states
        at = texts.index("=")
        name = texts[at - 1] if at else ""
        declared = "bool" in texts[:at]
        followed = {state for state in states if declared or (at == 1 and state.get(name) is not None)}
        return frozenset(states - followed | {s.put(name, self._logical(tokens[at + 1 :], s)) for s in followed})

    def _logical(self, tokens: Tokens, state: State) -> Value:
        """A boolean that is followed: "?" where it may be either, so that it stays known as one."""
        value = self.truth(tokens, state)
        return "?" if value is None else value

    # -- calls ---------------------------------------------------------------------------------------------------------
    def expression(self, tokens: Tokens, states: States) -> States:
        """The states after all calls in an expression."""
        pending: list[Lambda] = []
        for item in self.library.calls(tokens):
            if isinstance(item, Lambda):
                pending.append(item)
            elif states:
                states = self._call(item, pending, states)
                pending = []
        return states

    def _call(self, call: Call, lambdas: Sequence[Lambda], states: States) -> States:
        name = call.name.text
        for scope in reversed(self.bound):
            if name in scope and not call.method:
                return self.block(scope[name].body, states).here
        function = self.library.functions.get(name)
        if function is not None:
            return self._inline(function, call.arguments, states, lambdas)
        after: set[State] = set()
        for state in states:
            event = Event(
                name,
                text_of(call.template),
                tuple(text_of(argument) for argument in call.arguments),
                call.name.place,
                state.get(KIND),
                state.get(LEADER) is True,
            )
            facts, wrong = self.judge(state.facts, event)
            if wrong:
                self.found.add((event.place, wrong))
            after.add(State(state.values, facts))
        return frozenset(after)

    def _inline(
        self, function: Function, arguments: Sequence[Tokens], states: States, lambdas: Sequence[Lambda] = ()
    ) -> States:
        scope: dict[str, Lambda] = {}
        given = list(lambdas)
        flags: dict[str, Tokens] = {}
        for parameter, tokens in zip(function.parameters, arguments, strict=False):
            if tokens and tokens[0].text == "[" and given:
                scope[parameter.name] = given.pop(0)
            elif parameter.kind in ("bool", "const bool"):
                flags[parameter.name] = tokens
        names = tuple(flags)
        own = {KIND, LEADER, *names, *self.library.flags(function)}
        result: set[State] = set()
        self.bound.append(scope)
        for state in sorted(states, key=repr):
            inside = reduce(lambda s, name: s.put(name, self._logical(flags[name], state)), names, state)
            result |= {end.back_in(state, own) for end in self._ends(function, inside)}
        self.bound.pop()
        return frozenset(result)

    def _ends(self, function: Function, inside: State) -> States:
        """The states in which a call ends. One that calls itself alike is walked again until it has no new ends."""
        key = (function.name, inside, tuple(id(body) for scope in self.bound for body in scope.values()))
        if key in self.known:
            return self.known[key]
        if key in self.open:
            self.recursive.add(key)
            return self.open[key]
        self.open[key] = NONE
        while True:
            ends = self.block(function.body, frozenset({inside}))
            found = ends.here | ends.returned
            if key not in self.recursive or found == self.open[key]:
                break
            self.open[key] = found
        del self.open[key]
        self.recursive.discard(key)
        if not self.recursive:  # else it may rest on what is not known in full yet
            self.known[key] = found
        return found

    # -- conditions ----------------------------------------------------------------------------------------------------
    def truth(self, tokens: Tokens, state: State) -> bool | None:
        """Whether a condition holds; None where it may or may not."""
        return self._holds(self.library.condition(tokens), state)

    def _holds(self, condition: Condition, state: State) -> bool | None:
        if condition.word in ("||", "&&"):
            absorbing = condition.word == "||"
            values = [self._holds(part, state) for part in condition.parts]
            if absorbing in values:
                return absorbing
            return None if None in values else not absorbing
        if condition.word == "!":
            value = self._holds(condition.parts[0], state)
            return None if value is None else not value
        return self._simple(condition.word, state)

    def _simple(self, text: str, state: State) -> bool | None:
        if _LEADER.fullmatch(text):
            return True
        if text in ("true", "false"):
            return text == "true"
        if text in _OPTIONAL:
            return bool(self.constants.get(_OPTIONAL[text], False))
        constant = _CONSTANT.fullmatch(text)
        if constant:
            value = self.constants.get(constant.group(1))
            return None if value is None else bool(value)
        if text.replace(" ", "") in self.constants:  # of a type that the Config names
            return bool(self.constants[text.replace(" ", "")])
        compared = _COMPARED.fullmatch(text)
        if compared and compared.group(1) in self.constants:
            return _ORDERS[compared.group(2)](self.constants[compared.group(1)], int(compared.group(3)))
        kind = re.fullmatch(r"step \. kind (==|!=) (\w+)", text)
        if kind and state.get(KIND) is not None:
            return (state.get(KIND) == kind.group(2)) == (kind.group(1) == "==")
        known = state.get(text)
        return known if isinstance(known, bool) else None

    def _assume(self, condition: Tokens, state: State, value: bool) -> State:
        """A flag that may be either is known inside the branch that asks for it."""
        texts = [t.text for t in condition]
        if len(texts) == 1 and state.get(texts[0]) == "?":
            return state.put(texts[0], value)
        if len(texts) == 2 and texts[0] == "!" and state.get(texts[1]) == "?":
            return state.put(texts[1], not value)
        return state


def _each(ends: Ends, change: Callable[[State], State]) -> Ends:
    def changed(states: Iterable[State]) -> States:
        return frozenset(change(state) for state in states)

    return Ends(changed(ends.here), changed(ends.returned), changed(ends.broke), changed(ends.again))
