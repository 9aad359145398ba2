"""Plans of dispatch and combine: what every rank does, how much memory it takes, and which schedules there are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import routed

from tilescale.errors import ScheduleError
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Plan, Ragged, Signal, Wait
from tilescale.schedules.ragged import ragged_geometry
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify

PUSH = Schedule(compute="generated", num_comm_blocks=4)
PULL = replace(PUSH, direction="pull")
BESIDE = [replace(schedule, overlap="fused") for schedule in (PUSH, PULL)]
ALL = [("dispatch", "ordinary", PUSH), ("dispatch", "ordinary", PULL), ("dispatch", "symmetric", PULL),
       ("combine", "ordinary", PUSH), ("combine", "symmetric", PULL),
       *(("dispatch", "ordinary", schedule) for schedule in BESIDE),
       *(("combine", "symmetric", schedule) for schedule in BESIDE)]


def tasks(plan: Plan, rank: int = 0) -> list[str]:
    return [step.task for *_, step in plan.steps_of(rank) if isinstance(step, Ragged)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(("op", "inputs", "schedule"), ALL, ids=lambda value: getattr(value, "label", value))
def test_every_schedule_is_proved_on_every_world(op: str, inputs: str, schedule: Schedule, ranks: int) -> None:
    proof = verify(lower(routed(op, ranks, inputs=inputs), schedule), cache=None)
    assert proof.ok, proof
    assert proof.stats.symmetric


def test_uneven_shards_are_proved_too() -> None:
    for op in ("dispatch", "combine"):
        spec = routed(op, 4, tokens=5)  # 2, 2, 1 and none
        assert ragged_geometry(spec, "push", 4).tokens == (2, 2, 1, 0)
        assert verify(lower(spec, PUSH), cache=None).ok
        assert {s.direction for s in space(spec)} == {"push"}


def test_a_dispatch_numbers_then_sends_then_places() -> None:
    plan = lower(routed("dispatch", 3), PUSH)
    assert tasks(plan) == ["route", "total", "send", "send", "send", "place"]
    sent = [step.peer for *_, step in plan.steps_of(1) if isinstance(step, Ragged) and step.task == "send"]
    assert sent == [2, 0, 1]  # the next one first, the own segment last
    waits = [step for *_, step in plan.steps_of(0) if isinstance(step, Wait)]
    assert {wait.value for wait in waits} == {4}
    assert len(waits) == 1 + 3


def test_a_combine_gives_rows_before_it_numbers_its_own_entries() -> None:
    assert tasks(lower(routed("combine", 3), PUSH)) == ["tally", "return", "return", "route", "total", "weigh"]


def test_one_gang_gives_while_the_other_sms_take() -> None:
    spec = routed("dispatch", 4)
    (launch,) = lower(spec, BESIDE[0]).ranks[0]
    assert [(role.name, role.blocks) for role in launch.roles] == [("comm", 4), ("work", spec.topology.sm_share - 4)]
    comm, work = (tuple(s.task for s in role.steps if isinstance(s, Ragged)) for role in launch.roles)
    assert (comm, work) == (("route", "total", *["send"] * 4), ("place",))
    (launch,) = lower(routed("combine", 4), BESIDE[0]).ranks[0]
    comm, work = (tuple(s.task for s in role.steps if isinstance(s, Ragged)) for role in launch.roles)
    assert (comm, work) == (("tally", *["return"] * 3), ("tally", "route", "total", "weigh"))
    numbering = [step.value for step in launch.roles[1].steps if isinstance(step, Wait)]
    assert numbering[0] == spec.topology.sm_share - 4  # its own gang has met


def test_who_reads_in_place_says_when_it_has() -> None:
    plan = lower(routed("combine", 3, inputs="symmetric"), PULL)
    released = plan.counters - 1
    steps = [step for *_, step in plan.steps_of(0)]
    assert [s.rank for s in steps if isinstance(s, Signal) and s.counter == released] == [1, 2]
    assert steps[-1] == Wait(released, 8)


def test_segments_have_room_for_all_that_could_come() -> None:
    spec = routed("dispatch", 4, tokens=64, hidden=128, experts=8, top_k=2)
    push, pull = (ragged_geometry(spec, direction, 4) for direction in ("push", "pull"))
    assert push.head_bytes >= 4 * (2 + 1 + 16 * 3)
    assert push.segment_bytes - push.head_bytes >= 16 * 256 > pull.segment_bytes - pull.head_bytes == 0
    assert push.sizes["inbox"] == 4 * push.segment_bytes
    assert push.sizes["out"] == 64 * 2 * 256
    back = ragged_geometry(routed("combine", 4, tokens=64, hidden=128, experts=8, top_k=2), "push", 4)
    assert back.segment_bytes - back.head_bytes >= 16 * 2 * 256


def test_what_is_expected_follows_the_skew() -> None:
    spec = routed("dispatch", 2, tokens=2000, experts=4, top_k=1, routing="histogram:3,0,1,0")
    geo = ragged_geometry(spec, "push", 4)
    assert [geo.expected_rows(0, holder) for holder in (0, 1)] == [750, 250]
    wide = ragged_geometry(routed("dispatch", 2, tokens=2000, experts=4, top_k=2), "push", 4)
    assert wide.expected_tokens(0, 1) == 750  # once, also where both experts are there
    assert wide.expected_rows(0, 1) == 1000


def test_spaces_say_what_they_leave_out() -> None:
    ordinary, symmetric = (space(routed("combine", 4, inputs=inputs)) for inputs in ("ordinary", "symmetric"))
    assert {s.direction for s in ordinary} == {"push"}
    assert ordinary.rejected["ragged_pull"] > 0
    assert {s.direction for s in symmetric} == {"push", "pull"}
    assert {(s.transport, s.overlap) for s in symmetric} == {("peer_copy", "none"), ("peer_copy", "fused")}
    assert {(s.chunk_rows, s.depth, s.chunk_order, s.copy_scope) for s in symmetric} == {(0, 1, "peer_major", "block")}
    many = space(routed("dispatch", 4, experts=4096, tokens=64))
    assert many.feasible == 0
    assert many.rejected["ragged_shared_memory"] > 0


@pytest.mark.parametrize(("schedule", "says"), [
    (replace(PUSH, overlap="chunked", chunk_rows=64), "moved in one kernel"),
    (replace(PUSH, transport="tma"), "moved in one kernel"),
    (replace(PUSH, copy_scope="warp"), "warps move rows"),
    (replace(PUSH, overlap="fused", num_comm_blocks=4096), "beside the one that sends"),
    (PULL, "pulled where peers can read them"),
])
def test_what_makes_no_sense_is_refused(schedule: Schedule, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        lower(routed("combine", 4), schedule)
