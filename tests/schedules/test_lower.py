from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from support import ag_gemm, all_gather

from tilescale.codegen.table import KIND_COPY, KIND_GEMM, KIND_PACE, KIND_RESERVE, KIND_SIGNAL, KIND_WAIT
from tilescale.schedules import tile
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Buffer, Copy, Gemm, Launch, Plan, Role, Signal, Step, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec

FUSED_PUSH = Schedule(transport="peer_copy", direction="push", overlap="fused", compute="generated", chunk_rows=256,
                      depth=2, num_comm_blocks=4, block_m=128, block_n=128, block_k=64, num_stages=4, raster_group=8)
FUSED_PULL = replace(FUSED_PUSH, direction="pull")


def one_of_each_structure(spec: Spec) -> list[Schedule]:
    """A schedule for every plan structure of a space: what is left when tile shapes are ignored."""
    found: dict[Schedule, Schedule] = {}
    for schedule in space(spec):
        key = replace(schedule, block_m=0, block_n=0, block_k=0, num_stages=0, raster_group=0)
        found.setdefault(key, schedule)
    return list(found.values())


def copies(plan: Plan) -> list[tuple[int, Copy]]:
    return [(rank, step) for rank in range(plan.world) for _, _, _, step in plan.steps_of(rank)
            if isinstance(step, Copy)]


@pytest.mark.parametrize("spec", [ag_gemm(), ag_gemm(ranks=2), all_gather(ranks=8), ag_gemm(inputs="symmetric")],
                         ids=lambda s: f"{s.label} {s.placement}")
def test_each_remote_byte_crosses_once(spec: Spec) -> None:
    for schedule in one_of_each_structure(spec)[::41]:
        received: Counter[int] = Counter()
        for _, step in copies(lower(spec, schedule)):
            if step.src.rank != step.dst.rank:
                received[step.dst.rank] += step.src.size
        assert dict(received) == dict.fromkeys(range(spec.world), spec.link_bytes), schedule.label


def test_a_plan_has_one_structure_for_all_tile_shapes() -> None:
    spec = ag_gemm()
    small, large = lower(spec, FUSED_PUSH), lower(spec, replace(FUSED_PUSH, block_n=256))
    assert small.ranks != large.ranks
    launch = large.ranks[0][0]
    assert launch.shared_bytes == tile.shared_bytes(spec, replace(FUSED_PUSH, block_n=256))
    assert [r.steps for r in small.ranks[0][0].roles] == [r.steps for r in launch.roles]


def test_a_fused_pull_stages_before_it_waits() -> None:
    """Whoever waits for a peer's staging first would wait forever if that peer did the same."""
    plan = lower(ag_gemm(), FUSED_PULL)
    for rank in range(4):
        for role in plan.ranks[rank][0].roles[:-1]:
            kinds = [type(step) for step in role.steps]
            assert kinds.index(Wait) > kinds.index(Signal) > kinds.index(Copy)


