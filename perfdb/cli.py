"""The command `perfdb`. Exit codes: 0 fine, 1 the job failed (the message says why), 2 wrong usage."""

from __future__ import annotations

import typer

from perfdb import cli_files, cli_queries, cli_watch

app = typer.Typer(
    name="perfdb",
    help="What was measured, what was best, what failed, what changed.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    cli_queries.best,
    cli_queries.history,
    cli_queries.failures,
    cli_queries.nearest,
    cli_watch.compare,
    cli_watch.regressions,
    cli_watch.annotate,
    cli_queries.training,
    cli_queries.predictions,
    cli_queries.recommendations,
    cli_files.merge,
    cli_files.check,
    cli_files.migrate,
):
    app.command()(command)
app.command("import")(cli_files.import_)


def main() -> None:
    """The console script."""
    app(prog_name="perfdb")


if __name__ == "__main__":
    main()
