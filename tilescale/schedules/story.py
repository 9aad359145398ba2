"""What a verification says: a proof, or one counterexample told as a short story."""

from __future__ import annotations

from dataclasses import dataclass, field

ANY_CALL = -1


@dataclass(frozen=True)
class Place:
    """One step of a plan in one call. `step` is numbered as by `Plan.steps_of`; -1 where no step is meant."""

    rank: int
    launch: str = ""
    role: str = ""
    step: int = -1
    call: int = ANY_CALL
    action: str = ""

    def __str__(self) -> str:
        parts = [f"rank {self.rank}"]
        if self.launch:
            parts.append(f"launch {self.launch}")
        if self.role:
            parts.append(f"role {self.role}")
        if self.step >= 0:
            parts.append(f"step {self.step}")
        if self.call != ANY_CALL:
            parts.append(f"call {self.call}")
        return " ".join(parts) + (f": {self.action}" if self.action else "")


@dataclass(frozen=True)
class Counterexample:
    """Why a plan is refused.

    `rule`: name of the check that failed. `message`: one sentence with the values. `places`: the steps concerned, the
    main one first. Bytes `offset` to `offset + size` of `buffer` of `buffer_rank`, and `counter` of `counter_rank` with
    the value `wanted` and the value `found` (both counted from the first call), where they apply (-1 where not).
    `timeline`: the last events of the run that shows the fault, one a line.
    """

    rule: str
    message: str
    places: tuple[Place, ...] = ()
    buffer: str = ""
    buffer_rank: int = -1
    offset: int = -1
    size: int = -1
    counter: int = -1
    counter_rank: int = -1
    found: int = -1
    wanted: int = -1
    timeline: str = ""

    @property
    def rank(self) -> int:
        return self.places[0].rank if self.places else -1

    @property
    def launch(self) -> str:
        return self.places[0].launch if self.places else ""

    @property
    def role(self) -> str:
        return self.places[0].role if self.places else ""

    @property
    def step(self) -> int:
        return self.places[0].step if self.places else -1

    @property
    def call(self) -> int:
        return self.places[0].call if self.places else ANY_CALL

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.message}", *(f"  {place}" for place in self.places)]
        if self.buffer:
            lines.append(
                f"  bytes {self.offset} to {self.offset + self.size} of {self.buffer} of rank {self.buffer_rank}"
            )
        if self.counter >= 0:
            lines.append(
                f"  counter {self.counter} of rank {self.counter_rank}: wanted {self.wanted}, found {self.found}"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Stats:
    """How much was looked at. `operations`: steps and launch events over all calls; `agents`: sequential programs;
    `pairs`: pairs of conflicting accesses that were shown to be ordered; `runs`: stopped runs; `symmetric`: whether
    the rotation of ranks maps the plan onto itself, so that rank 0 stands for all."""

    operations: int = 0
    agents: int = 0
    pairs: int = 0
    runs: int = 0
    symmetric: bool = False


@dataclass(frozen=True)
class Proof:
    """The result of `verify`. `digest` names the protocol: plans with equal digests are proved together."""

    ok: bool
    counterexample: Counterexample | None
    digest: str
    stats: Stats = field(default_factory=Stats)

    def __str__(self) -> str:
        if self.counterexample is not None:
            return str(self.counterexample)
        s = self.stats
        return (
            f"proved: {s.operations} operations, {s.agents} agents, {s.pairs} conflicting pairs ordered ({self.digest})"
        )
