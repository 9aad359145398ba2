"""What the commands share: options, opening a database, errors as exit codes, tables, JSON and CSV."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from perfdb.errors import DatabaseError, MissingDatabase, RecordError

if TYPE_CHECKING:
    import pandas as pd

    from perfdb.session import Database

DbOption = Annotated[str | None, typer.Option("--db", help="Path or URL; the user's own database if left out.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON list of rows, every column.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="CSV with a header, every column.")]
OpOption = Annotated[str | None, typer.Option("--op", help="Operation, for example ag_gemm.")]
ShapeOption = Annotated[str | None, typer.Option("--shape", help="Sizes, for example 4096x10240x8192.")]
GpuOption = Annotated[str | None, typer.Option("--gpu", help="GPU model, for example H200.")]
# What an INTEGER and a BIGINT of a server hold.
MOST, LARGEST_ID = 2**31 - 1, 2**63 - 1
WorldOption = Annotated[int | None, typer.Option("--world", min=1, max=MOST, help="Number of ranks.")]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--source", help="measured (the default of best and history), predicted, ...; may be repeated."),
]


def existing(db: str | None) -> str:
    """The database that an option names, or the user's own."""
    from perfdb.session import default_url

    return db if db is not None else default_url()


@contextmanager
def reported() -> Iterator[None]:
    """An error of the database is a message and an exit code: 2 for what was asked, 1 for what was found."""
    try:
        yield
    except (MissingDatabase, RecordError) as error:
        say(f"error: {error}")
        raise typer.Exit(2) from error
    except DatabaseError as error:
        fail(str(error))


@contextmanager
def opened(db: str | None) -> Iterator[Database]:
    """An existing database, opened; its errors reported."""
    from perfdb.session import open_database

    with reported(), open_database(existing(db), create=False) as database:
        yield database


def require(
    db: Database, *, op: str | None = None, shape: str | None = None, gpu: str | None = None, dtype: str | None = None
) -> None:
    """See asked.require."""
    from perfdb import asked

    asked.require(db, op=op, shape=shape, gpu=gpu, dtype=dtype)


def known(db: Database, **values: str | int | None) -> None:
    """Exit 1 if a value is stored nowhere: an empty answer would read as if there were nothing to say."""
    from perfdb.asked import unknown

    lines = unknown(db, values)
    if lines:
        fail("\n".join(lines))


def utc(moment: datetime | None) -> datetime | None:
    """A time without a zone is in UTC."""
    return None if moment is None else moment.replace(tzinfo=moment.tzinfo or UTC)


def say(text: str) -> None:
    """A line on stderr."""
    typer.echo(text, err=True)


def fail(text: str) -> NoReturn:
    """An error message and exit code 1."""
    say(f"error: {text}")
    raise typer.Exit(1)


def printer(as_json: bool, as_csv: bool, columns: Sequence[str]) -> Callable[[pd.DataFrame], None]:
    """How a frame is shown: a table of `columns` for people, or every column for machines."""
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other; give one")
    if as_json:
        return _print_json
    if as_csv:
        return lambda frame: typer.echo(frame.to_csv(index=False), nl=False)
    return lambda frame: _print_table(frame, columns)


def _print_json(frame: pd.DataFrame) -> None:
    rows = json.loads(frame.to_json(orient="records", date_format="iso", double_precision=15))
    typer.echo(json.dumps(rows, indent=2))


def _print_table(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """A table that fits its content: a terminal may fold a line, but no cell is cut and a pipe gets one line a row."""
    from rich.console import Console
    from rich.table import Table

    if frame.empty:
        return
    shown = [name for name in columns if name in frame.columns and _informative(frame, name)]
    values = frame[shown].itertuples(index=False)
    rows = [[_cell(name, value) for name, value in zip(shown, row, strict=True)] for row in values]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in shown:
        table.add_column(name, no_wrap=True, overflow="ignore", justify="right" if _is_number(frame, name) else "left")
    for row in rows:
        table.add_row(*row)
    # As wide as the widest row needs, whatever the terminal: rich would cut cells to fit otherwise.
    width = sum(max(len(name), *(len(row[index]) for row in rows)) + 2 for index, name in enumerate(shown))
    Console(file=sys.stdout, width=width, soft_wrap=True, markup=False, highlight=False, emoji=False).print(table)


def _informative(frame: pd.DataFrame, name: str) -> bool:
    """Columns that only label exceptions are left out of a table in which there are none."""
    quiet = {"stale": False, "differs": "", "match": "exact"}
    return name not in quiet or bool((frame[name] != quiet[name]).any())


def _is_number(frame: pd.DataFrame, name: str) -> bool:
    return frame[name].dtype.kind in "if"


def _cell(name: str, value: object) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return f"{value:.2g}" if name.endswith("_value") else f"{value:.2f}"
    if name.endswith("_at"):
        return f"{value:%Y-%m-%d %H:%M:%S}Z"
    # One line a row, and no character that would move the cursor of a terminal.
    text = "" if value is None or str(value) in ("<NA>", "nan") else str(value)
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
