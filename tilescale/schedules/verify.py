"""The exact verifier of plans.

`verify` shows, for three consecutive calls: no deadlock; no race, also between calls and with the caller, who writes
the inputs before each call and reads the outputs after it; every output byte written exactly once and derived from the
right rows; regions inside visible buffers; blocks that wait for each other resident together; resources and counters
within limits. What it does not show is `LIMITS`.
"""

from __future__ import annotations

from tilescale.errors import PlanError
from tilescale.schedules.agents import CALLS, Model
from tilescale.schedules.coverage import check_coverage
from tilescale.schedules.dataflow import DataFlow
from tilescale.schedules.explain import tell_deadlock, tell_race
from tilescale.schedules.footprint import check_steps, check_structure
from tilescale.schedules.movement import Movement
from tilescale.schedules.order import maximal
from tilescale.schedules.phases import check_phase_counts, check_phases
from tilescale.schedules.plan import Plan
from tilescale.schedules.proof_cache import ProofCache
from tilescale.schedules.protocol import protocol_digest, rotates
from tilescale.schedules.races import RaceCheck
from tilescale.schedules.ragged_flow import RaggedFlow
from tilescale.schedules.residency import check_counters, check_residency, check_resources
from tilescale.schedules.story import Counterexample, Proof, Stats

LIMITS = (
    "Not covered by a proof: memory ordering below the stated rules (a signal publishes all earlier steps of its "
    "block, a wait acquires them, half a packet arrives as a whole); the inside of a step (threads, pipelines, element "
    "types, rounding, the order of a sum); "
    "that the kernel text carries out the plan (the emulator's conformance shows it); that streams of a rank and their "
    "launches run side by side; that a block takes the same tiles in every pass over panels (each emulation shows it); "
    "more calls than those unrolled; two calls at a time on one workspace; of ragged steps, how "
    "blocks share what they touch and which rows they touch inside the segments that they may (emulations of several "
    "routings show it)."
)

MEMORY = ProofCache()


def verify(plan: Plan, calls: int = CALLS, cache: ProofCache | None = MEMORY) -> Proof:
    """Prove `plan`, or find a counterexample. Never raises for a bad plan.

    `cache`: known proofs by protocol digest (None: prove anew). Checks that depend on sizes are always made.
    """
    if not isinstance(plan, Plan):
        raise PlanError("what is proved is a plan", type(plan).__name__, "give tilescale.lower(spec, schedule)")
    digest = cache.digest_of(plan, calls) if cache is not None else None
    problem = check_resources(plan) if digest is not None else check_sizes(plan, calls)
    if problem is not None:
        return Proof(False, problem, "")
    if digest is None:
        digest = protocol_digest(plan)
        if cache is not None:
            cache.remember(plan, calls, digest)
    known = cache.get(digest, calls) if cache is not None else None
    if known is not None:
        return Proof(True, None, digest, known)
    problem, stats = check_protocol(plan, calls)
    if problem is None and cache is not None:
        cache.put(digest, calls, stats)
    return Proof(problem is None, problem, digest, stats)


def check_sizes(plan: Plan, calls: int = CALLS) -> Counterexample | None:
    """The checks that need no run, in the order in which later ones rely on earlier ones."""
    return (
        check_structure(plan)
        or check_steps(plan)
        or check_resources(plan)
        or check_residency(plan)
        or check_counters(plan, calls)
        or check_phase_counts(plan)
        or check_coverage(plan)
    )


def check_protocol(plan: Plan, calls: int = CALLS) -> tuple[Counterexample | None, Stats]:
    """Deadlock, races and data flow over `calls` calls of a plan that `check_sizes` has accepted."""
    model = Model(plan, calls)
    operations = sum(len(program) for program in model.programs) + calls * sum(len(a.work) for a in model.agents)
    run = maximal(model)
    stats = Stats(operations, len(model.agents))
    if any(pc < len(program) for pc, program in zip(run.pcs, model.programs, strict=True)):
        return tell_deadlock(model, run), stats
    problem = check_phases(model)
    if problem is not None:
        return problem, stats
    symmetric = rotates(plan)
    check = RaceCheck(model, symmetric)
    race = check.first()
    stats = Stats(operations, len(model.agents), check.pairs, check.runs, symmetric)
    if race is not None:
        return tell_race(model, race), stats
    follow = Movement if plan.goal.pieces else RaggedFlow if plan.goal.ragged else DataFlow
    return follow(model, run).check(), stats
