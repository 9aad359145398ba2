"""The command `tilescale`.

Exit codes: 0 fine, 1 the job failed (the message says why), 2 wrong usage, 130 interrupted, 141 the reader of the
output has gone (as of any command that SIGPIPE ends).
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from typing import Annotated

import typer

from tilescale.commands import bench, bundle, emit, explain, model, prove, report, space, topology, tune
from tilescale.commands.output import FAILED, INTERRUPTED, PIPE, of_system, say, show
from tilescale.errors import printable

app = typer.Typer(
    name="tilescale",
    help="Declare a distributed GPU operation; get the fastest proven-correct kernel for your shapes on your machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        from tilescale import __version__

        show(f"tilescale {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version and exit.")
    ] = False,
) -> None: ...


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
app.command("report")(report.report)
app.add_typer(bundle.app, name="bundle")
app.add_typer(model.app, name="model")


def main() -> None:
    """The console script. An error of the operating system that no command expects is one message too."""
    for name in ("stdout", "stderr"):  # a stream that was closed by the caller is None: what is said goes nowhere
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
    with warnings.catch_warnings():
        warnings.showwarning = _warned
        code = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        code = code or (PIPE if isinstance(error, BrokenPipeError) else _told(error))
        with contextlib.suppress(OSError, ValueError):  # or the interpreter tries again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _warned(message: Warning | str, *place: object, **more: object) -> None:
    """A warning as a line: where in the code it was raised tells a user nothing."""
    say(f"warning: {printable(str(message))}")


def _run() -> int | str | None:
    try:
        app(prog_name="tilescale")
    except SystemExit as end:
        return end.code
    except BrokenPipeError:
        return PIPE
    except OSError as error:
        return _told(error)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    return 0


def _told(error: OSError) -> int:
    with contextlib.suppress(OSError):
        say(f"error: {of_system(error)}")
    return FAILED


if __name__ == "__main__":
    main()
