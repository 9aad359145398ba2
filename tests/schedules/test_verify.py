"""Right plans are proved; each planted fault is refused by the rule that names it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade import ROW, chunked, drop, edit, find, fused_push, gemm, pull, ring

from tilescale import canon
from tilescale.codegen.compile import INCLUDE
from tilescale.schedules.boxes import Grids
from tilescale.schedules.footprint import places
from tilescale.schedules.neighbours import RULE, TOGETHER, reads_a_neighbour
from tilescale.schedules.plan import Buffer, Copy, Gemm, Goal, Launch, Plan, Region, Role, Signal, Step, Wait
from tilescale.schedules.story import Counterexample, Proof
from tilescale.schedules.verify import LIMITS, verify

RIGHT = {
    "fused push": fused_push(2),
    "fused push of chunks": fused_push(4, chunks=3),
    "fused push, three ranks": fused_push(3),
    "pull from staging": pull(4),
    "pull from symmetric operands": pull(3, staged=False),
    "ring": ring(4),
    "ring of blocks": ring(3, blocks=2),
    "chunked on streams": chunked(4),
    "one rank": fused_push(1),
}


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_right_plans_are_proved(name: str) -> None:
    proof = verify(RIGHT[name], cache=None)
    assert proof.ok, str(proof)
    assert proof.counterexample is None
    assert proof.stats.operations > 0
    assert len(proof.digest) == 16


def refused(plan: Plan, rule: str) -> Counterexample:
    proof = verify(plan, cache=None)
    assert not proof.ok
    assert proof.counterexample is not None
    assert proof.counterexample.rule == rule, str(proof)
    assert str(proof.counterexample).startswith(rule + ": ")
    return proof.counterexample


def test_dropped_signal_is_a_deadlock() -> None:
    plan = fused_push(4)
    found = refused(edit(plan, 1, find(plan, 1, Signal), drop), "deadlock")
    # Rank 1 put to rank 2 first, whose wait for that shard is now hopeless.
    assert (found.rank, found.launch, found.role, found.call) == (2, "fused", "compute", 0)
    assert (found.counter, found.counter_rank, found.found, found.wanted) == (1, 2, 0, 2)
    numbered = {number: step for number, _, _, step in plan.steps_of(2)}
    assert numbered[found.step] == Wait(1, 2)
    assert "rank 2 launch fused" in found.timeline


def test_dropped_signal_of_all_ranks_is_a_deadlock() -> None:
    plan = fused_push(3)
    for rank in range(3):
        plan = edit(plan, rank, find(plan, rank, Signal), drop)
    refused(plan, "deadlock")


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_wait_one_long_is_a_deadlock(blocks: int) -> None:
    plan = fused_push(2, comm=blocks)
    found = refused(edit(plan, 0, find(plan, 0, Wait), lambda w: [replace(w, value=w.value + 1)]), "deadlock")
    # The peer's next call feeds the wait until the last call, which nothing follows.
    assert (found.rank, found.call, found.found, found.wanted) == (0, 2, 3 * blocks, 3 * blocks + 1)


@pytest.mark.parametrize("blocks", [2, 5])
def test_wait_one_short_is_a_race_with_the_last_block(blocks: int) -> None:
    plan = fused_push(4, comm=blocks)
    found = refused(edit(plan, 3, find(plan, 3, Wait), lambda w: [replace(w, value=w.value - 1)]), "race")
    assert {place.role for place in found.places} == {"comm", "compute"}
    assert (found.buffer, found.buffer_rank) == ("gather", 3)
    assert found.size == 2 * ROW
    assert (found.counter_rank, found.wanted, found.found) == (3, blocks - 1, blocks - 1)
    assert "while still pending" in found.timeline


def test_wait_one_short_of_all_ranks_is_a_race() -> None:
    plan = fused_push(4)
    for rank in range(4):
        plan = edit(plan, rank, find(plan, rank, Wait), lambda w: [replace(w, value=w.value - 1)])
    refused(plan, "race")


def test_dropped_wait_is_a_race() -> None:
    plan = fused_push(2, comm=1)
    refused(edit(plan, 0, find(plan, 0, Wait), drop), "race")


def test_cumulative_counter_lets_a_fast_block_stand_in_for_a_slow_one() -> None:
    # One counter for two chunks: 2 * blocks signals may come from fewer blocks than have put chunk one.
    def plan(blocks: int) -> Plan:
        base = fused_push(2, chunks=2, comm=blocks)
        for rank in range(2):
            for number, _, _, step in base.steps_of(rank):
                if isinstance(step, Signal | Wait):
                    first = step.counter % 2 == 0
                    change = replace(step, counter=step.counter - step.counter % 2)
                    if isinstance(change, Wait):
                        change = replace(change, value=blocks if first else 2 * blocks)
                    base = edit(base, rank, number, lambda step, c=change: [c])
        return base

    assert verify(plan(1), cache=None).ok
    refused(plan(2), "race")


@pytest.mark.parametrize("plan", [fused_push(2, versions=1), ring(4, versions=1)], ids=["fused", "ring"])
def test_reused_buffer_without_a_wait_is_a_race_between_calls(plan: Plan) -> None:
    found = refused(plan, "race")
    assert found.buffer == "gather"
    assert sorted(place.call for place in found.places) == [0, 1]


def test_symmetric_operands_need_the_readers_to_say_so() -> None:
    plan = pull(3, staged=False)
    found = refused(edit(plan, 1, find(plan, 1, Wait, 1), drop), "race")
    assert found.buffer == "a"
    assert found.buffer_rank == 1
    assert {place.launch for place in found.places} == {"caller", "pull"}


def test_wrong_peer_of_the_data() -> None:
    plan = fused_push(4)
    found = refused(edit(plan, 0, find(plan, 0, Copy), lambda c: [replace(c, dst=replace(c.dst, rank=2))]), "data_flow")
    assert found.rank == 1
    assert found.buffer == "gather"


def test_wrong_peer_of_the_signal() -> None:
    plan = fused_push(4)
    refused(edit(plan, 0, find(plan, 0, Signal), lambda s: [replace(s, rank=2)]), "deadlock")


def test_wrong_peer_of_data_and_signal() -> None:
    plan = fused_push(4)
    plan = edit(plan, 0, find(plan, 0, Copy), lambda c: [replace(c, dst=replace(c.dst, rank=2))])
    refused(edit(plan, 0, find(plan, 0, Signal), lambda s: [replace(s, rank=2)]), "data_flow")


def test_wrong_source_rows_reach_the_output() -> None:
    plan = fused_push(2, chunks=2)
    found = refused(
        edit(plan, 0, find(plan, 0, Copy), lambda c: [replace(c, src=replace(c.src, offset=2 * ROW))]), "data_flow"
    )
    assert found.buffer == "out"
    assert found.buffer_rank == 1


def test_stale_rows_are_seen() -> None:
    # The own shard is staged after it is announced and read: each rank reads what the last call left.
    plan = pull(2, blocks=1)
    for rank in range(2):
        stage = next(step for _, _, _, step in plan.steps_of(rank) if isinstance(step, Copy))
        last = len(list(plan.steps_of(rank))) - 1
        plan = edit(plan, rank, last, lambda step, s=stage: [step, s])
        plan = edit(plan, rank, 0, drop)
    proof = verify(plan, cache=None)
    assert proof.counterexample is not None
    assert proof.counterexample.rule in ("race", "data_flow")


def test_two_swapped_puts_of_one_peer() -> None:
    plan = fused_push(2, chunks=2, comm=1)
    first, second = find(plan, 0, Copy), find(plan, 0, Copy, 1)
    steps = {number: step for number, _, _, step in plan.steps_of(0)}
    plan = edit(edit(plan, 0, first, lambda s: [steps[second]]), 0, second, lambda s: [steps[first]])
    refused(plan, "race")


def test_lost_coverage() -> None:
    plan = fused_push(2)
    found = refused(edit(plan, 1, find(plan, 1, Gemm), drop), "coverage")
    assert (found.buffer, found.buffer_rank, found.offset) == ("out", 1, 32)


def test_double_write() -> None:
    plan = fused_push(2)
    found = refused(edit(plan, 1, find(plan, 1, Gemm), lambda g: [g, g]), "coverage")
    assert "twice" in found.message


def test_a_gang_does_not_order_its_own_blocks() -> None:
    # The same blocks stage a shard and multiply it: a block reads rows that another block is still copying.
    def plan(blocks: int, barrier: bool) -> Plan:
        base = fused_push(1)
        stage = Copy(Region("a", 0, 0, 2 * ROW), Region("gather", 0, 0, 2 * ROW))
        between: tuple[Step, ...] = (Signal(0, 0), Wait(0, blocks)) if barrier else ()
        role = Role("all", "blocks", blocks, (stage, *between, gemm(0, "gather", 0, 0, 2)))
        return replace(base, ranks=((Launch("all", 0, (role,), (), "fused", 384, 0),),))

    assert verify(plan(1, barrier=False), cache=None).ok
    assert verify(plan(3, barrier=True), cache=None).ok
    found = refused(plan(3, barrier=False), "race")
    assert found.places[0].role == found.places[1].role == "all"


def through_staging(*between: Step, sizes: tuple[int, ...] = (4 * ROW,)) -> Plan:
    """One rank whose four blocks copy the operand to a buffer, and in pieces from there to the output."""
    shard = 4 * ROW
    steps: list[Step] = [Copy(Region("a", 0, 0, shard), Region("gather", 0, 0, shard)), *between]
    for number, size in enumerate(sizes):
        at = sum(sizes[:number])
        steps.append(Copy(Region("gather", 0, at, size), Region("out", 0, at, size)))
    return replace(pull(1), ranks=((Launch("copy", 0, (Role("copy", "blocks", 4, tuple(steps)),)),),))


def test_blocks_share_equal_copies_in_the_same_way() -> None:
    assert verify(through_staging(Signal(0, 0)), cache=None).ok
    refused(through_staging(Signal(0, 0), sizes=(2 * ROW, 2 * ROW)), "race")


def test_a_copy_reads_nothing_that_one_taken_together_with_it_writes() -> None:
    found = refused(through_staging(), "race")
    assert (found.message, found.buffer, found.places[0].step) == (RULE, "gather", 1)


@pytest.mark.parametrize("distance", range(1, TOGETHER + 2))
def test_as_many_copies_are_independent_as_kernels_take_together(distance: int) -> None:
    # Copies of a row in one role: the one `distance` behind the first reads what the first has written.
    def copy(source: str, target: str, at: int) -> Copy:
        return Copy(Region(source, 0, at * ROW, ROW), Region(target, 0, at * ROW, ROW))

    steps = [copy("a", "gather", at) for at in range(distance)] + [copy("gather", "out", 0)]
    grids = Grids(pull(1))
    assert (reads_a_neighbour(steps, grids) is None) == (distance >= TOGETHER)
    shifted = [copy("a", "gather", at) for at in range(distance)] + [copy("out", "a", 0)]
    assert reads_a_neighbour(shifted, grids) is None  # which is written after it is read


def test_kernels_take_no_more_copies_together_than_the_proof_looks_at() -> None:
    assert f"constexpr u32 kCopiesTogether = {TOGETHER};" in (INCLUDE / "tilescale" / "copy.cuh").read_text()


def test_launches_of_a_stream_follow_each_other_and_others_need_after() -> None:
    base = pull(1)
    shard = 4 * ROW
    first = Role("stage", "blocks", 4, (Copy(Region("a", 0, 0, shard), Region("gather", 0, 0, shard)),))
    second = Role("out", "blocks", 3, (Copy(Region("gather", 0, 0, shard), Region("out", 0, 0, shard)),))

    def plan(stream: int, after: tuple[str, ...]) -> Plan:
        return replace(base, ranks=((Launch("stage", 0, (first,)), Launch("out", stream, (second,), after)),))

    assert verify(plan(0, ()), cache=None).ok
    assert verify(plan(1, ("stage",)), cache=None).ok
    refused(plan(1, ()), "race")


def test_too_many_blocks() -> None:
    assert verify(fused_push(4, comm=4, compute=12, sm_share=16), cache=None).ok
    found = refused(fused_push(4, comm=5, compute=12, sm_share=16), "co_residency")
    assert (found.found, found.wanted) == (17, 16)


def test_blocks_of_two_streams_count_together() -> None:
    plan = chunked(2)
    assert verify(replace(plan, sm_share=2), cache=None).ok
    found = refused(replace(plan, sm_share=1), "co_residency")
    assert len(found.places) == 2


def change_launch(plan: Plan, **values: object) -> Plan:
    return replace(plan, ranks=((replace(plan.ranks[0][0], **values), *plan.ranks[0][1:]), *plan.ranks[1:]))


def test_resources() -> None:
    refused(change_launch(fused_push(2), shared_bytes=232449), "resources")
    refused(change_launch(fused_push(2), threads=1025), "resources")


def test_counter_range() -> None:
    plan = fused_push(2)
    plan = edit(plan, 0, find(plan, 0, Signal), lambda s: [replace(s, value=2**29)])
    refused(edit(plan, 1, find(plan, 1, Wait), lambda w: [replace(w, value=2**30)]), "counter_range")


def test_bounds_visibility_sizes_and_shapes() -> None:
    plan = fused_push(2)
    copy, product = find(plan, 0, Copy), find(plan, 0, Gemm)
    size = plan.buffer("gather").size
    refused(edit(plan, 0, copy, lambda c: [replace(c, dst=replace(c.dst, offset=size - ROW))]), "bounds")
    refused(edit(plan, 0, copy, lambda c: [replace(c, dst=replace(c.dst, offset=-ROW))]), "bounds")
    refused(edit(plan, 0, copy, lambda c: [replace(c, src=replace(c.src, rank=1))]), "visibility")
    refused(edit(plan, 0, copy, lambda c: [replace(c, src=replace(c.src, size=ROW))]), "copy_size")
    refused(edit(plan, 0, product, lambda g: [replace(g, m=g.m + 1)]), "gemm_shape")
    refused(edit(plan, 0, product, lambda g: [replace(g, n=g.n // 2)]), "gemm_shape")
    refused(edit(plan, 0, product, lambda g: [replace(g, b=replace(g.b, size=g.b.size // 2))]), "gemm_shape")


def test_structure() -> None:
    plan = fused_push(2)
    refused(edit(plan, 0, find(plan, 0, Signal), lambda s: [replace(s, counter=99)]), "structure")
    refused(edit(plan, 0, find(plan, 0, Signal), lambda s: [replace(s, rank=2)]), "structure")
    refused(edit(plan, 0, find(plan, 0, Wait), lambda w: [replace(w, value=0)]), "structure")
    refused(change_launch(plan, after=("later",)), "structure")
    refused(replace(plan, goal=replace(plan.goal, output="a")), "structure")
    refused(replace(plan, goal=replace(plan.goal, starts=(0, 64))), "structure")


def test_a_copy_must_not_write_what_it_reads() -> None:
    plan = edit(fused_push(2), 0, 0, lambda c: [Copy(Region("gather", 0, 0, 64), Region("gather", 0, 32, 64)), c])
    refused(plan, "race")


def test_rotation_is_seen_where_it_is_and_only_there() -> None:
    assert verify(fused_push(4, chunks=2), cache=None).stats.symmetric
    plan = fused_push(4, chunks=2)
    broken = edit(plan, 2, find(plan, 2, Wait), lambda w: [w, w])
    proof = verify(broken, cache=None)
    assert proof.ok
    assert not proof.stats.symmetric
    assert proof.stats.runs == 4 * verify(plan, cache=None).stats.runs


def test_steps_are_numbered_as_in_the_plan() -> None:
    plan = chunked(2)
    numbers = [place.step for place, _, _ in places(plan) if place.rank == 1]
    assert numbers == [number for number, _, _, _ in plan.steps_of(1)]


def uneven(rows: tuple[int, int]) -> Plan:
    """all_gather of two shards of different length, pushed straight to the outputs' own side."""
    first = fused_push(2)
    starts = (0, rows[0] * ROW, sum(rows) * ROW)
    ranks = []
    for rank in range(2):
        size, other = rows[rank] * ROW, rows[1 - rank] * ROW
        steps = (
            Copy(Region("a", rank, 0, size), Region("gather", 1 - rank, starts[rank], size)),
            Signal(1 - rank, 0),
            Copy(Region("a", rank, 0, size), Region("out", rank, starts[rank], size)),
            Wait(0, 1),
            Copy(Region("gather", rank, starts[1 - rank], other), Region("out", rank, starts[1 - rank], other)),
        )
        ranks.append((Launch("copy", 0, (Role("copy", "blocks", 1, steps),)),))
    made = (
        Buffer("a", "input", max(rows) * ROW),
        Buffer("gather", "workspace", starts[2], True, 2),
        Buffer("out", "output", starts[2]),
    )
    return replace(first, buffers=made, ranks=tuple(ranks), goal=Goal("a", "out", starts, ROW, ROW, False))


def test_uneven_shards() -> None:
    plan = uneven((3, 1))
    assert verify(plan, cache=None).ok
    # Rank 1's buffer is longer than its shard: what lies behind it is nobody's row.
    longer = Copy(Region("a", 1, 2 * ROW, ROW), Region("gather", 0, 3 * ROW, ROW))
    found = refused(edit(plan, 1, 0, lambda copy: [longer]), "data_flow")
    assert (found.rank, found.step, found.buffer) == (1, 0, "a")


def test_proofs_and_refusals_survive_canonical_json() -> None:
    plan = fused_push(2)
    for proof in (verify(plan, cache=None), verify(edit(plan, 1, find(plan, 1, Signal), drop), cache=None)):
        assert canon.decode(Proof, canon.encode(proof)) == proof


def test_limits_are_stated() -> None:
    assert "memory ordering" in LIMITS
