"""`tilescale space`: the schedules of a spec, and why the other points are none; or a recording of predicted times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tilescale.commands.bar import Bar
from tilescale.commands.output import FAILED, UsageError, say, show, show_json, table
from tilescale.commands.places import folder_for
from tilescale.commands.selection import select
from tilescale.commands.target import AsJson, ScheduleText, Target, takes_targets


@takes_targets
def space(
    targets: Sequence[Target],
    schedule: ScheduleText = None,
    listed: Annotated[bool, typer.Option("--list", help="Every feasible schedule.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Record predicted times, which `tune` then replays where there is no GPU.")
    ] = False,
    spaces: Annotated[
        Path | None, typer.Option("--spaces", help="With --record: the folder; the user's own, which `tune` searches.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count feasible schedules and rejections; exit 1 where a workload has no feasible schedule."""
    if spaces is not None and not record:
        raise UsageError("--spaces goes with --record", str(spaces), "add --record, or leave it out")
    if record:
        from tilescale.runtime.replay import user_folder

        _record(targets, folder_for(spaces or user_folder(), "--spaces"), as_json)
        return
    found = [_facts(target, schedule, listed) for target in targets]
    if as_json:
        show_json({"workloads": found})
    for facts in found if not as_json else ():
        show(f"{facts['name']}: {facts['label']} on {facts['topology']}")
        show(f"{facts['size']} points, {facts['feasible']} feasible schedules")
        if facts["rejected"]:
            table(
                ["rejected", "constraint", "rule"],
                [[r["count"], r["constraint"], r["rule"]] for r in facts["rejected"]],
            )
        if listed:
            table(["digest", "schedule"], [[s["digest"], s["label"]] for s in facts["schedules"]])
    empty = [target for target in targets if not target.space.feasible]
    for target in empty:
        say(f"{target.name}: no schedule is feasible: change what the rejected points have in common, by their rules")
    if empty:
        raise typer.Exit(FAILED)


def _facts(target: Target, schedule: str | None, listed: bool) -> dict[str, Any]:
    from tilescale.schedules.constraints import CONSTRAINTS

    found, rules = target.space, {constraint.name: constraint.rule for constraint in CONSTRAINTS}
    facts: dict[str, Any] = {
        "name": target.name,
        "label": target.spec.label,
        "digest": target.spec.digest,
        "topology": target.spec.topology.name,
        "size": found.size,
        "feasible": found.feasible,
        "rejected": [
            {"constraint": name, "count": count, "rule": rules.get(name, "")}
            for name, count in sorted(found.rejected.items(), key=lambda item: (-item[1], item[0]))
        ],
    }
    if listed or schedule is not None:
        chosen = select(target, schedule)
        facts["schedules"] = [{"digest": s.digest, "label": s.label, "knobs": s.as_dict()} for s in chosen]
    return facts


def _record(targets: Sequence[Target], folder: Path, as_json: bool) -> None:
    from tilescale.errors import ScheduleError
    from tilescale.tuner.record_space import record

    written = []
    with Bar() as bar:
        for target in targets:

            def advance(done: int, total: int, name: str = target.name) -> None:
                bar.update(f"predicting {name}", done, total)

            if not target.space.feasible:
                raise ScheduleError(f"{target.name}: there are feasible schedules to record",
                                    f"none of {target.space.size} points: {target.space.explain_empty()}",
                                    "change the declaration or the topology")
            recorded = record(target.spec, target.space, progress=advance)
            written.append((target.name, len(recorded.rows), recorded.save(folder)))
    if as_json:
        show_json(
            [{"name": n, "schedules": rows, "source": "predicted", "path": str(path)} for n, rows, path in written]
        )
        return
    for name, rows, path in written:
        show(f"{name}: {rows} schedules with predicted times: {path}")
