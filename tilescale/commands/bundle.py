"""`tilescale export` and `tilescale bundle check|show`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilescale.commands.output import FAILED, reported, show, show_json, table
from tilescale.commands.places import bundle_for, database
from tilescale.commands.target import AsJson, Target, takes_targets

if TYPE_CHECKING:
    from tilescale.deploy.manifest import Manifest
    from tilescale.spec.op import Spec


def not_for_serving(specs: Iterable[Spec]) -> list[str]:
    """What a reader must know of a bundle for a machine that is a model of another."""
    names = sorted({spec.topology.name for spec in specs if spec.topology.kind == "scale_model"})
    return [f"for measuring, not for serving: on {name} every remote byte is charged to a modelled link" for name in names]


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a bundle.")]
Db = Annotated[str | None, typer.Option("--db", help="Path or URL; the user's own database if left out.")]


@takes_targets
def export(
    targets: Sequence[Target],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the bundle.")],
    db: Db = None,
    source: Annotated[str | None, typer.Option("--source", help="measured, replayed, predicted, ...")] = None,
    as_json: AsJson = False,
) -> None:
    """Bundle the best that the database knows."""
    from tilescale.tuner.export import emulated
    from tilescale.tuner.remembered import recall

    where, _ = database(db), bundle_for(output, "--output")
    results = recall({target.name: target.spec for target in targets}, where, source)
    folder = results.export(output, emulated)
    if as_json:
        show_json(
            {
                "bundle": str(folder),
                "operations": [
                    {"name": name, "source": r.source, "us": r.best_us, "schedule": r.best.digest}
                    for name, r in results.items()
                ],
            }
        )
        return
    table(["name", "us", "source", "schedule"], [[n, r.best_us, r.source, r.best.label] for n, r in results.items()])
    show(f"bundle: {folder}")
    for note in not_for_serving(target.spec for target in targets):
        show(note)


def check(folder: Folder, as_json: AsJson = False) -> None:
    """Check a bundle, and the machine if there is one.

    Exit 1 with the problems.
    """
    with reported():
        from tilescale.deploy.checking import check as check_bundle

        report = check_bundle(folder)
        if as_json:
            show_json({"ok": report.ok, **dataclasses.asdict(report)})
        else:
            show(str(report))
        if not report.ok:
            raise typer.Exit(FAILED)


def contents(folder: Folder, as_json: AsJson = False) -> None:
    """Say what a bundle holds."""
    with reported():
        from tilescale import canon
        from tilescale.deploy.bundle import read

        manifest = read(folder).manifest
        if as_json:
            show_json({"digest": manifest.digest, **canon.encode(manifest)})
            return
        _show(folder, manifest)


def _show(folder: Path, manifest: Manifest) -> None:
    show(f"{folder}: {manifest.digest}, made {manifest.created} by tilescale {manifest.tilescale}")
    needs = f"driver {manifest.minimum_driver} or newer" if manifest.minimum_driver else "any driver"
    machines = ", ".join(sorted({topology.name for topology in manifest.topologies}))
    show(f"{manifest.world} ranks, for {machines}; {', '.join(manifest.archs) or 'no binaries'}; {needs}")
    rows = []
    for operation in manifest.operations:
        for variant in operation.variants:
            evidence = variant.evidence
            rows.append(
                [
                    operation.name,
                    variant.spec.label,
                    evidence.best_us,
                    evidence.source,
                    len(evidence.ties),
                    variant.schedule.label,
                    evidence.proof,
                ]
            )
    table(["operation", "shape", "us", "source", "ties", "schedule", "proof"], rows)
    table(
        ["binary", "entry", "arch", "registers", "spill bytes"],
        [[k.digest, k.entry, k.arch, k.registers, k.spill_bytes] for k in manifest.kernels],
    )
    show(f"{len(manifest.files)} files, {sum(file.size for file in manifest.files)} bytes")


app = typer.Typer(help="Look at an exported bundle.", no_args_is_help=True, rich_markup_mode=None)
app.command("check")(check)
app.command("show")(contents)
