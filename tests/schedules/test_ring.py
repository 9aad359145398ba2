"""Rings: gathers and sums are proved on any number of ranks, and what makes them right is found where it is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from mutations import changed
from support import ag_gemm, all_gather, gemm_rs, reduction, scaled

from tilescale.costmodel.costs import costs
from tilescale.costmodel.simulate import simulate
from tilescale.errors import ScheduleError
from tilescale.schedules.algorithms import ALGORITHMS
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Copy, Gemm, Plan, Step, Sum, Wait
from tilescale.schedules.protocol import protocol_digest, rotates
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec
from tilescale.spec.views import FullRow

RING = Schedule(algorithm="ring", overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4)
NONE = replace(RING, overlap="none", chunk_rows=0, depth=1)
LIBRARY = replace(NONE, compute="library")
RESTRICTED = {"algorithm": ["ring"]}


def specs(ranks: int) -> list[Spec]:
    return [
        all_gather((128 * ranks, 256), ranks), ag_gemm((128 * ranks, 128 * ranks, 128), ranks),
        reduction((100, 24), ranks, to=FullRow), reduction((256 * ranks, 24), ranks), reduction((7, 3), ranks),
        gemm_rs((96 * ranks, 256, 128 * ranks), ranks), gemm_rs((2, 256, 128 * ranks), ranks),
        gemm_rs((200, 256, 128 * ranks), ranks, partial_dtype="bfloat16"),
        gemm_rs((200, 256, 128 * ranks), ranks, out="Replicate"),
        reduction((100, 24), ranks, to=FullRow, then=("bias", "accumulate")),
        reduction((256 * ranks, 24), ranks, then=("accumulate",)),
        gemm_rs((200, 256, 128 * ranks), ranks, out="Replicate", then=("bias", "silu")),
        scaled(gemm_rs((200, 256, 128 * ranks), ranks, order="col", dtype="float8_e4m3fn", out_dtype="bfloat16"), "block"),
    ]


def structures(spec: Spec) -> list[Schedule]:
    """One schedule of each kind of plan."""
    found: dict[tuple[object, ...], Schedule] = {}
    for s in space(spec, RESTRICTED):
        found.setdefault((s.transport, s.overlap, s.compute, s.depth, s.chunk_order), s)
    return list(found.values())


@pytest.mark.parametrize("ranks", [3, 4, 6, 8])
def test_every_kind_of_ring_is_proved(ranks: int) -> None:
    for spec in specs(ranks):
        schedules = structures(spec)
        assert schedules, spec.label
        for schedule in schedules:
            proof = verify(lower(spec, schedule), cache=None)
            assert proof.ok, f"{spec.label} {schedule.label}: {proof.counterexample}"


def test_two_ranks_pass_nothing_on() -> None:
    for spec in (*specs(2)[:3], specs(2)[5]):
        found = space(spec, RESTRICTED)
        assert found.feasible == 0
        assert found.rejected["ring_passes_on"] > 0
        schedule = LIBRARY if spec.operation.compute == "gemm" else NONE
        assert verify(lower(spec, schedule), cache=None).ok


def test_every_link_between_neighbours_carries_everything_once_and_no_other_anything() -> None:
    for spec in (all_gather((512, 256), 4), ag_gemm((512, 512, 128), 4)):
        schedule = RING if spec.operation.compute is None else LIBRARY
        plan = lower(spec, schedule)
        puts = [(rank, step.dst.rank, step.src.size) for rank in range(4) for *_, step in plan.steps_of(rank)
                if isinstance(step, Copy) and step.kind(rank) == "put"]
        assert {(to - rank) % 4 for rank, to, _ in puts} == {1}
        assert sum(size for rank, _, size in puts if rank == 2) == 3 * spec.inputs[0].nbytes // 4


def test_a_sum_on_its_way_is_float32_and_takes_in_every_rank_in_the_order_of_the_ring() -> None:
    plan = lower(reduction((256, 24), 4), NONE)
    sums = [(rank, step) for rank in range(4) for *_, step in plan.steps_of(rank) if isinstance(step, Sum)]
    for rank, step in sums:
        assert step.srcs[-1].rank == rank
        if step.dst.buffer == "inbox":
            assert (step.out, step.dst.rank) == ("float32", (rank + 1) % 4)
        else:
            assert (step.out, step.carried) == ("bfloat16", "float32")
    firsts = {step.dst.offset: rank for rank, step in sums if len(step.srcs) == 1}
    assert [firsts[offset] for offset in sorted(firsts)] == [1, 2, 3, 0]  # behind owners 0, 1, 2, 3


def test_the_model_charges_a_sum_that_is_stored_at_the_next_rank_to_the_links() -> None:
    spec = reduction((4096, 64), 4, to=FullRow)
    timeline = simulate(lower(spec, NONE), costs(spec, NONE))
    assert timeline.sent_bytes == (3 * 1024 * 64 * 4,) * 4
    gathered = all_gather((4096, 64), 4)
    assert simulate(lower(gathered, NONE), costs(gathered, NONE)).sent_bytes == (3 * 1024 * 64 * 2,) * 4


def _in_bfloat16(step: Step) -> Step:
    """What is carried is rounded at every rank."""
    def halved(region: object) -> object:
        return replace(region, offset=region.offset // 2, size=region.size // 2)  # type: ignore[attr-defined,type-var]

    if not isinstance(step, Sum):
        return step
    sources = tuple(halved(s) if s.buffer == "inbox" else s for s in step.srcs)
    target = halved(step.dst) if step.dst.buffer == "inbox" else step.dst
    return replace(step, srcs=sources, dst=target, out="bfloat16", carried="bfloat16" if step.carried else "")


def _as_parts(step: Step) -> Step:
    """A carried sum is added as if it were a part."""
    return replace(step, carried="") if isinstance(step, Sum) else step


def _add_twice(step: Step) -> Step:
    return replace(step, srcs=(*step.srcs, step.srcs[-1])) if isinstance(step, Sum) else step


def _add_less(step: Step) -> Step:
    return replace(step, srcs=step.srcs[:1]) if isinstance(step, Sum) and step.dst.buffer == "inbox" else step


def _of_no_epilogue(step: Step) -> Step:
    """What is complete is not behind the epilogues."""
    return replace(step, then=(), extras=()) if isinstance(step, Sum) and step.then else step


def _too_early(step: Step) -> Step:
    """Sums on their way have had them."""
    return replace(step, then=("bias",)) if isinstance(step, Sum) and step.dst.buffer == "inbox" else step


def _never_wait(step: Step) -> Step | None:
    return None if isinstance(step, Wait) else step


def _product_instead(step: Step) -> Step:
    """The operand is added where its product should be."""
    if not (isinstance(step, Sum) and len(step.srcs) == 1):
        return step
    return replace(step, srcs=(replace(step.srcs[0], buffer="a"),))


def one_version(plan: Plan) -> Plan:
    return replace(plan, buffers=tuple(replace(b, versions=1) for b in plan.buffers))


SUMMED, FLOATS = reduction((96, 24), 3, to=FullRow), reduction((96, 24), 3, to=FullRow, dtype="float32")
PRODUCT = gemm_rs((96, 64, 96), 3, out_dtype="float32")
BEHIND = reduction((96, 24), 3, to=FullRow, then=("bias",))
FAULTS: dict[str, tuple[Spec, Schedule, Callable[[Plan], Plan], set[str]]] = {
    "one inbox for all calls": (SUMMED, RING, one_version, {"race"}),
    "one buffer for gathered shards": (all_gather((384, 24), 3), RING, one_version, {"race"}),
    "no waits": (SUMMED, NONE, lambda p: changed(p, _never_wait), {"race"}),
    "passed on before it is there": (all_gather((384, 24), 3), NONE, lambda p: changed(p, _never_wait), {"race"}),
    "rounded on its way": (SUMMED, NONE, lambda p: changed(p, _in_bfloat16), {"data_flow"}),
    "a carried sum as a part": (FLOATS, NONE, lambda p: changed(p, _as_parts), {"data_flow"}),
    "a part twice": (SUMMED, NONE, lambda p: changed(p, _add_twice), {"data_flow"}),
    "parts left out": (FLOATS, NONE, lambda p: changed(p, _add_less), {"data_flow"}),
    "epilogues left out": (BEHIND, NONE, lambda p: changed(p, _of_no_epilogue), {"data_flow"}),
    "epilogues on the way": (BEHIND, NONE, lambda p: changed(p, _too_early), {"data_flow"}),
    "an operand for a product": (PRODUCT, LIBRARY, lambda p: changed(p, _product_instead), {"data_flow", "bounds"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    spec, schedule, change, rules = FAULTS[name]
    plan = lower(spec, schedule)
    assert verify(plan, cache=None).ok
    found = verify(change(plan), cache=None).counterexample
    assert found is not None
    assert found.rule in rules, found


def test_epilogues_of_whole_rows_do_not_go_round() -> None:
    for then in ("residual_rmsnorm", "add_rmsnorm"):
        found = space(reduction((256, 24), 4, then=(then,)), RESTRICTED)
        assert found.feasible == 0
        assert found.rejected["whole_rows_at_owner"] > 0
    assert space(reduction((256, 24), 4, then=("bias",)), RESTRICTED).feasible > 0


def test_ranks_are_alike_and_sizes_share_a_proof() -> None:
    small, large = (lower(reduction((rows, 24), 4, to=FullRow), replace(RING, chunk_rows=chunk))
                    for rows, chunk in ((512, 64), (1024, 128)))
    assert rotates(small)
    assert protocol_digest(small) == protocol_digest(large)
    halves = lower(reduction((512, 24), 4, to=FullRow, dtype="float32"), RING)
    assert protocol_digest(halves) != protocol_digest(small)  # one is rounded at the end, the other is not
    assert rotates(lower(all_gather((512, 24), 4), RING))


def test_products_go_round_when_they_are_complete() -> None:
    plan = lower(gemm_rs((96, 64, 96), 3), LIBRARY)
    assert [launch.family for launch in plan.ranks[0]] == ["library", "sum"]
    assert sum(isinstance(step, Gemm) for *_, step in plan.steps_of(0)) == 1


@pytest.mark.parametrize(("spec", "schedule", "rule"), [
    (all_gather(), replace(RING, direction="pull"), "every rank sends to the next one"),
    (reduction(), replace(RING, direction="pull"), "every rank sends to the next one"),
    (reduction(), replace(RING, transport="tma"), "stored at the next rank"),
    (gemm_rs(), replace(LIBRARY, overlap="chunked", chunk_rows=256), "when they are complete"),
    (reduction(then=("residual_rmsnorm",)), NONE, "by elements, not by rows"),
])
def test_a_ring_without_sense_is_refused(spec: Spec, schedule: Schedule, rule: str) -> None:
    with pytest.raises(ScheduleError, match=rule):
        lower(spec, schedule)


@pytest.mark.parametrize("order", ["peer_major", "chunk_major"])
def test_what_a_rank_sends_is_what_the_next_one_expects(order: str) -> None:
    ring = ALGORITHMS["ring"]
    for rank in range(5):
        sent = ring.outgoing(rank, 5, 3, order)
        assert sent == ring.incoming((rank + 1) % 5, 5, 3, order)
        assert len(set(sent)) == 12
