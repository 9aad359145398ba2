"""Exchanges: every kind of schedule is proved on any number of ranks, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from mutations import changed
from support import exchange

from tilescale.errors import ScheduleError
from tilescale.schedules.exchanges import exchange_of
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Buffer, Copy, Goal, Launch, Plan, Region, Role, Signal, Step, Wait
from tilescale.schedules.protocol import protocol_digest, rotates
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec

PUSH = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4)
NONE = Schedule(overlap="none", compute="generated", num_comm_blocks=4)
ENGINE = replace(PUSH, transport="copy_engine", num_comm_blocks=0)
NAMES = ("shift", "shift back", "broadcast", "columns", "heads", "sequence", "elements")


def structures(spec: Spec) -> list[Schedule]:
    """One schedule of each kind of plan."""
    found: dict[tuple[object, ...], Schedule] = {}
    for s in space(spec):
        found.setdefault((s.transport, s.direction, s.overlap, s.depth > 1, s.chunk_order), s)
    return list(found.values())


@pytest.mark.parametrize("inputs", ["ordinary", "symmetric"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_schedule_is_proved(name: str, ranks: int, inputs: str) -> None:
    spec = exchange(name, ranks, inputs=inputs)
    schedules = structures(spec)
    assert len(schedules) > 5
    for schedule in schedules:
        proof = verify(lower(spec, schedule), cache=None)
        assert proof.ok, f"{schedule.label}: {proof.counterexample}"


def one_version(plan: Plan) -> Plan:
    def buffer(b: Buffer) -> Buffer:
        return replace(b, versions=1)

    return replace(plan, buffers=tuple(map(buffer, plan.buffers)))


def _without(counter: int) -> Callable[[Plan], Plan]:
    """No signals and waits of a counter, counted from the end."""
    def change(plan: Plan) -> Plan:
        gone = range(plan.counters - 1 - plan.world, plan.counters - 1) if counter < 0 else [plan.counters - 1]
        return changed(plan, lambda s: None if isinstance(s, Signal | Wait) and s.counter in gone else s)

    return change


def _moved(region: Region, by: int) -> Region:
    return replace(region, offset=region.offset + by)


def _swapped(plan: Plan) -> Plan:
    """Rows that are taken in another order on one side: the shapes are equal, but for the turn."""
    def step(s: Step) -> Step:
        if isinstance(s, Copy) and len(s.src.loops) > 1 and s.src.buffer == "a" and s.src.rank == 1:
            *before, one, other = s.src.loops
            return replace(s, src=replace(s.src, loops=(*before, other, one)))
        return s

    return changed(plan, step)


def _from_another(plan: Plan) -> Plan:
    """What rank 0 takes from its inbox goes to where the piece of another rank belongs, and the other way."""
    takes = [s for launch in plan.ranks[0] for s in launch.steps if isinstance(s, Copy) and s.src.buffer == "inbox"]
    first, second = takes[0].dst, takes[-1].dst
    assert first != second
    swap = {first: second, second: first}

    def step(s: Step) -> Step:
        return replace(s, dst=swap.get(s.dst, s.dst)) if isinstance(s, Copy) and s.src.buffer == "inbox" else s

    return changed(plan, step)


def _repeated(plan: Plan) -> Plan:
    """The first launch of rank 1 copies what it copied last once more."""
    launch = plan.ranks[1][0]
    last = next(s for s in reversed(launch.roles[0].steps) if isinstance(s, Copy))
    role = replace(launch.roles[0], steps=(*launch.roles[0].steps, last))
    ranks = (plan.ranks[0], (replace(launch, roles=(role,)), *plan.ranks[1][1:]), *plan.ranks[2:])
    return replace(plan, ranks=ranks)


FAULTS: dict[str, tuple[Spec, Schedule, Callable[[Plan], Plan], set[str]]] = {
    "one inbox for all calls": (exchange("heads", 3), PUSH, one_version, {"race"}),
    "one inbox of a shift": (exchange("shift", 3), NONE, one_version, {"race"}),
    "one staging for all calls": (exchange("sequence", 3), replace(NONE, direction="pull"), one_version, {"race"}),
    "a sender that nobody holds back": (exchange("shift", 4), PUSH, _without(-1), {"race"}),
    "a root that nobody holds back": (exchange("broadcast", 4), replace(PUSH, direction="pull"), _without(-1), {"race"}),
    "an operand that is given back too early": (
        exchange("columns", 4, inputs="symmetric"), replace(NONE, direction="pull"), _without(0), {"race"}),
    "no waits": (exchange("sequence", 3), PUSH, lambda p: changed(p, lambda s: None if isinstance(s, Wait) else s),
                 {"race"}),
    "nobody tells rank 1": (exchange("heads", 3), PUSH, lambda p: changed(
        p, lambda s: None if isinstance(s, Signal) and s.rank == 1 else s), {"deadlock"}),
    "pieces in each other's places": (exchange("heads", 3), replace(PUSH, chunk_rows=1024, depth=1), _from_another,
                                      {"data_flow"}),
    "a piece that is not turned": (exchange("square", 2), NONE, _swapped, {"data_flow"}),
    "a copy that is left out": (exchange("sequence", 3), NONE, lambda p: changed(
        p, lambda s: None if isinstance(s, Copy) and s.dst.buffer == "inbox" and s.dst.rank == 1 else s), {"data_flow"}),
    "an output that is left out": (exchange("heads", 3), NONE, lambda p: changed(
        p, lambda s: None if isinstance(s, Copy) and s.dst == Region("out", 1, s.dst.offset, s.dst.size, s.dst.loops)
        and s.src.buffer == "a" else s), {"coverage"}),
    "an output that is written twice": (exchange("heads", 3), NONE, _repeated, {"coverage"}),
    "rows at a pitch of nothing": (exchange("heads", 3), NONE, lambda p: changed(
        p, lambda s: replace(s, dst=_moved(s.dst, 2)) if isinstance(s, Copy) and s.dst.loops else s),
        {"structure", "bounds"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    spec, schedule, change, rules = FAULTS[name]
    plan = lower(spec, schedule)
    assert verify(plan, cache=None).ok
    found = verify(change(plan), cache=None).counterexample
    assert found is not None
    assert found.rule in rules, found


def test_boxes_that_lie_between_each_other_do_not_race() -> None:
    """Columns of all ranks land side by side in every row: their bytes from first to last overlap, they do not."""
    plan = lower(exchange("columns", 4, turned_back=True), NONE)
    writes = [s.dst for rank in plan.ranks for launch in rank for s in launch.steps
              if isinstance(s, Copy) and (s.dst.buffer, s.dst.rank) == ("inbox", 0)]
    assert len(writes) == 3
    assert all(one.offset < other.end and other.offset < one.end for one in writes for other in writes)
    assert verify(plan, cache=None).ok


@pytest.mark.parametrize("turned", [False, True])
def test_blocks_share_a_copy_in_the_order_of_its_loops(turned: bool) -> None:
    """A gang stages a box and copies it on: a block reads what it wrote itself, unless it takes rows in another order."""
    grid, size, here, there = (4, 4, 16), 256, ((4, 64), (4, 16)), ((4, 16), (4, 64))
    buffers = (Buffer("a", "input", size, grid=grid), Buffer("staging", "workspace", size, grid=grid),
               Buffer("out", "output", size, grid=grid))

    def copy(source: str, target: str, loops: tuple[tuple[int, int], ...]) -> Copy:
        return Copy(Region(source, 0, 0, size, loops), Region(target, 0, 0, size, loops))

    steps = (copy("a", "staging", here), Signal(0, 0), copy("staging", "out", there if turned else here))
    launch = Launch("all", 0, (Role("all", "blocks", 4, steps),), (), "copy", 64)
    whole = (Region("out", 0, 0, size), Region("a", 0, 0, size))
    plan = Plan("copy", buffers, 1, ((launch,),), Goal("a", "out", (), 1, 1, False, pieces=(whole,)), 16, 232448)
    found = verify(plan, cache=None).counterexample
    assert (found is not None) == turned
    assert found is None or found.rule == "race"


def test_plans_of_other_sizes_share_a_proof_and_ranks_are_alike() -> None:
    plan, larger = (lower(exchange("shift", 3, scale=scale), replace(PUSH, chunk_rows=64 * scale)) for scale in (1, 2))
    assert protocol_digest(plan) == protocol_digest(larger)
    assert protocol_digest(plan) != protocol_digest(lower(exchange("shift back", 3), PUSH))
    for name in ("shift", "columns", "heads", "sequence"):
        assert rotates(lower(exchange(name, 3), PUSH))
    assert not rotates(lower(exchange("broadcast", 3), PUSH))


def test_copy_engines_copy_contiguous_bytes_alone() -> None:
    for name in NAMES:
        spec = exchange(name, 4)
        engines = {s for s in space(spec) if s.transport == "copy_engine"}
        assert bool(engines) == exchange_of(spec).contiguous == (name in ("shift", "shift back", "broadcast"))
        assert exchange_of(spec).contiguous or space(spec).rejected["engine_contiguous"] > 0
        assert space(spec).rejected["exchange_in_one_kernel"] > 0


def test_rows_of_elements_go_by_loads_and_stores() -> None:
    """Bulk copies want 16 bytes; a turn that moves the last dimension leaves rows of one element."""
    assert {s.transport for s in space(exchange("elements", 4))} == {"peer_copy"}
    assert {s.transport for s in space(exchange("sequence", 4))} == {"peer_copy", "tma"}


@pytest.mark.parametrize(("name", "schedule", "rule"), [
    ("heads", ENGINE, "a copy engine copies contiguous bytes"),
    ("shift", replace(PUSH, overlap="chunked"), "overlaps in one kernel"),
    ("shift", replace(ENGINE, direction="pull"), "has a kernel beside its copies"),
    ("shift", replace(PUSH, algorithm="two_shot"), "algorithms of shift"),
])
def test_a_schedule_without_sense_is_refused(name: str, schedule: Schedule, rule: str) -> None:
    with pytest.raises(ScheduleError, match=rule):
        lower(exchange(name, 4), schedule)
