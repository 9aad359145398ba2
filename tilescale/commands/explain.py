"""`tilescale explain`: what a schedule does and is expected to take, or what a constraint rejects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilescale.commands.bar import Bar
from tilescale.commands.output import UsageError, show, show_json, table
from tilescale.commands.selection import best_predicted, select
from tilescale.commands.target import AsJson, ScheduleText, Target, single, takes_targets
from tilescale.errors import nearest

if TYPE_CHECKING:
    from tilescale.schedules.plan import Launch
    from tilescale.schedules.schedule import Schedule

EXAMPLES = 5


@takes_targets
def explain(
    targets: Sequence[Target],
    schedule: ScheduleText = None,
    constraint: Annotated[str | None, typer.Option("--constraint", help="What this constraint rejects.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a schedule does and costs.

    The plan, the parts of the predicted time, and the proof, of the best predicted schedule of those named.
    """
    target = single(targets)
    if constraint is not None:
        _constraint(target, constraint, as_json)
        return
    with Bar() as bar:
        chosen = best_predicted(target, select(target, schedule), bar)
    facts = _facts(target, chosen)
    if as_json:
        show_json(facts)
        return
    _show(facts)


def _facts(target: Target, schedule: Schedule) -> dict[str, Any]:
    from tilescale.codegen.emit import emit
    from tilescale.costmodel.analytic import predict
    from tilescale.schedules.lower import lower
    from tilescale.schedules.verify import verify

    plan = lower(target.spec, schedule)
    program, prediction, proof = emit(target.spec, schedule, plan), predict(target.spec, schedule, plan), verify(plan)
    return {
        "name": target.name,
        "label": target.spec.label,
        "topology": target.spec.topology.name,
        "schedule": {"digest": schedule.digest, "label": schedule.label, "knobs": schedule.as_dict()},
        "prediction": {
            "source": prediction.source,
            "us": prediction.us,
            "low_us": prediction.low_us,
            "high_us": prediction.high_us,
            "parts_us": dict(prediction.parts),
        },
        "plan": {
            "digest": plan.digest,
            "counters": plan.counters,
            "buffers": [
                {"name": b.name, "role": b.role, "bytes": b.memory, "versions": b.versions} for b in plan.buffers
            ],
            "launches": [_launch(launch) for launch in plan.ranks[0]],
        },
        "proof": {"ok": proof.ok, "text": str(proof), "digest": proof.digest},
        "program": {
            "binary_digest": program.binary_digest,
            "table_digest": program.table_digest,
            "kernels": [
                {"entry": kernel.entry, "arch": kernel.arch, "digest": kernel.digest} for kernel in program.kernels
            ],
        },
    }


def _launch(launch: Launch) -> dict[str, Any]:
    roles = [
        f"{role.name} ({role.agent}" + (f" x {role.blocks}" if role.blocks else "") + f"): {_steps(role.steps)}"
        for role in launch.roles
    ]
    return {
        "name": launch.name,
        "stream": launch.stream,
        "after": list(launch.after),
        "family": launch.family,
        "blocks": launch.blocks,
        "threads": launch.threads,
        "shared_bytes": launch.shared_bytes,
        "roles": roles,
    }


def _steps(steps: Sequence[object]) -> str:
    counts: dict[str, int] = {}
    for step in steps:
        name = type(step).__name__
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "no steps"


def _show(facts: dict[str, Any]) -> None:
    schedule, prediction, plan = facts["schedule"], facts["prediction"], facts["plan"]
    show(f"{facts['name']}: {facts['label']} on {facts['topology']}")
    show(f"schedule {schedule['digest']}: {schedule['label']}")
    show(
        f"predicted {prediction['us']:.1f} us ({prediction['low_us']:.1f} to {prediction['high_us']:.1f}), along the "
        "longest path:"
    )
    table(
        ["part", "us", "share"],
        [
            [name, us, f"{us / prediction['us']:.0%}"]
            for name, us in sorted(prediction["parts_us"].items(), key=lambda i: -i[1])
        ],
    )
    show(f"plan of rank 0 ({plan['digest']}): {len(plan['launches'])} launches, {plan['counters']} counters")
    table(
        ["launch", "stream", "after", "family", "blocks", "threads", "shared bytes", "roles"],
        [
            [
                launch["name"],
                launch["stream"],
                ", ".join(launch["after"]),
                launch["family"],
                launch["blocks"],
                launch["threads"],
                launch["shared_bytes"],
                "; ".join(launch["roles"]),
            ]
            for launch in plan["launches"]
        ],
    )
    table(
        ["buffer", "role", "bytes", "versions"],
        [[b["name"], b["role"], b["bytes"], b["versions"]] for b in plan["buffers"]],
    )
    program = facts["program"]
    kernels = (
        ", ".join(f"{kernel['entry']} for {kernel['arch']}" for kernel in program["kernels"]) or "library calls only"
    )
    show(f"program: {kernels}; binaries {program['binary_digest']}, tables {program['table_digest']}")
    show(facts["proof"]["text"])


def _constraint(target: Target, name: str, as_json: bool) -> None:
    from tilescale.schedules.constraints import CONSTRAINTS, first_broken
    from tilescale.schedules.knob import points
    from tilescale.schedules.schedule import Schedule

    known = {constraint.name: constraint.rule for constraint in CONSTRAINTS}
    if name not in known:
        raise UsageError("--constraint is known", repr(name), nearest(name, known))
    rejected = []
    for point in points(target.spec, target.restrict):
        schedule = Schedule(**point)  # type: ignore[arg-type]
        broken = first_broken(target.spec, schedule)
        if broken is not None and broken.name == name:
            rejected.append(schedule)
    examples = [rejected[at * len(rejected) // EXAMPLES] for at in range(EXAMPLES)] if rejected else []
    examples = list(dict.fromkeys(examples))
    if as_json:
        show_json(
            {
                "constraint": name,
                "rule": known[name],
                "rejected": len(rejected),
                "examples": [schedule.as_dict() for schedule in examples],
            }
        )
        return
    show(f"{name}: {known[name]}")
    show(f"rejects {len(rejected)} of {target.space.size} points of {target.spec.label} (the first rule broken counts)")
    for schedule in examples:
        show(f"  {schedule.label}")
