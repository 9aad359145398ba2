"""What commands print: results on stdout, whole whatever the terminal; everything else on stderr."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import typer

from tilescale.errors import RecipeError, SpecError, TilescaleError, TopologyError

FAILED, USAGE, INTERRUPTED, PIPE = 1, 2, 130, 141
# What was asked for is wrong, as opposed to what was found.
_ASKED = (RecipeError, SpecError, TopologyError)


class UsageError(TilescaleError):
    """An option with a wrong value."""


def say(text: str) -> None:
    """A line on stderr."""
    typer.echo(text, err=True)


def show(text: str) -> None:
    """A line on stdout."""
    typer.echo(text)


def show_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


@contextmanager
def reported() -> Iterator[None]:
    """Errors become one message and an exit code: 2 for what was asked, 1 for what was found, 130 interrupted, 141 (and
    no message) where nobody reads the output any more."""
    try:
        yield
    except BrokenPipeError:
        raise typer.Exit(PIPE) from None
    except OSError as error:
        say(f"error: {of_system(error)}")
        raise typer.Exit(FAILED) from error
    except TilescaleError as error:
        say(f"error: {error}")
        asked = isinstance(error, (*_ASKED, UsageError)) or type(error).__name__ == "MissingDatabase"
        raise typer.Exit(USAGE if asked else FAILED) from error
    except KeyboardInterrupt as interrupt:
        say(f"interrupted: {interrupt}" if str(interrupt) else "interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if not _of_database(error):
            raise
        say(f"error: {error}")
        raise typer.Exit(USAGE if type(error).__name__ == "MissingDatabase" else FAILED) from error


_REMEDIES = {
    errno.EACCES: "choose a place that you may use, or change its permissions",
    errno.EPERM: "choose a place that you may use, or change its permissions",
    errno.EROFS: "choose a place that can be written",
    errno.ENOSPC: "free some space, or write elsewhere",
    errno.EDQUOT: "free some space, or write elsewhere",
    errno.ENOTDIR: "a part of the path is a file: choose another path",
    errno.EISDIR: "name a file, not a folder",
    errno.EEXIST: "choose another path",
    errno.ENOENT: "check the path",
}


def of_system(error: OSError) -> TilescaleError:
    """What the operating system refused, with the path and the remedy."""
    paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
    what = " and ".join(paths) or "the output"
    remedy = _REMEDIES.get(error.errno or 0, "choose another path")
    return TilescaleError(f"{what} can be used", error.strerror or str(error), remedy)


def _of_database(error: Exception) -> bool:
    # Without importing the database where nothing of it was used: then no error is of it.
    module = sys.modules.get("perfdb.errors")
    return module is not None and isinstance(error, module.DatabaseError)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout as wide as its content: no cell is cut or folded. Numbers are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    cells = [[_cell(value) for value in row] for row in rows]
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for at, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[at], int | float) for row in rows)
        shown.add_column(name, no_wrap=True, overflow="ignore", justify="right" if numeric else "left")
    for cell_row in cells:
        shown.add_row(*cell_row)
    width = sum(max(len(name), *(len(row[at]) for row in cells), 0) + 2 for at, name in enumerate(columns))
    text = StringIO()
    colours = sys.stdout.isatty()
    Console(
        file=text, width=width, soft_wrap=True, markup=False, highlight=False, emoji=False, force_terminal=colours
    ).print(shown)
    for line in text.getvalue().splitlines():
        show(line.rstrip())


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.2f}"
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str(value)).split())
