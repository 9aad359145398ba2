"""`tilescale verify` and `tilescale emulate`: schedules shown right, or a counterexample."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilescale.commands.bar import Bar
from tilescale.commands.output import FAILED, UsageError, say, show, show_json
from tilescale.commands.places import folder_for
from tilescale.commands.selection import best_predicted, select, spread
from tilescale.commands.target import AsJson, ScheduleText, Target, takes_targets

if TYPE_CHECKING:
    from tilescale.schedules.schedule import Schedule

Worlds = Annotated[
    str | None, typer.Option("--worlds", help="Numbers of ranks instead of the recipe's, such as 2,3,4,6,8.")
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many, spread evenly.")]


@contextlib.contextmanager
def counted(found: Sequence[Mapping[str, Any]], done: str, bar: Bar) -> Iterator[None]:
    """Where the user interrupts, say how far each workload came; `done`: the fact that counts its schedules."""
    try:
        yield
    except KeyboardInterrupt:
        finished = [f"{facts['name']}: {facts[done]} of {facts['schedules']}" for facts in found]
        raise KeyboardInterrupt("; ".join([*finished, *([bar.last] if bar.last else [])])) from None


@takes_targets
def verify(
    targets: Sequence[Target],
    schedule: ScheduleText = None,
    everything: Annotated[bool, typer.Option("--all", help="Every shipped recipe, where none is named.")] = False,
    worlds: Worlds = None,
    limit: Limit = None,
    cached: Annotated[bool, typer.Option("--cache/--no-cache", help="Use and keep proofs on disk.")] = True,
    as_json: AsJson = False,
) -> None:
    """Prove plans, or print a counterexample; and judge their kernel texts by the static rules.

    All schedules, or those named. Exit 1 at the first counterexample, or where a text breaks a rule.
    """
    found: list[dict[str, Any]] = []
    texts = Texts()
    with Bar() as bar, counted(found, "proved", bar):
        for target in targets:
            chosen = spread(select(target, schedule), limit)
            found.append(_verify(target, chosen, cached, bar))
            if found[-1]["counterexample"] is not None:
                break
            texts.read(target, chosen, bar)
    rules = texts.facts()
    if as_json:
        show_json({"workloads": found, "rules": rules})
    for facts in [] if as_json else found:
        if facts["counterexample"] is None:
            proved = f"{facts['proved']} of {facts['schedules']} schedules proved"
            show(f"{facts['name']}: {proved}, {facts['protocols']} protocols")
        else:
            show(
                f"{facts['name']}: counterexample after {facts['proved']} proved, schedule {facts['schedule']}\n"
                f"{facts['counterexample']}\n{facts['timeline']}".rstrip()
            )
    if not as_json:
        found_wrong = f"{len(rules['violations'])} places that break a static rule"
        show("\n".join([f"{rules['texts']} kernel texts and the device library: {found_wrong}", *rules["violations"]]))
    if found[-1]["counterexample"] is not None or rules["violations"]:
        raise typer.Exit(FAILED)


class Texts:
    """The distinct kernel texts of schedules, judged by the static rules. Nothing is compiled."""

    def __init__(self) -> None:
        self.digests: set[str] = set()
        self.violations: set[str] = set()

    def read(self, target: Target, schedules: Sequence[Schedule], bar: Bar) -> None:
        """Judge the texts that are new. Schedules that share all that decides on texts are emitted once."""
        from tilescale.codegen.rules import check_kernel
        from tilescale.codegen.text import texts_of
        from tilescale.schedules.lower import lower

        known: set[object] = set()
        for done, schedule in enumerate(schedules):
            key = _text_knobs(schedule)
            if key in known:
                continue
            known.add(key)
            bar.update(f"reading {target.name}", done, len(schedules), f"{len(self.digests)} texts")
            for kernel in texts_of(target.spec, schedule, lower(target.spec, schedule)):
                if kernel.digest not in self.digests:
                    self.digests.add(kernel.digest)
                    self.violations |= {str(violation) for violation in check_kernel(kernel)}

    def facts(self) -> dict[str, Any]:
        return {"texts": len(self.digests), "violations": sorted(self.violations)}


def _text_knobs(schedule: Schedule) -> Schedule:
    """The schedule with what only tables hold set alike."""
    return replace(schedule, depth=1, chunk_order="peer_major", num_comm_blocks=min(schedule.num_comm_blocks, 1))


def _verify(target: Target, schedules: Sequence[Any], cached: bool, bar: Bar) -> dict[str, Any]:
    from tilescale.schedules.lower import lower
    from tilescale.schedules.proof_cache import ProofCache
    from tilescale.schedules.verify import verify as prove

    cache = ProofCache.on_disk() if cached else ProofCache()
    protocols: set[str] = set()
    facts: dict[str, Any] = {
        "name": target.name,
        "label": target.spec.label,
        "schedules": len(schedules),
        "proved": 0,
        "protocols": 0,
        "counterexample": None,
    }
    for done, schedule in enumerate(schedules):
        bar.update(f"verifying {target.name}", done, len(schedules), f"{len(protocols)} protocols")
        proof = prove(lower(target.spec, schedule), cache=cache)
        if proof.counterexample is not None:
            return {
                **facts,
                "proved": done,
                "protocols": len(protocols),
                "counterexample": str(proof.counterexample),
                "timeline": proof.counterexample.timeline,
                "schedule": f"{schedule.digest} ({schedule.label})",
            }
        protocols.add(proof.digest)
    return {**facts, "proved": len(schedules), "protocols": len(protocols)}


@takes_targets
def emulate(
    targets: Sequence[Target],
    schedule: ScheduleText = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that are named, not the best predicted alone; of every shipped recipe.")
    ] = False,
    worlds: Worlds = None,
    limit: Limit = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs a schedule, each with its own adversary.")] = 3,
    replay: Annotated[Path | None, typer.Option("--replay", help="Make the failed run of this file again.")] = None,
    keep: Annotated[Path, typer.Option("--keep", help="Where a failed run leaves its replay file.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Run emitted text on this CPU, at a small size.

    The best predicted schedule, or all that are named. Exit 1 at the first run that is wrong, which is printed and kept as
    a replay file.
    """
    if replay is not None:
        _replay(replay)
        return
    folder_for(keep, "--keep")
    found: list[dict[str, Any]] = []
    with Bar() as bar, counted(found, "right", bar):
        for target in targets:
            chosen = select(target, schedule)
            if not (everything or limit):
                chosen = (best_predicted(target, chosen, bar),)
            found.append(_emulate(target, spread(chosen, limit), seeds, bar, keep))
            if not found[-1]["ok"]:
                break
    if as_json:
        show_json({"workloads": found})
    for facts in [] if as_json else found:
        show(f"{facts['name']}: {facts['right']} of {facts['schedules']} schedules emulated right, {seeds} runs each")
        show(facts["report"])
    if not found[-1]["ok"]:
        raise typer.Exit(FAILED)


