"""Counterexamples of runs, told as short stories with a timeline."""

from __future__ import annotations

from tilescale.schedules.agents import CALLER, Model
from tilescale.schedules.footprint import describe
from tilescale.schedules.order import Run, stopped
from tilescale.schedules.races import Access, Race
from tilescale.schedules.story import Counterexample, Place

EVENTS = 16


def tell_deadlock(model: Model, run: Run) -> Counterexample:
    """The stuck wait that nothing pending can meet, if there is one, else the first; then the others."""
    stuck = [a for a, pc in enumerate(run.pcs) if pc < len(model.programs[a])]
    coming: dict[int, int] = {}
    for agent in stuck:
        for counter, amount, blocks in model.programs[agent][run.pcs[agent] :]:
            coming[counter] = coming.get(counter, 0) + amount * blocks

    def hopeless(agent: int) -> tuple[bool, bool, int]:
        counter, wanted, _ = model.programs[agent][run.pcs[agent]]
        told = model.told(counter)
        return not (run.counts[counter] + coming.get(counter, 0) < wanted and told), not told, agent

    stuck.sort(key=hopeless)
    counter, wanted, _ = model.programs[stuck[0]][run.pcs[stuck[0]]]
    found = run.counts[counter]
    where = tuple(model.place(agent, run.pcs[agent]) for agent in stuck[:4])
    own = counter < model.plan.world * model.plan.counters
    more = f"; {len(stuck) - 1} more agents are stuck" if len(stuck) > 1 else ""
    return Counterexample(
        "deadlock",
        f"{_who(where[0])} waits for ever: {model.counter_name(counter)} reaches {found} of {wanted}{more}",
        where,
        counter=counter % model.plan.counters if own else -1,
        counter_rank=counter // model.plan.counters if own else -1,
        found=found,
        wanted=wanted,
        timeline=_about(model, run, stuck[0], counter) + f"\nnow for ever: {where[0]}",
    )


def tell_race(model: Model, race: Race) -> Counterexample:
    """Both accesses, and a run in which the second is reached while the first is held back."""
    (x, call_x), (y, call_y) = sorted((race.first, race.second), key=lambda side: (side[1], not side[0].write))
    held = call_x * len(model.agents[x.agent].operations) + x.position
    reached = call_y * len(model.agents[y.agent].operations) + y.position
    run = stopped(model, x.agent, held)
    counter, wanted, found = _last_wait(model, run, y.agent, reached)
    places = (_place(model, x, call_x), _place(model, y, call_y))
    after = f"; {_who(places[1])} last waited for {wanted} on {model.counter_name(counter)}" if counter >= 0 else ""
    return Counterexample(
        "race",
        f"nothing orders these two, {_verb(x)} and {_verb(y)} the same bytes{after}",
        places,
        race.buffer,
        race.rank,
        race.low,
        race.high - race.low,
        counter % model.plan.counters if counter >= 0 else -1,
        counter // model.plan.counters if counter >= 0 else -1,
        found,
        wanted,
        timeline(model, run, until=(y.agent, reached)) + f"\nnow {places[1]}\nwhile still pending: {places[0]}",
    )


def _last_wait(model: Model, run: Run, agent: int, position: int) -> tuple[int, int, int]:
    """The last wait of the plan before a position: counter, wanted, and found at the end of `run`; -1 without one."""
    for index in range(position - 1, -1, -1):
        counter, amount, blocks = model.programs[agent][index]
        if not blocks and counter < model.plan.world * model.plan.counters:
            return counter, amount, run.counts[counter]
    return -1, -1, -1


def _verb(access: Access) -> str:
    return "writing" if access.write else "reading"


def _who(place: Place) -> str:
    return str(Place(place.rank, place.launch, place.role, place.step, place.call))


def _place(model: Model, access: Access, call: int) -> Place:
    rank = model.agents[access.agent].rank
    if access.work is None:
        action = "writes the inputs of this call" if access.write else "reads the outputs of this call"
        return Place(rank, CALLER, call=call, action=action)
    work = access.work
    return Place(rank, work.launch, work.role, work.number, call, describe(work.step))


def _about(model: Model, run: Run, agent: int, counter: int, events: int = EVENTS) -> str:
    """The last operations of a stuck agent, and those on the counter that it waits for."""
    lines = [
        str(model.place(other, operation))
        for other, first, last in run.segments
        for operation in range(first, last)
        if other == agent or model.programs[other][operation][0] == counter
    ]
    return "\n".join(lines[-events:])


def timeline(model: Model, run: Run, until: tuple[int, int], events: int = EVENTS) -> str:
    """The last operations of a run, one a line, before an agent reaches a position."""
    lines: list[str] = []
    for agent, first, last in run.segments:
        for operation in range(first, last):
            if (agent, operation) == until:
                return "\n".join(lines[-events:])
            lines.append(str(model.place(agent, operation)))
        if agent == until[0] and last >= until[1]:
            break
    return "\n".join(lines[-events:])
