"""`tilescale model fit|eval`: learn from what was measured, and say how good that is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilescale.commands.bar import Bar
from tilescale.commands.bundle import Db
from tilescale.commands.output import UsageError, reported, say, show, show_json, table
from tilescale.commands.places import database
from tilescale.commands.target import AsJson
from tilescale.errors import nearest

if TYPE_CHECKING:
    from tilescale.costmodel.learned import LearnedModel
    from tilescale.costmodel.rows import Row
    from tilescale.runtime.replay import RecordedSpace
    from tilescale.tuner.evaluate import Accuracy, Held, SpaceQuality

Source = Annotated[str | None, typer.Option("--source", help="measured, measured_scale_model, measured_shared_gpu.")]
SpaceFiles = Annotated[
    list[Path] | None, typer.Option("--space", help="A recorded space (.jsonl.gz); can be given several times.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The model file; the user's own if left out.")]
NOTHING = "a model needs measurements"


def fit(
    db: Db = None,
    source: Source = None,
    space: SpaceFiles = None,
    output: Output = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1)] = 0,
    as_json: AsJson = False,
) -> None:
    """Fit a model for each kind of measurement.

    Learns from the database, or from recorded spaces instead. Times that were replayed or predicted teach nothing.
    """
    with reported():
        from tilescale.costmodel.learned import fit as fit_model
        from tilescale.costmodel.model_file import save
        from tilescale.costmodel.paths import user_path

        found = _experience(db, source, space or [])
        if output is not None and len(found) > 1:
            raise UsageError("--output goes with one source", ", ".join(found), "choose with --source")
        facts = []
        with Bar() as bar:
            for kind, rows, notes in ((kind, *one) for kind, one in found.items()):
                learned = list(bar.each(f"predicting {kind}", (_predicted(row) for row in rows), len(rows)))
                model = fit_model(learned, seed)
                path = output or user_path(kind)
                facts.append(_model_facts(model, notes, str(path), save(model, path)))
        if as_json:
            show_json({"models": facts})
            return
        for one in facts:
            _show_model(one)


def evaluate(
    db: Db = None,
    source: Source = None,
    space: SpaceFiles = None,
    measurements: Annotated[int, typer.Option("--measurements", min=1, help="Of a search.")] = 24,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Searches of a recorded space.")] = 100,
    strategy: Annotated[list[str] | None, typer.Option("--strategy", help="Another one to compare with.")] = None,
    as_json: AsJson = False,
) -> None:
    """Leave one workload out; search recorded spaces.

    Without --space, the database is evaluated, and the spaces that the package ships are searched.
    """
    with reported():
        from tilescale.tuner.evaluate import leave_one_out, search_quality
        from tilescale.tuner.strategy import STRATEGIES

        for name in strategy or []:
            if name not in STRATEGIES:
                raise UsageError("--strategy is known", repr(name), nearest(name, STRATEGIES.names()))
        spaces = _spaces(space) if space else _shipped(source)
        found = _experience(db, source, space or [], empty=bool(spaces))
        with Bar() as bar:
            held = {kind: leave_one_out(rows, bar.update) for kind, (rows, _) in found.items()}
            searched = search_quality(spaces, measurements, seeds, strategy or [], bar.update)
        if as_json:
            show_json(evaluation(held, searched, measurements, seeds))
            return
        _show_held(held)
        _show_searched(searched, measurements, seeds)


def evaluation(
    held: dict[str, tuple[Held, ...]], searched: Sequence[SpaceQuality], measurements: int, seeds: int
) -> dict[str, Any]:
    """What an evaluation found, as plain values."""
    return {
        "leave_one_out": {kind: [dataclasses.asdict(one) for one in found] for kind, found in held.items()},
        "measurements": measurements,
        "seeds": seeds,
        "search": [dataclasses.asdict(one) for one in searched],
    }


def _predicted(row: Row) -> Row:
    return dataclasses.replace(row, prior=row.predicted)


def _spaces(files: Sequence[Path]) -> list[RecordedSpace]:
    from tilescale.runtime.replay import RecordedSpace

    return [RecordedSpace.load(path) for path in files]


def _shipped(source: str | None) -> list[RecordedSpace]:
    from tilescale.costmodel.rows import TRAINABLE
    from tilescale.runtime import replay

    spaces = _spaces(sorted(replay.SHIPPED.glob(f"*{replay.SUFFIX}")))
    return [space for space in spaces if space.source in ((source,) if source else TRAINABLE)]


def _experience(
    db: str | None, source: str | None, files: Sequence[Path], empty: bool = False
) -> dict[str, tuple[tuple[Row, ...], tuple[str, ...]]]:
    """Rows and notes by source: of the files, or of the database where there are none. `empty`: there may be none."""
    from tilescale.costmodel.rows import TRAINABLE, ModelError
    from tilescale.tuner.experience import from_database, from_spaces

    if source is not None and source not in TRAINABLE:
        raise UsageError(f"--source is one of {', '.join(TRAINABLE)}", source, nearest(source, TRAINABLE))
    kinds = (source,) if source else TRAINABLE
    by: dict[str, tuple[tuple[Row, ...], tuple[str, ...]]]
    if files:
        rows = from_spaces(_spaces(files))
        by = {kind: (tuple(row for row in rows if row.source == kind), ()) for kind in kinds}
    else:
        import perfdb

        where = database(db, create=True)
        with perfdb.open_database(where) as opened:
            stored = {kind: from_database(opened, kind) for kind in kinds}
        by = {kind: (one.rows, one.notes) for kind, one in stored.items()}
    found = {kind: one for kind, one in by.items() if one[0]}
    if not found and not empty:
        places = ", ".join(map(str, files)) or where
        raise ModelError(NOTHING, f"none of {', '.join(kinds)} in {places}", "tune on a GPU first, or give --space")
    return found


def _model_facts(model: LearnedModel, notes: Sequence[str], path: str, digest: str) -> dict[str, Any]:
    return {
        "source": model.source,
        "path": path,
        "digest": digest,
        "rows": model.rows,
        "failures": model.failures,
        "workloads": len(model.workloads),
        "ops": list(model.ops),
        "gpus": list(model.gpus),
        "prior_error": model.prior_error,
        "known_error": model.known_error,
        "new_error": model.new_error,
        "notes": list(notes),
    }


def _show_model(facts: dict[str, Any]) -> None:
    show(
        f"{facts['source']}: {facts['rows']} good and {facts['failures']} failed rows of {facts['workloads']} workloads"
        f" ({', '.join(facts['ops'])} on {', '.join(facts['gpus'])})"
    )
    for note in facts["notes"]:
        show(note)
    show(f"median error of the analytic prior: {facts['prior_error']:.1%}")
    show(f"of the model, held-out rows of known workloads: {facts['known_error']:.1%}")
    if facts["new_error"] is not None:
        show(f"of the model, held-out workloads: {facts['new_error']:.1%}")
    else:
        show("of the model, held-out workloads: not known, there is one workload")
    show(f"model: {facts['path']} ({facts['digest']})")


def _show_held(held: dict[str, tuple[Held, ...]]) -> None:
    if not held:
        say("the database holds no measurements: no workload is left out")
    columns = ["workload", "rows", "learned from", "by", "rank", "error %", "regret 1 %", "regret 8 %", "inside %"]
    for kind, found in held.items():
        show(f"leave one workload out ({kind}):")
        rows: list[list[object]] = []
        for one in found:
            rows.append([one.label, one.rows, None, "prior", *_accuracy(one.prior), None])
            if one.model is not None and one.covered is not None:
                learned = [one.label, one.rows, one.learned_from, "model", *_accuracy(one.model), 100 * one.covered]
                rows.append(learned)
        table(columns, rows)


def _accuracy(found: Accuracy) -> list[float]:
    return [found.rank, 100 * found.error, *(100 * share for share in found.regret)]


def _show_searched(searched: Sequence[SpaceQuality], measurements: int, seeds: int) -> None:
    if not searched:
        say("no recorded space of measured times: nothing to search")
    for one in searched:
        show(
            f"{one.label}: best of {one.rows} recorded schedules ({one.failures} failed) after {measurements}"
            f" measurements, {seeds} seeds, as a share of the fastest ({one.best_us:.1f} us)"
        )
        columns = ["by", "mean", "least", "10th percentile", "0.98 reached", "failed"]
        table(columns, [[w.way, w.mean, w.least, w.tenth, w.reached, w.failed] for w in one.ways])


app = typer.Typer(help="Learn a cost model from measurements.", no_args_is_help=True, rich_markup_mode=None)
app.command("fit")(fit)
app.command("eval")(evaluate)
