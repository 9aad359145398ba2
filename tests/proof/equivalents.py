"""Mutants that change nothing: each reason is a condition on the plan that is checked, or names one place."""

from __future__ import annotations

from itertools import takewhile

from plan_mutants import Mutant, role_of

from tilescale.schedules.footprint import accesses
from tilescale.schedules.plan import Copy, Gemm, Grouped, Plan, Ragged, Reduce, Region, Signal, Sum, Wait


def plan_reason(name: str, plan: Plan, mutant: Mutant) -> str:
    """Why a mutant that the verifier accepts does what the plan does; "" where no reason is known."""
    step = mutant.step
    if mutant.kind == "signal delayed past the waits":
        return "a signal that comes later orders no less; nothing that it now waits behind needs it (no deadlock)"
    if mutant.kind == "packets awaited before they are sent" and mutant.place.startswith("rank"):
        return "where one rank alone waits before it sends, the packets of its peers come all the same"
    if mutant.kind in ("duplicate signal", "signal of another value") and isinstance(step, Signal):
        if (step.rank, step.counter) in announced(plan):
            return "an announcement that touched no data says as much twice as once"
        if last_of_one_program(plan, mutant.rank, step):
            return "the last signal to this counter, of one block: all it tells of is complete at its first addition"
    if mutant.kind == "wait one short" and isinstance(step, Wait) and (mutant.rank, step.counter) in announced(plan):
        return "one block that announces says as much as all: no data was touched before"
    if mutant.kind in ("wait for a wrong counter", "counters of two waits swapped") and isinstance(step, Wait):
        waited = changed_wait(plan, mutant)
        if waited is not None and implied(plan, mutant.rank, step.counter, waited):
            return "the counter that is waited for instead is signalled later by the same blocks: the wait is longer"
    if mutant.kind in LESS_WAITING and isinstance(step, Wait):
        if waited_before(plan, mutant.rank, step):
            return "the same blocks have waited for as much of the same counter before"
        if own_sum(plan, mutant.rank, step.counter):
            return "each block copies on what it has added up itself: a role shares equal sizes alike"
    if mutant.kind in (*LESS_WAITING, "wait for a wrong counter") and isinstance(step, Wait) \
            and told_already(plan, mutant.rank, step.counter):
        return "what it waits for was stored before another product was announced, which is waited for already"
    if mutant.kind in ("duplicate signal", "signal of another value") and isinstance(step, Signal) \
            and told_already(plan, step.rank, step.counter):
        return "what it tells of was stored before another product was announced, which is waited for already"
    if mutant.kind == "wait one short" and isinstance(step, Wait) and ends_with(plan, mutant.rank, step):
        return "nothing is read behind it: it keeps calls apart, and all blocks but one say as much as all"
    if mutant.kind in ("duplicate signal", "signal of another value") and isinstance(step, Signal):  # noqa: SIM102
        if step.rank == mutant.rank and own_sum(plan, mutant.rank, step.counter):
            return "the wait for it needs no signal: each block copies on what it has added up itself"
    if mutant.kind == "launch that starts too early":
        launches = plan.ranks[0]
        index = next(i for i, launch in enumerate(launches) if launch.name == mutant.place)
        before = next((w for w in reversed(launches[:index]) if w.stream == launches[index].stream), None)
        if before is not None and set(launches[index].after) <= set(before.after):
            return "the launch before it on its stream waits for the same"
        later = [w for w in launches[index + 1 :] if w.stream == launches[index].stream]
        if any(set(launches[index].after) <= set(w.after) and not any(map(accesses, w.steps)) for w in later):
            return "the end of the call waits for the same; what the launch reads it waits for by counters"
    if mutant.kind == "bytes too many" and isinstance(step, Copy) and rewritten(plan, mutant.rank, step):
        return "the bytes added are right and are copied again later in the same order of the same stream"
    if mutant.kind == "bytes too many" and isinstance(step, Copy) and unread(plan, step):
        return "the bytes added are right, and nothing else touches where they go"
    if mutant.kind == "ragged step before the one it needs" and isinstance(step, Ragged) and step.task == "route":
        return "the entries are numbered from the indices alone, before or behind the counts that a combine is given"
    if mutant.kind == "ragged step before the one it needs" and isinstance(step, Grouped) \
            and step.task == "return_group" and step.group < step.groups - 1:
        return "peers are told of the last group alone, so it does not matter whose products of one before go first"
    if mutant.kind == "zeros never made" and any(isinstance(s, Grouped) for *_, s in plan.steps_of(0)):
        return "rows that nobody has written are multiplied beside those of an expert, and never stored"
    if mutant.kind == "signal before its data" and isinstance(step, Signal):
        passed = passed_step(plan, mutant.rank, step)
        if isinstance(passed, Copy) and not touched(plan, step.rank, passed.dst):
            return "the rank that is signalled touches nothing of what the signal passes; that is another rank's"
        if isinstance(passed, Gemm) and announced_later(plan, mutant.rank, step, passed):
            return "the product that the signal passes is not the one that it tells of, and has a signal of its own"
        if isinstance(passed, Reduce) and passed.dst.rank != step.rank:
            return "the data that the signal passes is another rank's, whose own signal still follows it"
    return BY_NAME.get((name, mutant.kind), "")


