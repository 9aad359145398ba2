"""Parts of a sum that travel as packets: who may choose it, what is proved, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support import ag_gemm, all_gather, gemm_rs, reduction

from tilescale.errors import ScheduleError
from tilescale.schedules.constraints import MAX_IN_PACKETS, first_broken
from tilescale.schedules.knob import canonical
from tilescale.schedules.lower import lower
from tilescale.schedules.packets import of_block
from tilescale.schedules.plan import Copy, GetPackets, Plan, PutPackets, Role, Signal, Step, Sum, SumPackets
from tilescale.schedules.protocol import protocol_digest
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullRow

LL = Schedule(algorithm="one_shot", compute="generated", num_comm_blocks=4, protocol="ll")
TWO = replace(LL, algorithm="two_shot")


def summed(ranks: int, **more: object) -> Spec:
    return reduction((4, 4096), ranks, on=Topology.shared_gpu(ranks), **more)  # type: ignore[arg-type]


def changed(plan: Plan, edit: Callable[[Role], Role], ranks: tuple[int, ...] | None = None) -> Plan:
    """The plan with the one role of some ranks, or of all, edited."""
    launches = []
    for rank, (launch,) in enumerate(plan.ranks):
        role = launch.roles[0] if ranks is not None and rank not in ranks else edit(launch.roles[0])
        launches.append((replace(launch, roles=(role,)),))
    return replace(plan, ranks=tuple(launches))


def refused(plan: Plan) -> str:
    proof = verify(plan, cache=None)
    assert proof.counterexample is not None, proof
    return proof.counterexample.rule


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_one_launch_without_a_counter_is_proved_over_consecutive_calls(ranks: int) -> None:
    plan = lower(summed(ranks), LL)
    proof = verify(plan, cache=None)
    assert proof.ok, proof
    assert proof.stats.symmetric
    assert [len(launches) for launches in plan.ranks] == [1] * ranks
    assert {type(step) for step in plan.ranks[0][0].steps} == {PutPackets, SumPackets}
    assert not any(map(any, (plan.counter_totals(rank) for rank in range(ranks))))
    inbox = plan.buffer("inbox")
    assert (inbox.packets, inbox.zeroed, inbox.versions, inbox.memory) == (True, True, 2, 2 * ranks * 4 * 4096 * 2)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_one_version_is_a_race_between_calls_of_one_shot(ranks: int) -> None:
    plan = lower(summed(ranks), LL)
    assert refused(replace(plan, buffers=tuple(replace(b, versions=1) for b in plan.buffers))) == "race"


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_two_shots_are_proved_with_one_version(ranks: int) -> None:
    plan = lower(reduction((6, 512 * ranks), ranks, on=Topology.shared_gpu(ranks)), TWO)
    proof = verify(plan, cache=None)
    assert proof.ok, proof
    assert proof.stats.symmetric
    kinds = [type(step) for step in plan.ranks[0][0].steps]
    assert kinds == [*[PutPackets] * (ranks - 1), SumPackets, *[GetPackets] * (ranks - 1)]
    assert {b.name: (b.packets, b.zeroed, b.versions) for b in plan.buffers if b.role == "workspace"} == {
        "inbox": (True, True, 1), "result": (True, True, 1)}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_gathers_and_sums_of_owners_are_proved_with_two_versions(ranks: int) -> None:
    on, direct = Topology.shared_gpu(ranks), replace(LL, algorithm="direct")
    kinds = {all_gather((4 * ranks, 512), ranks, on=on): [PutPackets, Copy, *[GetPackets] * (ranks - 1)],
             reduction((4 * ranks, 512), ranks, to=FullRow, on=on): [*[PutPackets] * (ranks - 1), SumPackets]}
    for spec, wanted in kinds.items():
        plan = lower(spec, direct)
        proof = verify(plan, cache=None)
        assert proof.ok, proof
        assert [type(step) for step in plan.ranks[0][0].steps] == wanted
        assert refused(replace(plan, buffers=tuple(replace(b, versions=1) for b in plan.buffers))) == "race"


@pytest.mark.parametrize(("edit", "rule"), [
    (lambda put, total, get: (put, replace(total, others=()), get), "data_flow"),
    (lambda put, total, get: (put, get, total), "deadlock"),
    (lambda put, total, get: (put, total), "coverage"),
    (lambda put, total, get: (put, total, replace(get, src=replace(get.src, offset=(get.src.offset + 2048) % 4096))),
     "data_flow"),
    (lambda put, total, get: (put, total, Copy(get.src, get.dst)), "packets"),
    (lambda put, total, get: (put, replace(total, others=(total.dst,)), get), "packets"),
    (lambda put, total, get: (replace(put, src=replace(put.src, offset=(put.src.offset + 2048) % 4096)), total, get),
     "data_flow"),
], ids=["nothing handed out", "fetched first", "not fetched", "fetched of another", "plain loads", "handed to itself",
        "rows of another"])
def test_two_shots_that_hand_out_wrong_are_refused(edit: Callable[..., tuple[Step, ...]], rule: str) -> None:
    plan = lower(reduction((1, 2048), 2, on=Topology.shared_gpu(2)), TWO)
    assert refused(changed(plan, lambda role: replace(role, steps=edit(*role.steps)))) == rule


def test_blocks_wait_for_blocks_of_their_number_alone() -> None:
    plan = lower(summed(3), LL)
    fewer = changed(plan, lambda role: replace(role, blocks=3), ranks=(1,))
    proof = verify(fewer, cache=None)
    assert proof.counterexample is not None
    assert proof.counterexample.rule == "deadlock"
    assert "packets inbox[" in proof.counterexample.message
    assert verify(changed(plan, lambda role: replace(role, blocks=3)), cache=None).ok


def test_all_ranks_that_wait_before_they_send_wait_for_ever() -> None:
    plan = lower(summed(3), LL)
    assert refused(changed(plan, lambda role: replace(role, steps=role.steps[::-1]))) == "deadlock"


def edited(edit: Callable[[PutPackets, SumPackets], tuple[Step, ...]]) -> Callable[[Role], Role]:
    def apply(role: Role) -> Role:
        put, total = role.steps
        assert isinstance(put, PutPackets)
        assert isinstance(total, SumPackets)
        return replace(role, steps=edit(put, total))

    return apply


@pytest.mark.parametrize(("edit", "rule"), [
    (lambda put, total: (put, total, Signal(0, 0)), "packets"),
    (lambda put, total: (*(Copy(put.src, target) for target in put.targets), total), "packets"),
    (lambda put, total: (put, Sum(total.srcs, total.dst, total.element, total.out)), "packets"),
    (lambda put, total: (replace(put, others=put.others[:-1]), total), "data_flow"),
    (lambda put, total: (replace(put, others=(*put.others[:-1], put.dst)), total), "data_flow"),
    (lambda put, total: (replace(put, src=replace(put.src, size=put.src.size - 8)), total), "copy_size"),
    (lambda put, total: (put, replace(total, srcs=(total.srcs[1], *total.srcs[1:]))), "race"),
], ids=["a signal beside", "plain stores", "plain loads", "a peer less", "a peer twice", "sizes", "a peer not awaited"])
def test_what_packets_do_not_order_is_refused(edit: Callable[..., tuple[Step, ...]], rule: str) -> None:
    plan = lower(summed(4), LL)
    assert refused(changed(plan, edited(edit))) == rule


@pytest.mark.parametrize("change", [{"zeroed": False}, {"peer_visible": False}, {"role": "input"}, {"size": 12}])
def test_a_buffer_of_packets_begins_without_marks_where_peers_see_it(change: dict[str, object]) -> None:
    plan = lower(summed(2), LL)
    buffers = tuple(replace(b, **change) if b.packets else b for b in plan.buffers)  # type: ignore[arg-type]
    assert refused(replace(plan, buffers=buffers)) == "packets"


def test_what_packets_go_with_is_seen_by_no_peer() -> None:
    plan = lower(summed(2), LL)
    buffers = tuple(replace(b, peer_visible=True) if b.role == "output" else b for b in plan.buffers)
    assert refused(replace(plan, buffers=buffers)) == "packets"


def test_parts_of_blocks_are_disjoint_and_all() -> None:
    (launch,) = lower(reduction((37, 140), 3, on=Topology.shared_gpu(3)), LL).ranks[0]
    put, total = launch.steps
    for blocks in (1, 2, 3, 32, 5000):
        parts = [of_block(put, block, blocks) for block in range(blocks)]
        found = [part.dst for part in parts if isinstance(part, PutPackets)]
        assert [region.offset for region in found] == [put.dst.offset + sum(r.size for r in found[:i])
                                                       for i, region in enumerate(found)]
        assert sum(region.size for region in found) == put.dst.size
        sums = [of_block(total, block, blocks) for block in range(blocks)]
        assert [part.srcs[0] for part in parts_of(sums)] == [part.src for part in parts if isinstance(part, PutPackets)]


def parts_of(found: list[Step | None]) -> list[SumPackets]:
    return [part for part in found if isinstance(part, SumPackets)]


def test_gangs_of_several_blocks_share_a_proof() -> None:
    digests = {protocol_digest(lower(summed(4), replace(LL, num_comm_blocks=blocks))) for blocks in (2, 4, 32)}
    assert len(digests) == 1
    assert protocol_digest(lower(summed(4), replace(LL, num_comm_blocks=1))) not in digests
    assert protocol_digest(lower(summed(4), replace(LL, protocol="simple"))) not in digests


# -- who proposes it ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("spec", "algorithms"), [
    (summed(4), ("one_shot", "two_shot")), (summed(4, to=FullRow), ("direct",)),
    (all_gather((16, 512), 4, on=Topology.shared_gpu(4)), ("direct",)),
], ids=lambda value: value.label if isinstance(value, Spec) else "")
def test_spaces_of_gathers_and_sums_have_it_and_no_others(spec: Spec, algorithms: tuple[str, ...]) -> None:
    found = [s for s in space(spec) if s.protocol == "ll"]
    assert {(s.algorithm, s.direction, s.transport, s.overlap) for s in found} == {
        (algorithm, "push", "peer_copy", "none") for algorithm in algorithms}
    assert {s.num_comm_blocks for s in found} >= {2, 4, 8, 16}
    assert all(s.label.endswith(" ll") for s in found)
    on = Topology.shared_gpu(4)
    others = (gemm_rs((128, 128, 256), 4, out="Replicate", on=on), ag_gemm((256, 256, 64), 4, on=on))
    assert {s.protocol for spec in others for s in space(spec)} == {"simple"}


def test_schedules_from_before_keep_their_digest_and_label() -> None:
    simple = replace(LL, protocol="simple")
    values = simple.as_dict()
    del values["protocol"]
    assert Schedule.from_dict(values).digest == simple.digest != LL.digest
    assert "simple" not in simple.label
    assert canonical(summed(2), replace(LL, direction="pull")).protocol == "simple"


@pytest.mark.parametrize(("spec", "constraint"), [
    (reduction((1, 3), 2, on=Topology.shared_gpu(2)), "packets_whole"),
    (reduction((0, 8), 2, on=Topology.shared_gpu(2)), "packets_whole"),
    (reduction((MAX_IN_PACKETS // 16 + 2, 8), 2, on=Topology.shared_gpu(2)), "packets_small"),
    (reduction((4, 64), 2, on=Topology.shared_gpu(2), then=("residual_rmsnorm",)), "packets_by_themselves"),
    (reduction((7, 8), 3, on=Topology.shared_gpu(3)), "packets_whole"),  # shards of 3, 2 and 2 pieces
], ids=lambda value: value.label if isinstance(value, Spec) else value)
def test_parts_that_do_not_suit_packets_are_ruled_out(spec: Spec, constraint: str) -> None:
    broken = first_broken(spec, TWO)
    assert broken is not None
    assert broken.name == constraint
    assert space(spec).rejected[constraint] > 0


@pytest.mark.parametrize(("spec", "schedule", "message"), [
    (summed(2), replace(LL, protocol="ll128"), r"protocol is one of simple, ll, credit; got: 'll128'"),
    (summed(2), replace(LL, direction="pull"), r"and store at their peers; got: all_reduce, direction='pull'"),
    (summed(3, to=FullRow), replace(LL, algorithm="ring"), r"got: reduce_scatter, algorithm='ring'"),
    (gemm_rs((128, 128, 256), 2, out="Replicate"), replace(LL, compute="library"), "store at their peers; got: gemm_ar"),
    (reduction((1, 3), 2), LL, "whole packets of 8 bytes"),
    (all_gather((7, 8), 3), replace(LL, algorithm="direct"), "whole packets of 8 bytes, as much for all"),
    (reduction((7, 8), 3), TWO, "as much for all, of two shots in sums of the type of parts"),
    (reduction((4, 64), 2, then=("residual_rmsnorm",)), LL, "added up by themselves, not by rows"),
], ids=["name", "pull", "ring", "product", "six bytes", "uneven shards", "uneven", "rows"])
def test_schedules_that_make_no_sense_are_refused(spec: Spec, schedule: Schedule, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        lower(spec, schedule)
