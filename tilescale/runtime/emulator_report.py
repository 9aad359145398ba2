"""What a run of the emulator tells: the log of every step, the first error, who waits for what."""

from __future__ import annotations

from dataclasses import dataclass, replace

FAULTS = (
    "",
    "out_of_bounds",
    "uninitialised",
    "mbarrier",
    "barrier",
    "collective",
    "in_flight",
    "misaligned",
    "step_limit",
    "memory_fault",
    "deadlock",
    "unsupported",
)
WAITS = ("runs", "counter", "mbarrier", "barrier", "bulk", "bulk_read", "wgmma", "polls", "not_started", "warp", "cluster",
         "copies")


@dataclass(frozen=True, order=True)
class Range:
    """Bytes [begin, end) of `buffer` of `rank`."""

    rank: int
    buffer: str
    begin: int
    end: int


@dataclass(frozen=True, order=True)
class Signalled:
    """All that was added to `counter` of `rank`."""

    rank: int
    counter: int
    amount: int


@dataclass(frozen=True, order=True)
class Waited:
    """A wait on `counter` of the own rank; `target` -1: only polled. `found` is what the last look saw."""

    counter: int
    target: int
    found: int


@dataclass(frozen=True)
class StepLog:
    """What `step` of `rank` did in `call`; step -1: outside of any step (tables, the caller). Merged, sorted."""

    call: int
    rank: int
    step: int
    reads: tuple[Range, ...] = ()
    writes: tuple[Range, ...] = ()
    signals: tuple[Signalled, ...] = ()
    waits: tuple[Waited, ...] = ()


@dataclass(frozen=True)
class Fault:
    """The first error: `kind` is one of FAULTS. Parts of the place that do not apply are None."""

    kind: str
    message: str
    rank: int | None = None
    launch: str | None = None
    block: int | None = None
    thread: int | None = None
    step: int | None = None
    buffer: str | None = None
    offset: int | None = None

    def __str__(self) -> str:
        parts = (
            ("rank", self.rank),
            ("launch", self.launch),
            ("block", self.block),
            ("thread", self.thread),
            ("step", self.step),
            ("buffer", self.buffer),
            ("offset", self.offset),
        )
        place = " ".join(f"{name} {value}" for name, value in parts if value is not None)
        return f"{self.kind}: {self.message}" + (f" ({place})" if place else "")


@dataclass(frozen=True)
class Waiting:
    """Threads that wait for the same thing. `object`: counter, shared offset of an mbarrier, number of a barrier.

    For an mbarrier `found` and `wanted` are the arrivals and the bytes that are missing; for blocks not started, the
    resident ones and the places.
    """

    rank: int
    launch: str
    first_block: int
    last_block: int
    first_thread: int
    last_thread: int
    step: int
    kind: str
    object: int
    found: int
    wanted: int

    def __str__(self) -> str:
        if self.kind == "not_started":
            return (
                f"rank {self.rank} {self.launch}: {self.object} blocks from {self.first_block} not started, "
                f"{self.found} of {self.wanted} places taken"
            )
        step = f" step {self.step}" if self.step >= 0 else ""
        blocks, threads = (
            _span("block", self.first_block, self.last_block),
            _span("thread", self.first_thread, self.last_thread),
        )
        where = f"rank {self.rank} {self.launch} {blocks} {threads}{step}"
        what = {
            "counter": f"counter {self.object}: found {self.found}, wanted {self.wanted}",
            "polls": f"polled word {self.object}: found {self.found}",
            "mbarrier": f"mbarrier at shared offset {self.object}: {self.found} arrivals, {self.wanted} bytes missing",
            "barrier": f"barrier {self.object}: {self.found} of {self.wanted} threads",
            "bulk": "its bulk copies to be written",
            "bulk_read": "its bulk copies to have read shared memory",
            "wgmma": "its warpgroup to commit",
            "warp": f"the {self.wanted} threads of warp {self.object} to multiply",
            "cluster": f"the {self.wanted} threads of its cluster",
            "copies": "its copies to shared memory to land",
        }[self.kind]
        return f"{where} waits for {what}"


def _span(name: str, first: int, last: int) -> str:
    return f"{name} {first}" if first == last else f"{name}s {first}-{last}"


def merge_waiting(lines: list[Waiting]) -> tuple[Waiting, ...]:
    """Join neighbouring blocks that wait alike; counters first, since they are what ranks wait for each other with."""
    merged: list[Waiting] = []
    latest: dict[Waiting, int] = {}
    for line in lines:
        key = replace(line, first_block=0, last_block=0)
        at = latest.get(key)
        if at is not None and merged[at].last_block + 1 == line.first_block and line.kind != "not_started":
            merged[at] = replace(merged[at], last_block=line.last_block)
        else:
            latest[key] = len(merged)
            merged.append(line)
    urgency = {"counter": 0, "not_started": 1, "polls": 2}
    return tuple(sorted(merged, key=lambda w: urgency.get(w.kind, 3)))


@dataclass(frozen=True)
class RunReport:
    """`ok`, or `fault`. `seen[node]`: what CallerReads found. `steps`: scheduler steps taken."""

    ok: bool
    fault: Fault | None
    waiting: tuple[Waiting, ...]
    log: tuple[StepLog, ...]
    steps: int
    seen: dict[int, bytes]

    @property
    def error(self) -> str:
        """The error in one line, empty when `ok`."""
        return str(self.fault) if self.fault else ""

    @property
    def deadlock(self) -> str:
        """Who waits for what, at most 16 lines; empty unless something waited when the run ended."""
        lines = [str(w) for w in self.waiting[:16]]
        if len(self.waiting) > 16:
            lines.append(f"... and {len(self.waiting) - 16} more")
        return "\n".join(lines)

    def step(self, call: int, rank: int, step: int) -> StepLog:
        """The log of a step; an empty one where it did nothing."""
        found = (s for s in self.log if (s.call, s.rank, s.step) == (call, rank, step))
        return next(found, StepLog(call, rank, step))
