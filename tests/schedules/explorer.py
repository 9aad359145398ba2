"""The oracle: a plan run block by block in every order. Only for tiny plans.

Written apart from the verifier: every block of every role is a thread, launches and calls are gates, and all reachable
states are visited. Steps that touch no memory are taken at once (that keeps pending accesses pending, so no pair of
accesses that can be pending together is lost).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from tilescale.schedules.plan import Copy, Gemm, Plan, Signal, Wait


@dataclass(frozen=True)
class Thread:
    rank: int
    launch: int  # -1: the caller
    role: int
    block: int
    blocks: int
    steps: tuple[object, ...]


class Explorer:
    def __init__(self, plan: Plan, calls: int) -> None:
        self.plan, self.calls = plan, calls
        self.threads: list[Thread] = []
        for rank, launches in enumerate(plan.ranks):
            self.threads.append(Thread(rank, -1, 0, 0, 1, ("write", "go", "join", "read")))
            for i, launch in enumerate(launches):
                for j, role in enumerate(launch.roles):
                    for block in range(role.blocks):
                        self.threads.append(Thread(rank, i, j, block, role.blocks, ("start", *role.steps)))
        self.totals = [plan.counter_totals(rank) for rank in range(plan.world)]
        self.parents = [self._parents(rank) for rank in range(plan.world)]

    def _parents(self, rank: int) -> list[list[int]]:
        launches = self.plan.ranks[rank]
        names = [launch.name for launch in launches]
        found = []
        for i, launch in enumerate(launches):
            before = [k for k in range(i) if launches[k].stream == launch.stream][-1:]
            found.append(before + [names.index(name) for name in launch.after])
        return found

    def counters(self, state: tuple[int, ...]) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        for thread, done in zip(self.threads, state, strict=True):
            size = len(thread.steps)
            for index, step in enumerate(thread.steps):
                if isinstance(step, Signal):
                    times = done // size + (done % size > index)
                    key = (step.rank, step.counter)
                    found[key] = found.get(key, 0) + step.value * times
        return found

    def completed(self, state: tuple[int, ...], rank: int, launch: int, call: int) -> bool:
        return all(
            done >= (call + 1) * len(t.steps)
            for t, done in zip(self.threads, state, strict=True)
            if t.rank == rank and t.launch == launch
        )

    def gone(self, state: tuple[int, ...], rank: int, call: int) -> bool:
        return (
            next(done for t, done in zip(self.threads, state, strict=True) if (t.rank, t.launch) == (rank, -1))
            >= call * 4 + 2
        )

    def may(self, state: tuple[int, ...], which: int, counters: dict[tuple[int, int], int]) -> bool:
        thread = self.threads[which]
        call, index = divmod(state[which], len(thread.steps))
        step = thread.steps[index]
        if step == "start":
            return self.gone(state, thread.rank, call) and all(
                self.completed(state, thread.rank, parent, call) for parent in self.parents[thread.rank][thread.launch]
            )
        if step == "join":
            return all(self.completed(state, thread.rank, i, call) for i in range(len(self.plan.ranks[thread.rank])))
        if isinstance(step, Wait):
            wanted = call * self.totals[thread.rank][step.counter] + step.value
            return counters.get((thread.rank, step.counter), 0) >= wanted
        return True

    def pending(self, state: tuple[int, ...], which: int) -> object | None:
        thread = self.threads[which]
        call, index = divmod(state[which], len(thread.steps))
        step = thread.steps[index] if call < self.calls else None
        return step if isinstance(step, Copy | Gemm) or step in ("write", "read") else None

    def closure(self, state: tuple[int, ...]) -> tuple[int, ...]:
        moved = True
        while moved:
            moved = False
            counters = self.counters(state)
            for which, thread in enumerate(self.threads):
                idle = state[which] < self.calls * len(thread.steps) and self.pending(state, which) is None
                if idle and self.may(state, which, counters):
                    state = (*state[:which], state[which] + 1, *state[which + 1 :])
                    moved = True
                    break
        return state

    def touches(self, state: tuple[int, ...], which: int) -> list[tuple[object, int, int, bool]]:
        thread, step = self.threads[which], self.pending(state, which)
        call = state[which] // len(thread.steps)
        versions = {b.name: b.versions for b in self.plan.buffers}
        if isinstance(step, Copy):
            found = [(step.src, False), (step.dst, True)]
        elif isinstance(step, Gemm):
            found = [(step.a, False), (step.b, False), (step.out, True)]
        else:
            role = "input" if step == "write" else "output"
            return [
                ((thread.rank, b.name, call % b.versions), 0, b.size, step == "write")
                for b in self.plan.buffers
                if b.role == role
            ]
        return [((r.rank, r.buffer, call % versions[r.buffer]), r.offset, r.end, w) for r, w in found]

    def conflict(self, state: tuple[int, ...], x: int, y: int) -> bool:
        a, b = self.threads[x], self.threads[y]
        siblings = (a.rank, a.launch, a.role) == (b.rank, b.launch, b.role)
        if siblings and state[x] % len(a.steps) == state[y] % len(b.steps):
            return False  # shares of one step
        p, q = self.pending(state, x), self.pending(state, y)
        for memory, low, high, write in self.touches(state, x):
            for other, other_low, other_high, other_write in self.touches(state, y):
                if memory == other and (write or other_write) and max(low, other_low) < min(high, other_high):
                    same = (
                        siblings
                        and isinstance(p, Copy)
                        and isinstance(q, Copy)
                        and (low, high) == (other_low, other_high)
                    )
                    if not same:
                        return True
        return False

    def explore(self, limit: int = 60000) -> tuple[bool, bool] | None:
        """(deadlock, race), or None where there are too many states."""
        first = self.closure(tuple(0 for _ in self.threads))
        seen, todo, race, dead = {first}, [first], False, False
        while todo:
            state = todo.pop()
            ready = [i for i in range(len(self.threads)) if self.pending(state, i) is not None]
            race = race or any(self.conflict(state, x, y) for x, y in combinations(ready, 2))
            if not ready and any(d < self.calls * len(t.steps) for t, d in zip(self.threads, state, strict=True)):
                dead = True
            for i in ready:
                following = self.closure((*state[:i], state[i] + 1, *state[i + 1 :]))
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
            if len(seen) > limit:
                return None
        return dead, race
