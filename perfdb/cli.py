"""The command `perfdb`. Exit codes: 0 fine, 1 the job failed (the message says why), 2 wrong usage."""

from __future__ import annotations

import errno
import os
import sys

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
    try:
        app(prog_name="perfdb")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        # What is left in the buffer would fail again at exit.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for what is left of this process
        sys.exit(f"error: the output must be written; got: {error.strerror}; free some space or give another place")


if __name__ == "__main__":
    main()