def _replay(path: Path) -> None:
    from tilescale.errors import EmulationError
    from tilescale.runtime import replay_file

    try:
        kept = replay_file.read(path)
    except EmulationError as error:
        raise UsageError(f"--replay: {error.rule}", error.actual, error.remedy) from None
    emulation, changed = replay_file.run(kept)
    if changed:
        say("the device library has changed since this file was written")
    show(emulation.report)
    if not emulation.ok:
        raise typer.Exit(FAILED)


def _emulate(target: Target, schedules: Sequence[Any], seeds: int, bar: Bar, keep: Path) -> dict[str, Any]:
    from tilescale.codegen.emit import emit
    from tilescale.codegen.rules import check_kernels
    from tilescale.runtime import replay_file
    from tilescale.runtime.emulate import USUAL
    from tilescale.runtime.emulate import emulate as run

    facts: dict[str, Any] = {"name": target.name, "label": target.spec.label, "schedules": len(schedules), "ok": True}
    report = ""
    for done, schedule in enumerate(schedules):
        violations = check_kernels(emit(target.spec, schedule).kernels)
        if violations:
            report = "\n".join(map(str, violations))
            return {**facts, "ok": False, "right": done, "report": report, "schedule": schedule.digest}
        for seed in range(seeds):
            bar.update(f"runs of {target.name}", done * seeds + seed, len(schedules) * seeds,
                       f"schedule {done + 1} of {len(schedules)}, seed {seed}")
            emulation = run(target.spec, schedule, seed=seed)
            report = emulation.report
            if not emulation.ok:
                path = replay_file.write(keep, target.spec, schedule, emulation, USUAL)
                report += f"\nto make this run again: tilescale emulate --replay {path}"
                return {
                    **facts, "ok": False, "right": done, "report": report, "schedule": schedule.digest, "replay": str(path)
                }
    bar.update(f"runs of {target.name}", len(schedules) * seeds, len(schedules) * seeds)
    return {**facts, "right": len(schedules), "report": report}