def told_already(plan: Plan, rank: int, counter: int) -> bool:
    """Whether what `counter` of `rank` tells of was stored before a signal that is waited for before it: products stored
    at their owners are announced behind the next one. The n-th signal of a role to a rank is of its n-th product there."""
    waits = [[step.counter for step in role.steps if isinstance(step, Wait)]
             for launch in plan.ranks[rank] for role in launch.roles]
    before = next((waited[: waited.index(counter)] for waited in waits if counter in waited), [])
    found = []
    for owner in range(plan.world):
        for launch in plan.ranks[owner]:
            for role in launch.roles:
                told = {s.counter: at for at, s in enumerate(role.steps) if isinstance(s, Signal) and s.rank == rank}
                if counter not in told:
                    continue
                stored = [at for at, s in enumerate(role.steps) if isinstance(s, Gemm) and s.out.rank == rank]
                if len(stored) != len(told):
                    return False
                product = stored[list(told).index(counter)]
                found.append(any(told.get(other, -1) > product for other in before))
    return bool(found) and all(found)


def announced_later(plan: Plan, rank: int, step: Signal, passed: Gemm) -> bool:
    """Whether a product that a signal passes is at another rank, or told of by a later signal to the same one."""
    steps = role_of(plan, rank, step).steps
    return passed.out.rank != step.rank or any(
        isinstance(s, Signal) and s.rank == step.rank for s in steps[steps.index(step) + 1 :])


LESS_WAITING = ("drop wait", "wait one short", "use before its wait")
BY_NAME = {
    ("copy pull symmetric", "counters of two waits swapped"): (
        "the wait that comes first now is for peers that have read this rank's operand: they have started their calls, so "
        "theirs are there"
    ),
    ("all_reduce symmetric", "counters of two waits swapped"): (
        "the wait that comes first now is for peers that have read this rank's operand: they have started their calls, so "
        "theirs are there"
    ),
    ("all_gather multimem", "data of a wrong peer"): (
        "one store gives all ranks the same bytes, before the signals that tell of it: the peer's are there, too"
    ),
    ("copies of an empty shard", "data of a wrong peer"): (
        "a rank tells its peers behind all of its copies: where one peer is told, the rows have come to the other one, too"
    ),
    ("all_reduce multimem one_shot", "data to a wrong peer"): (
        "a sum over all ranks does not depend on whose part lies where; ranks tell when theirs lies there"
    ),
    ("summa in slots, in passes", "counters of two waits swapped"): (
        "a rank that tells of one slot has started its call, so both are free; and the peer whose word comes first now was "
        "sent a panel behind one that the other rank, in the call before, had made room for by then"
    ),
    ("combine pull symmetric", "counters of two waits swapped"): (
        "the wait that comes first now is for peers that have read this rank's rows: they have started their calls, so "
        "what they tell is there"
    ),
    ("by hand: stages by parity", "signal before its data"): (
        "the stage is empty for the last time in the call: it is not filled again before the launch ends"
    ),
    ("by hand: stages by parity", "data of a wrong peer"): (
        "every rank stores to all gather buffers before it signals, so the peer's holds the same bytes, as complete"
    ),
}


def announced(plan: Plan) -> set[tuple[int, int]]:
    """Counters that blocks signal before they have touched anything, and by nobody else."""
    early: set[tuple[int, int]] = set()
    late: set[tuple[int, int]] = set()
    for launches in plan.ranks:
        for index, launch in enumerate(launches):
            first = all(before.stream != launch.stream for before in launches[:index])
            for role in launch.roles:
                count = len(tuple(takewhile(lambda step: isinstance(step, Signal), role.steps))) if first else 0
                for at, step in enumerate(role.steps):
                    if isinstance(step, Signal):
                        (early if at < count else late).add((step.rank, step.counter))
    return early - late


