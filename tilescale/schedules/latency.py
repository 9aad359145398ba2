"""How many one-way trips over a link stand behind each other in a call, whatever its sizes: what small messages take.

A signal takes one, and so do packets. What is loaded from a peer takes two, for it is asked for first. What is stored at
a peer takes two before a signal of the same blocks leaves, or the next launch starts: the fence waits until it is
acknowledged. All else takes none.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from tilescale.errors import PlanError
from tilescale.schedules.footprint import accesses
from tilescale.schedules.packets import Key, awaited, buffers_of, key_of, sent
from tilescale.schedules.plan import Launch, Plan, Role, Signal, Step, Wait

TRIP, THERE_AND_BACK = 1, 2


def one_way_trips(plan: Plan) -> int:
    """The longest chain of trips in one call, from its start to the end of the last rank.

    Raises PlanError where roles wait for ever (`verify` finds such plans, and says why).
    """
    return _Trips(plan).run()


@dataclass
class _Walker:
    """A role on its way: `time` in trips; `pending`: it has stored at a peer since its last fence."""

    rank: int
    launch: int
    role: Role
    time: int
    place: int = 0
    pending: bool = False


Counter = tuple[int, int] | Key  # rank and counter of the plan, or packets


class _Trips:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.packets = plan, buffers_of(plan)
        self.counts: dict[Counter, int] = {}
        self.queue: list[tuple[int, int, _Walker | tuple[Counter, int]]] = []
        self.order = 0
        self.waiting: list[_Walker] = []
        self.left = [[len(launch.roles) for launch in launches] for launches in plan.ranks]
        self.ends = [[0] * len(launches) for launches in plan.ranks]
        self.started: set[tuple[int, int]] = set()

    def run(self) -> int:
        for rank in range(self.plan.world):
            self._start(rank)
        while self.queue:
            time, _, what = heappop(self.queue)
            if isinstance(what, _Walker):
                self._walk(what)
                continue
            counter, amount = what
            self.counts[counter] = self.counts.get(counter, 0) + amount
            met = [walker for walker in self.waiting if self._ready(walker)]
            self.waiting = [walker for walker in self.waiting if walker not in met]
            for walker in met:
                walker.time = max(walker.time, time)
                self._push(walker.time, walker)
        if self.waiting:
            raise PlanError("every wait is met", f"rank {self.waiting[0].rank} role {self.waiting[0].role.name}",
                            "verify the plan")
        return max(end for ends in self.ends for end in ends)

    def _push(self, time: int, what: _Walker | tuple[Counter, int]) -> None:
        self.order += 1
        heappush(self.queue, (time, self.order, what))

    def _start(self, rank: int) -> None:
        """Start what has nothing left to wait for: the launch before it on its stream, and those it comes after."""
        launches = self.plan.ranks[rank]
        for index, launch in enumerate(launches):
            before = [i for i, other in enumerate(launches[:index]) if other.stream == launch.stream][-1:]
            before += [i for i, other in enumerate(launches) if other.name in launch.after]
            if (rank, index) not in self.started and not any(self.left[rank][i] for i in before):
                self.started.add((rank, index))
                time = max((self.ends[rank][i] for i in before), default=0)
                for role in launch.roles:
                    self._push(time, _Walker(rank, index, role, time))

    def _walk(self, walker: _Walker) -> None:
        while walker.place < len(walker.role.steps):
            if not self._ready(walker):
                self.waiting.append(walker)
                return
            self._take(walker, walker.role.steps[walker.place])
            walker.place += 1
            if self.queue and self.queue[0][0] < walker.time:  # others first: what they tell may come earlier
                self._push(walker.time, walker)
                return
        self._finish(walker, self.plan.ranks[walker.rank][walker.launch])

    def _ready(self, walker: _Walker) -> bool:
        step = walker.role.steps[walker.place] if walker.place < len(walker.role.steps) else None
        if isinstance(step, Wait):
            return self.counts.get((walker.rank, step.counter), 0) >= step.value
        return step is None or all(self.counts.get(key_of(region), 0) for region in awaited(step, self.packets))

    def _take(self, walker: _Walker, step: Step) -> None:
        if isinstance(step, Signal):
            self._fence(walker)
            amount = step.value * walker.role.blocks
            travel = TRIP if step.rank != walker.rank else 0
            self._push(walker.time + travel, ((step.rank, step.counter), amount))
        elif sent(step):
            for region in sent(step):
                self._push(walker.time + TRIP, (key_of(region), 1))
        else:
            remote = [write for region, write in accesses(step) if region.rank != walker.rank]
            walker.time += THERE_AND_BACK if False in remote else 0
            walker.pending |= True in remote

    @staticmethod
    def _fence(walker: _Walker) -> None:
        walker.time += THERE_AND_BACK if walker.pending else 0
        walker.pending = False

    def _finish(self, walker: _Walker, launch: Launch) -> None:
        following = any(other.stream == launch.stream for other in self.plan.ranks[walker.rank][walker.launch + 1 :])
        if following or any(launch.name in other.after for other in self.plan.ranks[walker.rank]):
            self._fence(walker)
        rank, index = walker.rank, walker.launch
        self.left[rank][index] -= 1
        self.ends[rank][index] = max(self.ends[rank][index], walker.time)
        if not self.left[rank][index]:
            self._start(rank)
