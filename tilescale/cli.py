"""The command `tilescale`.

Exit codes: 0 fine, 1 the job failed (the message says why), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import typer

from tilescale.commands import bench, bundle, emit, explain, model, prove, space, topology, tune

app = typer.Typer(
    name="tilescale",
    help="Declare a distributed GPU operation; get the fastest proven-correct kernel for your shapes on your machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("tune")(tune.tune)
app.command("space")(space.space)
app.command("explain")(explain.explain)
app.command("verify")(prove.verify)
app.command("emulate")(prove.emulate)
app.command("emit")(emit.emit)
app.command("compile")(emit.compile_)
app.command("export")(bundle.export)
app.command("topology")(topology.topology)
app.command("bench")(bench.bench)
app.add_typer(bundle.app, name="bundle")
app.add_typer(model.app, name="model")


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
