"""What rules see of a walk: primitives as they are called, and the facts that they fold them into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Value = bool | str | None
Facts = frozenset[str]
KINDS = ("kCopy", "kSignal", "kWait", "kGemm", "kSum", "kReserve", "kRagged")
MULTICAST_KINDS = ("kMultiStore", "kMultiSum")  # of kernels with the constant `multimem`
EXIT = "exit"


@dataclass(frozen=True)
class Event:
    """A primitive is called. `kind`: of the current step; `leader`: by one thread of the block."""

    name: str
    template: str
    arguments: tuple[str, ...]
    place: str
    kind: Value
    leader: bool


Judge = Callable[[Facts, Event], tuple[Facts, str]]  # new facts, and what is wrong ("": nothing)
