"""The verifier against an explorer that visits every state: deadlock and race must agree exactly."""

from __future__ import annotations

import pytest
from explorer import Explorer
from handmade import chunked, fused_push, pull, ring
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mutations import KINDS, Mutation, mutate

from tilescale.schedules.plan import Plan
from tilescale.schedules.protocol import protocol_digest
from tilescale.schedules.verify import check_protocol

BASES = {
    "two blocks": fused_push(2, comm=2, compute=2),
    "three blocks": fused_push(2, comm=3, compute=1),
    "two chunks": fused_push(2, chunks=2, comm=1, compute=2),
    "pull": pull(2),
    "one puller": pull(2, blocks=1),
    "symmetric": pull(2, staged=False),
    "ring of blocks": ring(2, blocks=2),
    "ring": ring(3),
    "streams": chunked(2, 1),
}
STATES = 6000

numbers = st.integers(0, 2**16)
lists = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=3)


def verdict(plan: Plan, calls: int) -> tuple[bool, bool]:
    """(deadlock, race) by the verifier. Like the verifier, the oracle does not look for races behind a deadlock."""
    found, _ = check_protocol(plan, calls)
    rule = found.rule if found is not None else ""
    return rule == "deadlock", rule == "race"


def agree(plan: Plan, calls: int) -> bool:
    """Whether there was something to compare; fails where the two differ."""
    explored = Explorer(plan, calls).explore(STATES)
    if explored is None:
        return False
    dead, race = explored
    assert verdict(plan, calls) == (dead, race and not dead)
    return True


@pytest.mark.parametrize("name", sorted(BASES))
def test_right_plans_agree(name: str) -> None:
    assert agree(BASES[name], 2)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(sorted(BASES)), mutations=lists, calls=st.sampled_from([2, 3]))
@example(name="two blocks", mutations=[(0, 3, 3)], calls=2)
def test_random_faults_agree(name: str, mutations: list[Mutation], calls: int) -> None:
    agree(mutate(BASES[name], mutations), calls)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(sorted(BASES)), mutations=lists)
def test_the_same_fault_on_all_ranks_agrees(name: str, mutations: list[Mutation]) -> None:
    # Keeps the rotation of ranks, so that rank 0 stands for all.
    base = BASES[name]
    agree(mutate(base, [(rank, number, kind) for _, number, kind in mutations for rank in range(base.world)]), 2)


def test_faults_of_every_kind_are_among_those_compared() -> None:
    seen = set()
    base = fused_push(2, comm=2, compute=1)
    for kind in range(KINDS):
        for number in range(5):
            plan = mutate(base, [(0, number, kind)])
            if agree(plan, 2):
                seen.add(verdict(plan, 2))
    assert seen == {(False, False), (True, False), (False, True)}


@pytest.mark.parametrize("short", [0, 1])
def test_plans_of_one_digest_have_one_verdict(short: int) -> None:
    plans = []
    for blocks in (2, 3, 4):
        plan = fused_push(2, comm=blocks, compute=blocks)
        plans.append(mutate(plan, [(0, 3, 3)] * short))
    verdicts = {verdict(plan, 3) for plan in plans}
    assert verdicts == {(False, bool(short))}
    assert len({protocol_digest(plan) for plan in plans}) == (3 if short else 1)
