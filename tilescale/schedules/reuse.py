"""May a workspace that was made for one plan serve another? Only where every byte and every count mean the same."""

from __future__ import annotations

from tilescale.schedules.plan import Plan
from tilescale.schedules.story import Counterexample, Place


def check_reuse(made_for: Plan, used_by: Plan) -> Counterexample | None:
    """None where `used_by` may go on in the workspace that `made_for` has used, else why it needs its own.

    The epoch counts calls, and waits take what a counter has grown by from it; so counters must grow alike, and the
    buffers must lie alike.
    """
    if made_for.world != used_by.world:
        return _refuse(f"it was made for {made_for.world} ranks, not {used_by.world}", used_by.world, made_for.world)
    if made_for.counters != used_by.counters:
        message = f"it holds {made_for.counters} counters, not {used_by.counters}"
        return _refuse(message, used_by.counters, made_for.counters)
    first, second = ([b for b in plan.buffers if b.role == "workspace"] for plan in (made_for, used_by))
    if first != second:
        return _refuse(f"its buffers are {[b.name for b in first]}, laid out for other sizes or versions", -1, -1)
    for rank in range(made_for.world):
        for counter, (had, has) in enumerate(
            zip(made_for.counter_totals(rank), used_by.counter_totals(rank), strict=True)
        ):
            if had != has:
                message = f"counter {counter} of rank {rank} grew by {had} a call and would grow by {has}"
                return _refuse(message, has, had, rank, counter)
    return None


def _refuse(message: str, found: int, wanted: int, rank: int = -1, counter: int = -1) -> Counterexample:
    return Counterexample("workspace", f"a workspace cannot be used again: {message}", (Place(max(rank, 0)),),
                          counter=counter, counter_rank=rank, found=found, wanted=wanted)
