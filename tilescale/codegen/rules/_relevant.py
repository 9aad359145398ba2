"""What a rule need not walk: statements in which no primitive that it looks at is called, and no followed value changes."""

from __future__ import annotations

import functools

from tilescale.codegen.rules._events import EXIT, KINDS, MULTICAST_KINDS, Event, Facts, Judge
from tilescale.codegen.rules._library import Called, Library
from tilescale.codegen.rules._parse import Statement


class Relevant:
    """Says of statements of a library whether one rule has to see them."""

    def __init__(self, library: Library, judge: Judge, start: Facts) -> None:
        self.library = library
        # What a lambda does is not known by the name that it is bound to.
        self.names = set(library.bound | watched(judge, start, library.primitives))
        more = True
        while more:  # functions that call relevant ones are relevant
            found = {name for name, calls in library.by_function.items() if any(call in self.names for call, _ in calls)}
            more = not found <= self.names
            self.names |= found

    def __call__(self, statement: Statement) -> bool:
        return self.library.moves(statement) or any(name in self.names for name, _ in self.library.inside(statement))


@functools.lru_cache(maxsize=256)
def watched(judge: Judge, start: Facts, primitives: frozenset[Called]) -> frozenset[str]:
    """Names that can change the facts of a rule or break it, in any state that it can come to."""
    kinds = (None, *KINDS, *MULTICAST_KINDS)
    events = [Event(name, template, (), "", kind, leader)
              for name, template in (*primitives, (EXIT, "")) for kind in kinds for leader in (False, True)]
    found: set[str] = set()
    seen, fresh = {start}, {start}
    while fresh:
        after = set()
        for facts in fresh:
            for event in events:
                now, wrong = judge(facts, event)
                if wrong or now != facts:
                    found.add(event.name)
                    after.add(now)
        fresh = after - seen
        seen |= fresh
    return frozenset(found)