def last_of_one_program(plan: Plan, rank: int, step: Signal) -> bool:
    """Whether every signal to the counter comes from blocks that follow each other on one stream, this one last."""
    found = [
        (owner, launch.stream, role.blocks, number)
        for owner in range(plan.world)
        for number, launch, role, other in plan.steps_of(owner)
        if isinstance(other, Signal) and (other.rank, other.counter) == (step.rank, step.counter)
    ]
    same = len({(owner, stream) for owner, stream, _, _ in found}) == 1 and all(blocks == 1 for *_, blocks, _ in found)
    numbers = [n for n, _, _, other in plan.steps_of(rank) if other is step]
    roles = {id(role_of(plan, owner, step)) for owner, *_ in found}
    return same and len(roles) == 1 and bool(numbers) and numbers[-1] == found[-1][3]


def changed_wait(plan: Plan, mutant: Mutant) -> int | None:
    """The counter that the first changed wait of the mutant's rank now looks at."""
    old = [step for *_, step in plan.steps_of(mutant.rank)]
    new = [step for *_, step in mutant.plan.steps_of(mutant.rank)]
    changed = [b for a, b in zip(old, new, strict=True) if a != b and isinstance(b, Wait)]
    return changed[0].counter if changed else None


def implied(plan: Plan, rank: int, first: int, second: int) -> bool:
    """Whether all signals to `second` of `rank` come after one to `first`, from the same role and as many blocks."""
    for owner in range(plan.world):
        for launch in plan.ranks[owner]:
            for role in launch.roles:
                told = [s.counter for s in role.steps if isinstance(s, Signal) and s.rank == rank]
                if second in told and (first not in told or told.index(first) > told.index(second)):
                    return False
                if first in told and second not in told:
                    return False
    return True


def rewritten(plan: Plan, rank: int, step: Copy) -> bool:
    """Whether the row behind what `step` writes is written by a later copy that continues it, on the same stream."""
    seen: tuple[int, str] | None = None
    for _, launch, role, other in plan.steps_of(rank):
        if other is step:
            seen = (launch.stream, role.name)
        elif isinstance(other, Copy) and (launch.stream, role.name) == seen:
            following = (step.dst.rank, step.dst.end, step.src.end)
            if (other.dst.rank, other.dst.offset, other.src.offset) == following:
                return True
    return False


def waited_before(plan: Plan, rank: int, step: Wait) -> bool:
    """Whether every role that holds `step` has waited for as much before."""
    found = [role.steps for launch in plan.ranks[rank] for role in launch.roles if any(s is step for s in role.steps)]

    def before(steps: tuple[object, ...]) -> bool:
        earlier = takewhile(lambda s: s is not step, steps)
        return any(isinstance(s, Wait) and s.counter == step.counter and s.value >= step.value for s in earlier)

    return bool(found) and all(map(before, found))


def own_sum(plan: Plan, rank: int, counter: int) -> bool:
    """Whether each wait of `rank` for `counter` stands before a copy of what the same role has added up, byte for byte: of
    waits that stand side by side, the first is for the first copy behind them."""
    waits = [(role.steps, at) for launch in plan.ranks[rank] for role in launch.roles for at, s in enumerate(role.steps)
             if isinstance(s, Wait) and s.counter == counter]

    def kept(steps: tuple[object, ...], at: int) -> bool:
        before = sum(1 for _ in takewhile(lambda s: isinstance(s, Wait), reversed(steps[:at])))
        behind = at + sum(1 for _ in takewhile(lambda s: isinstance(s, Wait), steps[at:])) + before
        copy = steps[behind] if behind < len(steps) else None
        return isinstance(copy, Copy) and any(
            isinstance(s, Sum) and s.dst == copy.src and s.srcs[0].size == s.dst.size for s in steps[:at])

    return bool(waits) and all(kept(*wait) for wait in waits)


def ends_with(plan: Plan, rank: int, step: Wait) -> bool:
    """Whether the rank touches no memory behind `step`."""
    later = False
    for *_, other in plan.steps_of(rank):
        if later and accesses(other):
            return False
        later = later or other is step
    return later


def touched(plan: Plan, rank: int, written: Region) -> bool:
    """Whether a step of `rank` touches any of these bytes."""
    return any(
        (region.rank, region.buffer) == (written.rank, written.buffer)
        and region.offset < written.end and written.offset < region.end
        for *_, step in plan.steps_of(rank) for region, _ in accesses(step))


def unread(plan: Plan, step: Copy) -> bool:
    """Whether no other step touches the row behind what `step` writes."""
    low, high = step.dst.end, step.dst.end + plan.goal.row_bytes
    return not any(
        region.buffer == step.dst.buffer and region.rank == step.dst.rank and region.offset < high and low < region.end
        for rank in range(plan.world) for *_, other in plan.steps_of(rank) if other is not step
        for region, _ in accesses(other))


def passed_step(plan: Plan, rank: int, step: Signal) -> object:
    """The step before a signal."""
    before: object = None
    for *_, other in plan.steps_of(rank):
        if other is step:
            return before
        before = other
    return None
