"""Waits by parity: right only while the barrier is at most one phase ahead of whoever waits.

A barrier in shared memory tells the parity of its phase and nothing else. A wait for phase n passes when the number of
completed phases has the parity of n + 1, so it is a wait for a count exactly when, at every moment at which it looks,
n or n + 1 phases are complete: fewer would let it through early, more would hold it for ever.
"""

from __future__ import annotations

from tilescale.schedules.agents import Agent, Model
from tilescale.schedules.footprint import counter_totals
from tilescale.schedules.order import stopped
from tilescale.schedules.plan import Plan, Wait
from tilescale.schedules.story import Counterexample, Place


def check_phase_counts(plan: Plan) -> Counterexample | None:
    """A call completes whole phases, and waits want the end of one."""
    arrivals = {phase.counter: phase.arrivals for phase in plan.phases}
    for rank, totals in enumerate(counter_totals(plan) if arrivals else ()):
        for counter, each in arrivals.items():
            if each < 1 or not 0 <= counter < plan.counters or totals[counter] % each:
                return _refuse(rank, counter, f"a call completes whole phases of {each} arrivals", totals[counter], each)
        for number, launch, role, step in plan.steps_of(rank):
            if isinstance(step, Wait) and step.value % arrivals.get(step.counter, 1):
                place = Place(rank, launch.name, role.name, number)
                each = arrivals[step.counter]
                return _refuse(rank, step.counter, f"a wait wants whole phases of {each} arrivals", step.value, each, place)
    return None


def check_phases(model: Model) -> Counterexample | None:
    """No wait on a phase can be passed early, or miss its phase. Requires a model without deadlock."""
    plan = model.plan
    arrivals = {
        rank * plan.counters + phase.counter: phase.arrivals for rank in range(plan.world) for phase in plan.phases
    }
    for index, agent in enumerate(model.agents if arrivals else ()):
        seen: dict[int, int] = {}
        for at, (counter, wanted, blocks) in enumerate(model.programs[index]):
            each = arrivals.get(counter)
            if blocks or each is None:
                continue
            if wanted - seen.get(counter, 0) > each:
                return _skips(model, agent, index, at, seen.get(counter, 0))
            seen[counter] = max(wanted, seen.get(counter, 0))
            count = stopped(model, index, at).counts[counter]
            if count >= wanted + each:
                return _misses(model, index, at, count)
    return None


def _skips(model: Model, agent: Agent, index: int, at: int, seen: int) -> Counterexample:
    counter, wanted, _ = model.programs[index][at]
    own = counter % model.plan.counters
    message = f"phase counter {own} is waited for at {wanted} after {seen}: the parity of an earlier phase would do"
    return _refuse(agent.rank, own, message, seen, wanted, model.place(index, at))


def _misses(model: Model, index: int, at: int, count: int) -> Counterexample:
    counter, wanted, _ = model.programs[index][at]
    own = counter % model.plan.counters
    message = f"phase counter {own} can be at {count} while a wait by parity still wants {wanted}: it would miss its phase"
    return _refuse(model.agents[index].rank, own, message, count, wanted, model.place(index, at))


def _refuse(rank: int, counter: int, message: str, found: int, wanted: int, place: Place | None = None) -> Counterexample:
    where = (place or Place(rank),)
    return Counterexample("phase", message, where, counter=counter, counter_rank=rank, found=found, wanted=wanted)
