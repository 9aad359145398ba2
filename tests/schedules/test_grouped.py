"""Plans of a dispatch with products of experts: groups, parts, and which schedules there are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import routed

from tilescale.errors import ScheduleError
from tilescale.schedules.grouped import PAD, grouped_geometry
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Grouped, Plan, Ragged, Role, Signal, Wait
from tilescale.schedules.protocol import protocol_digest
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify

BEHIND = Schedule(compute="generated", num_comm_blocks=4, block_m=64, block_n=128, block_k=64, num_stages=3, raster_group=8)
BESIDE = replace(BEHIND, overlap="fused")
ALL = (BEHIND, BESIDE, replace(BESIDE, depth=2), replace(BESIDE, depth=4))


def tasks(role: Role) -> list[str]:
    return [f"{step.task} {step.group}" if isinstance(step, Grouped) else step.task
            for step in role.steps if isinstance(step, Ragged)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.label)
def test_every_schedule_is_proved_on_every_world(schedule: Schedule, ranks: int) -> None:
    proof = verify(lower(routed("dispatch_gemm", ranks, experts=4 * ranks), schedule), cache=None)
    assert proof.ok, proof
    assert proof.stats.symmetric


def test_uneven_shards_are_proved_too() -> None:
    spec = routed("dispatch_gemm", 4, tokens=5, experts=16)  # 2, 2, 1 and none
    assert grouped_geometry(spec, 1, 4).tokens == (2, 2, 1, 0)
    assert all(verify(lower(spec, schedule), cache=None).ok for schedule in ALL)


def test_products_are_a_launch_of_their_own_or_go_on_beside() -> None:
    spec = routed("dispatch_gemm", 2, experts=8)
    first, second = lower(spec, BEHIND).ranks[0]
    assert (first.family, second.family) == ("moe", "grouped")
    assert tasks(first.roles[0]) == ["route", "total", "arrange 0", "send_group 0", "send_group 0", "place_group 0"]
    assert tasks(second.roles[0]) == ["multiply 0"]
    assert second.blocks == spec.topology.sm_share
    (launch,) = lower(spec, BESIDE).ranks[0]
    assert [(role.name, role.blocks) for role in launch.roles] == [("comm", 4), ("work", spec.topology.sm_share - 4)]


def test_a_group_is_sent_before_the_one_before_it_is_placed() -> None:
    (launch,) = lower(routed("dispatch_gemm", 2, experts=8), ALL[3]).ranks[0]
    comm, work = launch.roles
    sent = [f"send_group {group}" for group in range(4) for _ in range(2)]
    assert tasks(comm)[3:] == [*sent[:4], "place_group 0", *sent[4:6], "place_group 1", *sent[6:], "place_group 2",
                               "place_group 3"]
    assert tasks(work) == [f"multiply {group}" for group in range(4)]
    waits = [step for step in work.steps if isinstance(step, Wait)]
    told = [step.counter for step in comm.steps if isinstance(step, Signal)]
    assert [wait.value for wait in waits] == [4] * 4
    assert [wait.counter for wait in waits] == [counter for counter in told if counter in {w.counter for w in waits}]


def test_groups_touch_parts_without_a_byte_in_common_that_are_all_there_is() -> None:
    plan = lower(routed("dispatch_gemm", 2, experts=8), ALL[3])
    for buffer, writes in (("rows", "place_group"), ("out", "multiply")):
        parts = sorted((region.offset, region.end) for *_, step in plan.steps_of(0) if isinstance(step, Grouped)
                       and step.task == writes for region in step.writes if region.buffer == buffer)
        assert len(parts) == 4
        assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])]
        assert parts[-1][1] == plan.buffer(buffer).size


def test_what_a_tile_holds_is_of_one_expert() -> None:
    geo = grouped_geometry(routed("dispatch_gemm", 2, tokens=64, experts=8), 2, 4)
    assert geo.padded % PAD == 0
    assert geo.padded >= geo.room + geo.local * (PAD - 1)  # every expert has one row too many
    assert geo.sizes["rows"] == geo.padded * geo.row_bytes
    assert geo.sizes["out"] == geo.room * geo.out_row_bytes
    assert geo.keys == 8 + 2 * 2


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.label)
def test_products_with_epilogues_are_proved_on_every_world(schedule: Schedule, ranks: int) -> None:
    for then in (("silu",), ("bias", "swiglu")):
        plan = lower(routed("dispatch_gemm", ranks, experts=4 * ranks, columns=160, then=then), schedule)
        proof = verify(plan, cache=None)
        assert proof.ok, proof
        assert proof.stats.symmetric
        made = [step for *_, step in plan.steps_of(0) if isinstance(step, Grouped) and step.products]
        assert {step.then for step in made} == {then}
        assert all((step.reads[-1].buffer == "bias") == ("bias" in then) for step in made)
        columns = 80 if "swiglu" in then else 160
        assert plan.buffer("out").size == 8 * ranks * 2 * columns * 2  # rows of all tokens


BYTES = replace(BEHIND, block_k=128)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", ["tensor", "rowcol", "block"])
def test_scaled_bytes_are_proved_on_every_world(kind: str, ranks: int) -> None:
    for op in ("dispatch_gemm", "gemm_combine"):
        spec = routed(op, ranks, experts=4 * ranks, hidden=272, dtype="float8_e4m3fn", order="col", scales=kind)
        for schedule in (BYTES, replace(BYTES, overlap="fused", depth=2)):
            plan = lower(spec, schedule)
            proof = verify(plan, cache=None)
            assert proof.ok, proof
            assert proof.stats.symmetric
            sends = op == "dispatch_gemm" and kind != "tensor"
            assert [buffer.name for buffer in plan.buffers if buffer.name == "scales"] == ["scales"] * sends
            for *_, step in plan.steps_of(0):
                if isinstance(step, Grouped) and step.task in ("send_group", "multiply"):
                    reads = {region.buffer for region in step.reads}
                    assert ("scale_a" in reads) == (sends == (step.task == "send_group"))
                    assert ("scales" in reads) == (sends and step.task == "multiply")


def test_scales_that_are_not_sent_or_not_placed_are_missed() -> None:
    spec = routed("dispatch_gemm", 2, experts=8, hidden=272, dtype="float8_e4m3fn", order="col", scales="block")
    plan = lower(spec, replace(BYTES, overlap="fused", depth=2))
    launch = plan.ranks[0][0]

    def without(task: str, buffer: str) -> Plan:
        def less(step: object) -> object:
            if not isinstance(step, Grouped) or step.task != task:
                return step
            reads, writes = step.within[:len(step.reads)], step.within[len(step.reads):]
            kept = [tuple(part for part in parts if part.buffer != buffer)
                    for parts in (step.reads, step.writes, reads, writes)]
            return replace(step, reads=kept[0], writes=kept[1], within=(*kept[2], *kept[3]))

        roles = tuple(replace(role, steps=tuple(map(less, role.steps))) for role in launch.roles)  # type: ignore[arg-type]
        return replace(plan, ranks=((replace(launch, roles=roles),), *plan.ranks[1:]))

    assert verify(without("none", "scales"), cache=None).ok
    for task, buffer in (("send_group", "scale_a"), ("place_group", "scales"), ("multiply", "scales"),
                         ("multiply", "scale_b")):
        found = verify(without(task, buffer), cache=None).counterexample
        assert found is not None
        assert found.rule in ("data_flow", "race")


def test_bytes_behind_epilogues_leave_registers_for_both() -> None:
    def widest(then: tuple[str, ...]) -> int:
        spec = routed("dispatch_gemm", 2, experts=8, hidden=272, columns=400, dtype="float8_e4m3fn", order="col",
                      scales="rowcol", then=then)
        return max(s.block_n for s in space(spec))

    assert (widest(()), widest(("swiglu",))) == (192, 128)


def test_rows_have_room_for_the_scales_that_travel_with_them() -> None:
    spec = routed("dispatch_gemm", 2, tokens=64, experts=8, hidden=272, dtype="float8_e4m3fn", order="col", scales="block")
    geo, plain = (grouped_geometry(each, 2, 4) for each in (spec, replace(spec, attributes=tuple(
        pair for pair in spec.attributes if pair[0] != "scales"))))
    assert (geo.scale_bytes, plain.scale_bytes) == (12, 0)
    assert geo.sizes["scales"] == geo.padded * 12
    assert geo.head_bytes >= plain.head_bytes + 32 * 12 - 128


def test_an_epilogue_that_is_left_out_and_numbers_of_some_experts_are_refused() -> None:
    plan = lower(routed("dispatch_gemm", 2, experts=8, then=("bias", "silu")), ALL[2])
    last = plan.ranks[0][-1].roles[-1].steps[-1]
    assert isinstance(last, Grouped)
    for then, says in ((("bias",), "multiply, then bias,"), ((), "multiply of rank"), (("silu", "bias"), "silu, bias")):
        found = verify(_changed(plan, then=then), cache=None).counterexample
        assert found is not None
        assert found.rule == "data_flow"
        assert says in str(found) or "nothing whole" in str(found)
    part = replace(last.reads[-1], size=16)
    for broken in (_changed(plan, reads=(*last.reads[:-1], part)), _changed(plan, reads=last.reads[:-1],
                                                                           within=(*last.within[:3], last.within[-1]))):
        found = verify(broken, cache=None).counterexample
        assert found is not None
        assert found.rule in ("extras", "data_flow")


def test_plans_with_other_epilogues_have_proofs_of_their_own() -> None:
    made = [lower(routed("dispatch_gemm", 2, experts=8, then=then), ALL[2]) for then in ((), ("silu",), ("gelu",))]
    assert len({protocol_digest(plan) for plan in made}) == 3


def _changed(plan: Plan, **changes: object) -> Plan:
    """The last step of rank 0 with other fields."""
    launch = plan.ranks[0][-1]
    role = launch.roles[-1]
    steps = (*role.steps[:-1], replace(role.steps[-1], **changes))  # type: ignore[type-var]
    roles = (*launch.roles[:-1], replace(role, steps=steps))
    return replace(plan, ranks=((*plan.ranks[0][:-1], replace(launch, roles=roles)), *plan.ranks[1:]))


def test_a_part_outside_of_its_range_and_a_group_that_is_none_are_refused() -> None:
    plan = lower(routed("dispatch_gemm", 2, experts=8), ALL[2])
    last = plan.ranks[0][-1].roles[-1].steps[-1]
    assert isinstance(last, Grouped)
    elsewhere = (replace(last.within[0], size=16), *last.within[1:])
    for broken in (_changed(plan, group=2), _changed(plan, within=()), _changed(plan, within=elsewhere)):
        found = verify(broken, cache=None).counterexample
        assert found is not None
        assert found.rule == "structure"
        assert "within which range it lies" in str(found)


def test_a_wait_for_an_earlier_group_is_a_race() -> None:
    plan = lower(routed("dispatch_gemm", 2, experts=8), ALL[2])
    launch = plan.ranks[0][0]
    work = launch.roles[1]
    first = next(step for step in work.steps if isinstance(step, Wait))
    steps = tuple(first if isinstance(step, Wait) else step for step in work.steps)
    spoiled = replace(launch, roles=(launch.roles[0], replace(work, steps=steps)))
    found = verify(replace(plan, ranks=((spoiled,), *plan.ranks[1:])), cache=None).counterexample
    assert found is not None
    assert found.rule == "race"


def test_spaces_say_what_they_leave_out() -> None:
    found = space(routed("dispatch_gemm", 2, experts=12))  # six experts a rank
    assert {s.direction for s in found} == {"push"}
    assert {s.compute for s in found} == {"generated"}
    assert {(s.overlap, s.depth) for s in found} == {("none", 1), ("fused", 1), ("fused", 2)}
    assert found.rejected["grouped_pushes"] > 0
    assert found.rejected["grouped_generated"] > 0
    assert found.rejected["depth_within_transfers"] > 0


@pytest.mark.parametrize(("schedule", "says"), [
    (replace(BEHIND, direction="pull"), "is pushed, and multiplied by a generated kernel"),
    (replace(BEHIND, compute="library"), "is pushed, and multiplied by a generated kernel"),
    (replace(BESIDE, depth=4), "cut into equal groups; got: depth=4, 6 experts a rank"),
    (replace(BESIDE, overlap="chunked", chunk_rows=64), "moved in one kernel"),
])
def test_what_makes_no_sense_is_refused(schedule: Schedule, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        lower(routed("dispatch_gemm", 2, experts=12), schedule)