def test_steps_are_numbered_as_in_the_tables() -> None:
    from tilescale.codegen.emit import emit
    from tilescale.codegen.table import STEP

    kinds = {Copy: KIND_COPY, Signal: KIND_SIGNAL, Wait: KIND_WAIT, Gemm: KIND_GEMM}
    spec = ag_gemm()
    for schedule in one_of_each_structure(spec)[::97]:
        plan = lower(spec, schedule)
        program = emit(spec, schedule, plan)
        for rank in range(spec.world):
            numbered = {number: kinds[type(step)] for number, launch, _, step in plan.steps_of(rank)
                        if launch.agent == "blocks"}
            rows = [STEP.unpack(chunk) for launch in program.ranks[rank]
                    for chunk in (bytes.fromhex(launch.steps)[i:i + STEP.size]
                                  for i in range(0, len(launch.steps) // 2, STEP.size))]
            assert {row[1]: row[0] for row in rows if row[0] not in (KIND_RESERVE, KIND_PACE)} == numbered


# -- planted faults: each must be found by the rule that is about it ---------------------------------------------------
def edited(plan: Plan, edit: dict[type, object], rank: int | None = None) -> Plan:
    """The plan with `edit[kind](step, rank)` applied to the first step of that kind, on one rank or on all."""
    def steps_of(role: Role, at: int, done: set[type]) -> tuple[Step, ...]:
        out: list[Step] = []
        for step in role.steps:
            change = edit.get(type(step))
            if change is None or type(step) in done or (rank is not None and at != rank):
                out.append(step)
                continue
            done.add(type(step))
            changed = change(step, at)  # type: ignore[operator]
            out += [] if changed is None else [changed]
        return tuple(out)

    ranks = []
    for at, launches in enumerate(plan.ranks):
        done: set[type] = set()
        ranks.append(tuple(replace(launch, roles=tuple(replace(role, steps=steps_of(role, at, done))
                                                       for role in launch.roles)) for launch in launches))
    return replace(plan, ranks=tuple(ranks))


def with_versions(plan: Plan, name: str, versions: int) -> Plan:
    def changed(buffer: Buffer) -> Buffer:
        return replace(buffer, versions=versions) if buffer.name == name else buffer

    return replace(plan, buffers=tuple(changed(b) for b in plan.buffers))


def other_peer(step: Copy, rank: int) -> Copy:
    return replace(step, dst=replace(step.dst, rank=(step.dst.rank + 1) % 4))


PUSH, PULL = lower(ag_gemm(), FUSED_PUSH), lower(ag_gemm(), FUSED_PULL)
CHUNKED = lower(ag_gemm(), Schedule(transport="tma", direction="push", overlap="chunked", compute="library",
                                    chunk_rows=512, depth=2, num_comm_blocks=8))


def widened(plan: Plan, blocks: int) -> Plan:
    def wider(launch: Launch) -> Launch:
        return replace(launch, roles=(*launch.roles[:-1], replace(launch.roles[-1], blocks=blocks)))

    return replace(plan, ranks=tuple(tuple(wider(launch) for launch in rank) for rank in plan.ranks))


FAULTS = {
    "dropped signal": (edited(PUSH, {Signal: lambda s, r: None}, rank=1), {"deadlock"}),
    "dropped signal everywhere": (edited(PULL, {Signal: lambda s, r: None}), {"deadlock"}),
    "wait one short": (edited(PUSH, {Wait: lambda s, r: replace(s, value=s.value - 1)}, rank=2), {"race"}),
    "wait one long": (edited(PUSH, {Wait: lambda s, r: replace(s, value=s.value + 1)}, rank=2), {"deadlock"}),
    "dropped wait": (edited(PULL, {Wait: lambda s, r: None}, rank=3), {"race"}),
    "reused push buffer": (with_versions(PUSH, "gather", 1), {"race"}),
    "reused staging buffer": (with_versions(PULL, "staging", 1), {"race"}),
    "reused buffer on streams": (with_versions(CHUNKED, "gather", 1), {"race"}),
    "data to a wrong peer": (edited(PUSH, {Copy: other_peer}, rank=0), {"race", "data_flow"}),
    "signal to a wrong peer": (
        edited(PUSH, {Signal: lambda s, r: replace(s, rank=(s.rank + 1) % 4)}, rank=0), {"deadlock", "race"}),
    "too many blocks": (widened(PUSH, 40), {"residency"}),
    "lost rows": (edited(PUSH, {Gemm: lambda s, r: None}, rank=1), {"coverage"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_plan_faults_are_found(name: str) -> None:
    plan, rules = FAULTS[name]
    proof = verify(plan)
    assert not proof.ok
    assert proof.counterexample is not None
    assert any(rule in proof.counterexample.rule for rule in rules), str(proof.counterexample)
    assert "rank" in str(proof.counterexample)


@pytest.mark.parametrize("plan", [PUSH, PULL, CHUNKED], ids=["push", "pull", "chunked"])
def test_the_plans_without_faults_are_proved(plan: Plan) -> None:
    assert verify(plan).ok
