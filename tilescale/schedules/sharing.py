"""Products whose tiles are shared along the contraction, as the verifier sees them: groups, and where sums are left."""

from __future__ import annotations

from collections.abc import Sequence

from tilescale.schedules.contracting import Problem
from tilescale.schedules.plan import Pieces, Plan, Region, Role, SharedGemm, Signal, Wait


def covering(parts: Sequence[Region]) -> tuple[Region, ...]:
    """One region around all parts, which are of one buffer."""
    if not parts:
        return ()
    low, high = min(part.offset for part in parts), max(part.end for part in parts)
    return (Region(parts[0].buffer, parts[0].rank, low, high - low),)


def check_parts(plan: Plan, rank: int, step: Pieces | SharedGemm) -> Problem | None:
    """Parts are float32 sums in a workspace of the own rank that is theirs alone."""
    known = {(part.buffer, part.rank) for part in step.parts}
    names = {part.buffer for part in step.parts}
    apart = not names & {step.a.buffer, step.b.buffer, step.out.buffer}
    if len(known) != 1 or {part.rank for part in step.parts} != {rank} or not apart \
            or plan.buffer(step.parts[0].buffer).role != "workspace" \
            or any(part.offset % 4 or part.size % 4 or part.loops for part in step.parts):
        return "gemm_shape", (
            f"sums of pieces are float32, in one workspace of rank {rank} that is theirs alone; got {step.parts[:3]}")
    return None


def check_shared(role: Role, rank: int) -> Problem | None:
    """A group is all that its role does: pieces, a signal to the own rank, a wait for it by all, and the same product."""
    if not any(isinstance(step, Pieces | SharedGemm) for step in role.steps):
        return None
    kinds = tuple(type(step) for step in role.steps)
    if kinds != (Pieces, Signal, Wait, SharedGemm) or role.agent != "blocks":
        return "structure", (
            "blocks that share tiles leave pieces, signal, wait and multiply, and do nothing else; got "
            + ", ".join(kind.__name__ for kind in kinds))
    pieces, signal, wait, product = role.steps
    assert isinstance(pieces, Pieces)
    assert isinstance(signal, Signal)
    assert isinstance(wait, Wait)
    assert isinstance(product, SharedGemm)
    if _product(pieces) != _product(product):
        return "structure", "pieces and the product that they are added to are of the same operands, and parts"
    if (signal.rank, signal.counter, signal.value) != (rank, wait.counter, 1) or wait.value != role.blocks:
        return "structure", (
            f"each of {role.blocks} blocks adds 1 to the counter of its rank that all wait for; got {signal} and {wait}")
    return None


def _product(step: Pieces | SharedGemm) -> tuple[object, ...]:
    return step.a, step.b, step.out, step.m, step.n, step.k, step.parts
