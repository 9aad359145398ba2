"""The command `perfdb`. Exit codes: 0 fine, 1 the job failed (the message says why), 2 wrong usage."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from perfdb.errors import DatabaseError, MissingDatabase, RecordError

if TYPE_CHECKING:
    import pandas as pd

    from perfdb.session import Database

app = typer.Typer(
    name="perfdb",
    help="What was measured, what was best, what failed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

DbOption = Annotated[str | None, typer.Option("--db", help="Path or URL; the user's own database if left out.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON list of rows, every column.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="CSV with a header, every column.")]
OpOption = Annotated[str | None, typer.Option("--op", help="Operation, for example ag_gemm.")]
ShapeOption = Annotated[str | None, typer.Option("--shape", help="Sizes, for example 4096x10240x8192.")]
GpuOption = Annotated[str | None, typer.Option("--gpu", help="GPU model, for example H200.")]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--source", help="measured (the default of best and history), predicted, ...; may be repeated."),
]

BEST_COLUMNS = [
    "rank",
    "source",
    "op",
    "shape",
    "dtype",
    "world",
    "gpu",
    "power_cap_w",
    "driver",
    "value_us",
    "schedule_label",
    "schedule",
    "trial_id",
    "stale",
    "differs",
    "match",
]
HISTORY_COLUMNS = [
    "recorded_at",
    "source",
    "op",
    "shape",
    "dtype",
    "world",
    "gpu",
    "power_cap_w",
    "driver",
    "value_us",
    "schedule_label",
    "schedule",
    "session_id",
    "trial_id",
]
FAILURE_COLUMNS = ["source", "op", "status", "count", "schedules", "trial_id", "message"]


@app.command()
def best(
    db: DbOption = None,
    op: OpOption = None,
    shape: ShapeOption = None,
    gpu: GpuOption = None,
    source: SourceOption = None,
    world: Annotated[int | None, typer.Option(help="Number of ranks.")] = None,
    power_cap: Annotated[int | None, typer.Option(help="Power cap in W.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows a group of comparable trials.")] = 10,
    stale: Annotated[bool, typer.Option("--stale", help="Also what a newer driver or toolchain replaced.")] = False,
    nearest: Annotated[bool, typer.Option("--nearest", help="No such GPU: the nearest one's rows, labelled.")] = False,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """The fastest schedules, ranked only among trials that can be compared. Exit 1 if nothing matches."""
    from perfdb import queries

    show = _printer(as_json, as_csv, BEST_COLUMNS)
    with _opened(db) as database:
        frame = queries.best(
            database,
            op=op,
            shape=shape,
            gpu=gpu,
            world=world,
            power_cap_w=power_cap,
            sources=source,
            limit=limit,
            include_stale=stale,
            nearest=nearest,
        )
        for note in frame.attrs["notes"]:
            _say(f"note: {note}")
        show(frame)
        if frame.empty:
            _fail(_no_match(database, op, shape, gpu, source))


@app.command()
def history(
    db: DbOption = None,
    op: OpOption = None,
    shape: ShapeOption = None,
    gpu: GpuOption = None,
    source: SourceOption = None,
    schedule: Annotated[str | None, typer.Option(help="Digest of the schedule to follow.")] = None,
    policy: Annotated[str, typer.Option(help="best: one point a session; all: every trial.")] = "best",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Good trials over time. Exit 1 if nothing matches."""
    from perfdb import queries

    show = _printer(as_json, as_csv, HISTORY_COLUMNS)
    with _opened(db) as database:
        frame = queries.history(database, op=op, shape=shape, gpu=gpu, sources=source, schedule=schedule, policy=policy)
        show(frame)
        if frame.empty:
            _fail(_no_match(database, op, shape, gpu, source))


@app.command()
def failures(
    db: DbOption = None,
    op: OpOption = None,
    shape: ShapeOption = None,
    gpu: GpuOption = None,
    source: SourceOption = None,
    session: Annotated[int | None, typer.Option(help="Only this session.")] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Failed trials by cause, with an example of each."""
    from perfdb import queries

    show = _printer(as_json, as_csv, FAILURE_COLUMNS)
    with _opened(db) as database:
        frame = queries.failures(database, op=op, shape=shape, gpu=gpu, sources=source, session_id=session)
        show(frame)
        if frame.empty:
            _say("no failed trial matches")


@app.command()
def check(db: DbOption = None) -> None:
    """Read the whole file through: pages, indexes, references. Exit 1 if anything is wrong."""
    from perfdb.checking import check_database

    with _reported():
        report = check_database(_existing(db))
    for line in report.lines:
        typer.echo(line)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def migrate(db: DbOption = None) -> None:
    """Bring a database to the schema of this version, after a backup beside it (back a server up yourself)."""
    from perfdb.engine import parse_url
    from perfdb.schema import VERSIONS, prepare

    with _reported():
        done = prepare(parse_url(_existing(db)), create=False)
    if done.found == VERSIONS[-1]:
        typer.echo(f"schema {done.found}: nothing to do")
    else:
        typer.echo(f"schema {done.found} -> {VERSIONS[-1]}" + (f", backup {done.backup}" if done.backup else ""))


def _existing(db: str | None) -> str:
    from perfdb.session import default_url

    return db if db is not None else default_url()


@contextmanager
def _reported() -> Iterator[None]:
    """An error of the database is a message and an exit code: 2 for what was asked, 1 for what was found."""
    try:
        yield
    except (MissingDatabase, RecordError) as error:
        _say(f"error: {error}")
        raise typer.Exit(2) from error
    except DatabaseError as error:
        _fail(str(error))


@contextmanager
def _opened(db: str | None) -> Iterator[Database]:
    from perfdb.session import open_database

    with _reported(), open_database(_existing(db), create=False) as database:
        yield database


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _fail(text: str) -> NoReturn:
    _say(f"error: {text}")
    raise typer.Exit(1)


def _printer(as_json: bool, as_csv: bool, columns: Sequence[str]) -> Callable[[pd.DataFrame], None]:
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
    if name == "value_us":
        return f"{value:.2f}"
    if name == "recorded_at":
        return f"{value:%Y-%m-%d %H:%M:%S}Z"
    # One line a row, and no character that would move the cursor of a terminal.
    text = "" if value is None or str(value) in ("<NA>", "nan") else str(value)
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _no_match(db: Database, op: str | None, shape: str | None, gpu: str | None, sources: Sequence[str] | None) -> str:
    """Say that nothing matched and what is nearest; nothing of it is used."""
    from perfdb.misses import what_is_there

    asked = {"op": op, "shape": shape, "gpu": gpu, "source": ", ".join(sources or ("measured",))}
    text = ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
    return "\n".join([f"no exact match for {text}", *what_is_there(db, op=op, shape=shape, gpu=gpu, sources=sources)])


def main() -> None:
    """The console script."""
    app(prog_name="perfdb")


if __name__ == "__main__":
    main()
