"""Commands that ask: best, history, failures, nearest, training, predictions, recommendations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from perfdb.cli_output import (
    LARGEST_ID,
    MOST,
    CsvOption,
    DbOption,
    GpuOption,
    JsonOption,
    OpOption,
    ShapeOption,
    SourceOption,
    WorldOption,
    fail,
    known,
    opened,
    printer,
    require,
    say,
    utc,
)

if TYPE_CHECKING:
    from perfdb.session import Database

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


class Policy(StrEnum):
    """Which points a history has."""

    best = "best"
    all = "all"


def best(
    db: DbOption = None,
    op: OpOption = None,
    shape: ShapeOption = None,
    gpu: GpuOption = None,
    source: SourceOption = None,
    world: WorldOption = None,
    power_cap: Annotated[int | None, typer.Option(min=0, max=MOST, help="Power cap in W, 0 for none.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="Rows a group of comparable trials.")] = 10,
    stale: Annotated[bool, typer.Option("--stale", help="Also what a newer driver or toolchain replaced.")] = False,
    nearest: Annotated[bool, typer.Option("--nearest", help="No such GPU: the nearest one's rows, labelled.")] = False,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """The fastest schedules, ranked only among trials that can be compared. Exit 1 if nothing matches."""
    from perfdb import queries

    show = printer(as_json, as_csv, BEST_COLUMNS)
    with opened(db) as database:
        require(database, op=op, shape=shape, gpu=gpu)
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
            say(f"note: {note}")
        show(frame)
        if frame.empty:
            fail(no_match(database, op, shape, gpu, source, world=world, power_cap_w=power_cap))


def history(
    db: DbOption = None,
    op: OpOption = None,
    shape: ShapeOption = None,
    gpu: GpuOption = None,
    source: SourceOption = None,
    schedule: Annotated[str | None, typer.Option(help="Digest of the schedule to follow.")] = None,
    since: Annotated[datetime | None, typer.Option(help="From this moment on (UTC).")] = None,
    policy: Annotated[Policy, typer.Option(help="best: one point a session; all: every trial.")] = Policy.best,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Good trials over time. Exit 1 if nothing matches."""
    from perfdb import queries

    show = printer(as_json, as_csv, HISTORY_COLUMNS)
    with opened(db) as database:
        require(database, op=op, shape=shape, gpu=gpu)
        frame = queries.history(
            database, op=op, shape=shape, gpu=gpu, sources=source, schedule=schedule, since=utc(since),
            policy=policy.value,
        )  # fmt: skip
        show(frame)
        if frame.empty:
            fail(no_match(database, op, shape, gpu, source, schedule=schedule, since=utc(since)))


def failures(
    db: DbOption = None,
    op: OpOption = None,
    shape: ShapeOption = None,
    gpu: GpuOption = None,
    source: SourceOption = None,
    session: Annotated[int | None, typer.Option(min=1, max=LARGEST_ID, help="Only this session.")] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Failed trials by cause, with an example of each. Exit 1 if what is asked about is not stored."""
    from perfdb import queries

    show = printer(as_json, as_csv, FAILURE_COLUMNS)
    with opened(db) as database:
        require(database, op=op, shape=shape, gpu=gpu)
        known(database, op=op, gpu=gpu, session=session)
        frame = queries.failures(database, op=op, shape=shape, gpu=gpu, sources=source, session_id=session)
        show(frame)
        if frame.empty:
            say("no failed trial matches")


def nearest(
    db: DbOption = None,
    op: Annotated[str, typer.Option("--op", help="Operation, for example ag_gemm.")] = ...,  # type: ignore[assignment]
    shape: Annotated[str, typer.Option("--shape", help="Sizes, for example 4096x10240x8192.")] = ...,  # type: ignore[assignment]
    dtype: Annotated[str | None, typer.Option(help="Of the inputs, for example bfloat16.")] = None,
    world: WorldOption = None,
    source: SourceOption = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="Number of workloads.")] = 10,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """The stored workloads nearest in shape, and how fast they are. Exit 1 if there are none."""
    from perfdb.exploring import nearest_workloads

    columns = ["distance", "op", "shape", "dtype", "world", "gpu", "power_cap_w", "best_source", "best_us", "trial_id"]
    show = printer(as_json, as_csv, columns)
    with opened(db) as database:
        require(database, op=op, shape=shape, dtype=dtype)
        frame = nearest_workloads(database, op=op, shape=shape, dtype=dtype, world=world, sources=source, limit=limit)
        show(frame)
        if frame.empty:
            fail(no_match(database, op, None, None, source))


def training(
    db: DbOption = None,
    op: OpOption = None,
    gpu: GpuOption = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Rows to fit a model with: a schedule each, its knobs and sizes as columns, failures too. Exit 1 if none."""
    from perfdb import exploring

    show = printer(
        as_json,
        as_csv,
        ["trial_id", "source", "status", "value_us", "op", "shape", "world", "gpu", "schedule", "samples", "spread"],
    )
    with opened(db) as database:
        require(database, op=op, gpu=gpu)
        known(database, op=op, gpu=gpu)
        frame = exploring.training(database, op=op, gpu=gpu, sources=source)
        show(frame)
        if frame.empty:
            fail(no_match(database, op, None, gpu, source))


def predictions(
    db: DbOption = None,
    op: OpOption = None,
    model: Annotated[str | None, typer.Option(help="Name of the model.")] = None,
    source: SourceOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """What models expected beside what was measured. Exit 1 if what is asked about is not stored."""
    from perfdb import exploring

    columns = [
        "model",
        "predicted_us",
        "measured_us",
        "error",
        "inside",
        "source",
        "op",
        "shape",
        "gpu",
        "power_cap_w",
        "schedule_label",
    ]
    show = printer(as_json, as_csv, columns)
    with opened(db) as database:
        require(database, op=op)
        known(database, op=op, model=model)
        frame = exploring.predictions(database, op=op, model=model, sources=source)
        show(frame)
        if frame.empty:
            say("no prediction has been measured")


def recommendations(
    db: DbOption = None,
    op: OpOption = None,
    shape: ShapeOption = None,
    gpu: GpuOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Winners that were imported from other tuners without a time. Exit 1 if what is asked about is not stored."""
    from perfdb import exploring

    show = printer(as_json, as_csv, ["op", "shape", "dtype", "world", "gpu", "schedule_label", "origin"])
    with opened(db) as database:
        require(database, op=op, shape=shape, gpu=gpu)
        known(database, op=op, gpu=gpu)
        frame = exploring.recommendations(database, op=op, shape=shape, gpu=gpu)
        show(frame)
        if frame.empty:
            say("no recommendation matches")


def no_match(
    db: Database,
    op: str | None,
    shape: str | None,
    gpu: str | None,
    sources: Sequence[str] | None,
    *,
    since: datetime | None = None,
    **others: str | int | None,
) -> str:
    """Say that nothing matched and what is nearest; nothing of it is used."""
    from perfdb.asked import unknown
    from perfdb.misses import what_is_there

    asked = {"op": op, "shape": shape, "gpu": gpu, **others, "source": ", ".join(sources or ("measured",)), "since": since}
    text = ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
    there = what_is_there(db, op=op, shape=shape, gpu=gpu, sources=sources)
    return "\n".join([f"no exact match for {text}", *there, *unknown(db, others)])
