"""Changes of products that take a part of the contraction at a time: segments, and pieces of shared tiles."""

from __future__ import annotations

from dataclasses import replace

from plan_changes import (
    Steps,
    kind,
    put,
    shifted,
)

from tilescale.schedules.plan import (
    Contract,
    Gemm,
    Pieces,
    Plan,
    SharedGemm,
)


# -- segments of a contraction ------------------------------------------------------------------------------------------
@kind("drop segment", Contract)
def _drop_segment(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at)


@kind("segment twice", Contract)
def _segment_twice(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    return put(steps, at, replace(step, last=False), replace(step, first=False))


@kind("segment not multiplied, another twice", Contract)
def _segment_for_another(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    other = next((s for s in steps if isinstance(s, Contract) and s is not step and s.k == step.k), None)
    return None if other is None else put(steps, at, replace(other, first=step.first, last=step.last))


@kind("segment met by other rows", Contract)
def _segment_shifted(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    return put(steps, at, replace(step, at=step.at + 1 if step.at == 0 else step.at - 1))


@kind("segment of other rows", Contract)
def _segment_rows(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    source = shifted(plan, step.segment, step.segment.size) or shifted(plan, step.segment, plan.goal.row_bytes)
    if source is None:
        return None
    return put(steps, at, replace(step, b=source) if step.gathered else replace(step, a=source))


@kind("segment of a wrong shape", Contract)
def _segment_shape(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    return put(steps, at, replace(step, k=step.k + 1))


@kind("product that starts anew", Contract)
def _anew(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    return put(steps, at, replace(step, first=not step.first))


@kind("product that ends early", Contract)
def _ends_early(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Contract)
    return put(steps, at, replace(step, last=not step.last))


# -- tiles that blocks share --------------------------------------------------------------------------------------------
@kind("drop pieces", Pieces)
def _drop_pieces(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    return put(steps, at)


@kind("pieces left elsewhere", Pieces)
def _elsewhere(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Pieces)
    return put(steps, at, replace(step, parts=tuple(replace(part, offset=part.offset + 16) for part in step.parts)))


@kind("pieces of other rows", Pieces)
def _other_rows(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Pieces)
    return put(steps, at, replace(step, a=replace(step.a, offset=step.a.offset + plan.goal.row_bytes)))


@kind("pieces left at a wrong peer", Pieces)
def _left_at_peer(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, Pieces)
    return put(steps, at, replace(step, parts=tuple(replace(part, rank=(rank + 1) % plan.world) for part in step.parts)))


@kind("pieces not added", SharedGemm)
def _not_added(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, SharedGemm)
    return put(steps, at, replace(step, parts=step.parts[:-1]))


@kind("product of its own beside pieces", SharedGemm)
def _plain_product(plan: Plan, rank: int, steps: Steps, at: int) -> Steps | None:
    step = steps[at]
    assert isinstance(step, SharedGemm)
    return put(steps, at, Gemm(step.a, step.b, step.out, step.m, step.n, step.k, step.extras, step.then))
