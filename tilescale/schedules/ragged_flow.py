"""Data flow of ragged operations: what every step reads must be, in full, what the step before it has made in this call.

How many rows a segment holds is known on the device alone, so what a region holds is said as a whole: who made it, from
what, for whom. The last step must find that of every rank, and the outputs what the last step made.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tilescale.schedules.agents import Model, Work
from tilescale.schedules.dataflow import Contents
from tilescale.schedules.following import Following
from tilescale.schedules.footprint import describe
from tilescale.schedules.order import Run
from tilescale.schedules.plan import Copy, Grouped, Ragged, Region
from tilescale.schedules.story import Counterexample, Place

# What a task needs, done before in the same call by the same blocks: it leaves numbers in their shared memory.
BEFORE = {"route": (), "total": ("route",), "send": ("total",), "place": (), "tally": (), "return": ("tally",),
          "weigh": ("total", "tally"), "arrange": ("total",), "send_group": ("arrange",), "place_group": (), "multiply": (),
          "return_group": ("tally",)}
# What outputs must hold.
RESULT = {"moe_dispatch": {"out": "place", "counts": "place"}, "moe_combine": {"out": "weigh"},
          "moe_dispatch_gemm": {"out": "multiply", "counts": "place_group"}, "moe_gemm_combine": {"out": "weigh"}}


FIRST_PLACED = "place_group of the first group"


class Made(NamedTuple):
    """`what`: a buffer that the caller filled, or a task; on `rank`, for rank `peer`, in `call`."""

    what: str
    rank: int
    peer: int
    call: int


class RaggedFlow(Following):
    """Follows the data of a ragged plan along `run`."""

    def __init__(self, model: Model, run: Run) -> None:
        super().__init__(model, run)
        self.memory: dict[tuple[int, str, int], Contents] = {}
        self.done: dict[tuple[int, str, str, int], set[str]] = {}
        self.products = self.plan.op == "moe_gemm_combine"  # which are what goes back
        self.held = "multiply" if self.products else "a"
        self.grouped = any(isinstance(s, Grouped) and s.task == "return_group" for *_, s in self.plan.steps_of(0))
        self.sends_scales = any(b.name == "scales" for b in self.plan.buffers)
        self.pulls = any(b.peer_visible for b in self.plan.buffers if b.name in ("a", "staging"))

    def _contents(self, rank: int, buffer: str, call: int) -> Contents:
        key = (rank, buffer, call % self.versions[buffer])
        return self.memory.setdefault(key, Contents())

    def _caller(self, rank: int, call: int) -> Counterexample | None:
        problem = self._outputs(rank, call - 1) if call else None
        if problem is None and call < self.model.calls:
            for buffer in self.plan.buffers:
                if buffer.role == "input" and buffer.size:
                    self._write(Region(buffer.name, rank, 0, buffer.size), call, Made(buffer.name, rank, rank, call))
        return problem

    def _outputs(self, rank: int, call: int) -> Counterexample | None:
        for buffer in self.plan.buffers:
            if buffer.role != "output":
                continue
            made = RESULT[self.plan.op][buffer.name]
            wanted = Made(_then(made, self.plan.goal.then if made == "multiply" else ()), rank, rank, call)
            whole = Region(buffer.name, rank, 0, buffer.size)
            if self._held(whole, call) != wanted:
                says = f"must hold {_say(wanted)}; it holds {_say(self._held(whole, call))}"
                return Counterexample("data_flow", f"output {buffer.name} of rank {rank} {says}", (Place(rank, call=call),),
                                      buffer.name, rank, 0, buffer.size)
        return None

    def _write(self, region: Region, call: int, made: Made) -> None:
        # Values of the two ways to follow data are both plain tuples, compared and kept as they are.
        self._contents(region.rank, region.buffer, call).write(region.offset, region.end, made)  # type: ignore[arg-type]

    def _held(self, region: Region, call: int) -> Made | None:
        """What all bytes of a region hold; None where that is not one thing."""
        reached, found = region.offset, None
        for low, high, made in self._contents(region.rank, region.buffer, call).pieces(region.offset, region.end):
            if low > reached or (found is not None and made != found):
                return None
            reached, found = high, made
        return found if reached == region.end else None  # type: ignore[return-value]

    def _step(self, rank: int, work: Work, call: int) -> Counterexample | None:
        step = work.step
        if isinstance(step, Copy):
            held = self._held(step.src, call)
            if held != Made("a", rank, rank, call):
                return self._refuse(rank, work, call, f"reads {_say(held)} in place of the operand")
            self._write(Region(step.dst.buffer, step.dst.rank, 0, self.plan.buffer(step.dst.buffer).size), call, held)
            return None
        if not isinstance(step, Ragged):
            return self._refuse(rank, work, call, "must be a ragged step or a copy")
        done = self.done.setdefault((rank, work.launch, work.role, call), set())
        needed = BEFORE.get(step.task, (step.task,))
        if step.task == "place_group" and isinstance(step, Grouped) and step.group:
            needed = (FIRST_PLACED,)  # which leaves in shared memory where rows begin
        missing = [task for task in needed if task not in done]
        if missing:
            return self._refuse(rank, work, call, f"needs {missing[0]} before it, by the same blocks")
        done.add(step.task)
        if step.task == "place_group" and not (isinstance(step, Grouped) and step.group):
            done.add(FIRST_PLACED)
        read = Counter(self._held(region, call) for region in step.reads)
        wanted: Counter[Made | None] = Counter(self._wanted(rank, step, call))
        if read != wanted:
            lacks, has = next(iter(wanted - read), None), next(iter(read - wanted), None)
            return self._refuse(rank, work, call, f"reads {_say(has)} in place of {_say(lacks)}")
        made = _then(step.task, step.then if isinstance(step, Grouped) else ())
        for region in step.writes:
            self._write(region, call, Made(made, rank, step.peer, call))
        return None

    def _wanted(self, rank: int, step: Ragged, call: int) -> list[Made]:
        """What the regions that a step reads must hold."""
        def own(*names: str) -> list[Made]:
            return [Made(name, rank, rank, call) for name in names]

        peers = [peer for peer in range(self.plan.world) if peer != rank]
        pulled = [Made("a", peer, peer, call) for peer in peers]
        if step.task == "route":
            return own("indices")
        if step.task == "total":
            return own("route")
        if step.task == "send":
            return own("a", "indices", "route")
        if step.task == "place":
            sent = [Made("send", peer, rank, call) for peer in peers]
            return [*sent, *(pulled if self.pulls else sent), *own("send", "a")]
        if step.task == "arrange":
            return own("indices", "route")
        if step.task == "send_group":
            return own("a", "indices", "arrange", *(("scale_a",) if self.sends_scales else ()))
        if step.task == "place_group":
            return [*(Made("send_group", source, rank, call) for source in range(self.plan.world)), *own("a")]
        if step.task == "multiply":  # rows, matrices and counts, and what stands beside them
            placed = own("place_group") if self.sends_scales else []
            beside = own(*(extra.buffer for extra in self.plan.goal.extras if not placed or extra.buffer != "scale_a"))
            rows = own("a", "b", "counts") if self.products else own("place_group", "b", "place_group")
            return [*rows, *placed, *beside]
        if step.task == "tally":
            return own("counts")
        if step.task == "return_group":
            return own("multiply")
        if step.task == "return":
            return [] if self.pulls else own(self.held)
        given = [Made("return_group" if self.grouped else "return", peer, rank, call) for peer in peers]
        return [*given, *(pulled if self.pulls else []), *own("weights", "indices", "route", self.held)]

    def _refuse(self, rank: int, work: Work, call: int, message: str) -> Counterexample:
        place = Place(rank, work.launch, work.role, work.number, call, describe(work.step))
        return Counterexample("data_flow", f"step {work.number} of rank {rank} {message}", (place,))


def _then(task: str, then: tuple[str, ...]) -> str:
    """What a task makes, behind its epilogues."""
    return f"{task}, then {', '.join(then)}," if then else task


def _say(made: Made | None) -> str:
    if made is None:
        return "nothing whole"
    return f"{made.what} of rank {made.rank} for rank {made.peer} of call {made.call}"
