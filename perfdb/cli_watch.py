"""Commands about change: regressions, annotate, compare."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdb.cli_files import pairs
from perfdb.cli_output import (
    LARGEST_ID,
    MOST,
    CsvOption,
    DbOption,
    JsonOption,
    OpOption,
    ShapeOption,
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
    from perfdb.watching import Watch

COLUMNS = [
    "kind",
    "state",
    "op",
    "shape",
    "gpu",
    "power_cap_w",
    "before_us",
    "after_us",
    "change_percent",
    "happened_at",
    "runs",
    "missing_runs",
    "q_value",
    "covariates",
    "remark",
    "series_id",
]
COMPARED = [
    "op",
    "shape",
    "gpu",
    "power_cap_w",
    "source",
    "before_us",
    "after_us",
    "change_percent",
    "common_percent",
    "anchors",
    "anchor_percent",
    "residual_percent",
    "verdict",
    "environment_change",
]


class FailOn(StrEnum):
    """What makes `regressions` end with exit code 1."""

    confirmed = "confirmed"
    suspected = "suspected"


def regressions(
    db: DbOption = None,
    days: Annotated[float, typer.Option(min=0.01, max=36500, help="How far back to look for changes.")] = 30,
    until: Annotated[datetime | None, typer.Option(help="As if asked then (UTC); now if left out.")] = None,
    source: Annotated[str, typer.Option(help="What kind of times.")] = "measured",
    policy: Annotated[str, typer.Option(help="best: the fastest of each run; or schedule:DIGEST.")] = "best",
    detector: Annotated[str, typer.Option(help="quiet, asv, conbench, edivisive, mannwhitney.")] = "quiet",
    alpha: Annotated[float, typer.Option(min=0, max=1, help="Share of false findings to bear.")] = 0.05,
    confirm: Annotated[bool, typer.Option("--confirm", help="Measure old and new anew, interleaved.")] = False,
    confirm_with: Annotated[str | None, typer.Option(help="Which installed function measures.")] = None,
    rounds: Annotated[int, typer.Option(min=5, max=MOST, help="Pairs of measurements a finding.")] = 20,
    save: Annotated[bool, typer.Option("--save", help="Keep the findings; --confirm always does.")] = False,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 on confirmed regressions, or on suspected ones too.")] = (
        FailOn.confirmed
    ),
    markdown: Annotated[
        Path | None, typer.Option(help="Also write a summary for a pull request; - for stdout.")
    ] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """What became slower or faster. Exit 1 on a confirmed regression.

    A finding is suspected until it is re-measured (--confirm), and intended where an annotation covers it.
    """
    from perfdb import regressions as kept
    from perfdb.confirming import confirmer
    from perfdb.summary import markdown as summary
    from perfdb.watching import watch

    show = printer(as_json, as_csv, COLUMNS)
    if confirm_with is not None and not confirm:
        raise typer.BadParameter("--confirm-with says how --confirm measures; give --confirm too")
    if (as_json or as_csv) and str(markdown) == "-":
        raise typer.BadParameter("--markdown - and --json or --csv all write to stdout; give a path to --markdown")
    with opened(db) as database:
        if confirm_with is not None:
            # Also where nothing will have to be confirmed: a wrong name is wrong today.
            confirmer(confirm_with)
        if policy.startswith("schedule:"):
            known(database, schedule=policy.removeprefix("schedule:"))
        period = kept.Period.of(None, utc(until), days)
        found = watch(
            database, since=period.since, until=period.until, source=source, policy=policy, detector_name=detector,
            alpha=alpha,
        )  # fmt: skip
        found = kept.labelled(database, found)
        if confirm:
            found = _confirmed(database, found, confirm_with, rounds)
        if save or confirm:
            kept.save(database, found.findings, detector)
        frame = kept.table(database, found, detector)
    for note in frame.attrs["notes"]:
        say(f"note: {note}")
    if markdown is not None and str(markdown) != "-":
        try:
            markdown.write_text(summary(frame), encoding="utf-8")
        except OSError as error:
            fail(f"the summary must be written; got: {markdown}: {error.strerror}; give another path with --markdown")
    if markdown is not None and str(markdown) == "-":
        typer.echo(summary(frame), nl=False)
    else:
        show(frame)
    slower = frame[frame["kind"] == "regression"]
    count = {state: int((slower["state"] == state).sum()) for state in ("confirmed", "suspected")}
    say(f"{frame.attrs['series']} series: {count['confirmed']} regressions confirmed, {count['suspected']} suspected")
    if count["confirmed"] or (fail_on is FailOn.suspected and count["suspected"]):
        raise typer.Exit(1)
    if count["suspected"]:
        say("suspected regressions alone do not fail: --confirm measures them anew, --fail-on suspected fails on them")


def _confirmed(database: Database, found: Watch, name: str | None, rounds: int) -> Watch:
    """Each suspected change re-measured; what was judged before or is intended stays as it is."""
    from dataclasses import replace

    from perfdb.confirming import confirm, confirmer

    suspected = [one for one in found.findings if one.state == "suspected" and one.change is not None]
    if not suspected:
        return found
    measure = confirmer(name)
    verdicts = {}
    for number, finding in enumerate(suspected, 1):
        say(f"confirming {number} of {len(suspected)}")
        verdicts[finding] = confirm(database, finding, measure, rounds)
    return replace(found, findings=tuple(verdicts.get(one, one) for one in found.findings))


def annotate(
    remark: Annotated[str, typer.Argument(help="Why, for example: slower on purpose, deterministic order.")],
    db: DbOption = None,
    kind: Annotated[str, typer.Option(help="intended (its findings count no more) or note.")] = "intended",
    author: Annotated[str, typer.Option(help="Who says so.")] = "",
    series: Annotated[int | None, typer.Option(min=1, max=LARGEST_ID, help="series_id of a saved finding.")] = None,
    trial: Annotated[int | None, typer.Option(min=1, max=LARGEST_ID, help="trial_id where the change begins.")] = None,
    session: Annotated[int | None, typer.Option(min=1, max=LARGEST_ID, help="A session.")] = None,
    start: Annotated[datetime | None, typer.Option("--from", help="From this moment on (UTC).")] = None,
    end: Annotated[datetime | None, typer.Option("--to", help="Until this moment (UTC).")] = None,
) -> None:
    """Say that a change was intended, or anything else about a series, a trial, a session or a time."""
    from perfdb import regressions as kept

    with opened(db) as database:
        number = kept.annotate(
            database, remark, kind=kind, author=author, series=series, trial=trial, session=session,
            starts_at=utc(start), ends_at=utc(end),
        )  # fmt: skip
    typer.echo(f"annotation {number}")


def compare(
    before: Annotated[list[str], typer.Option("--before", help="driver=580, commit=abc, ...; may be repeated.")],
    after: Annotated[list[str], typer.Option("--after", help="driver=590, commit=def, ...; may be repeated.")],
    db: DbOption = None,
    op: OpOption = None,
    shape: ShapeOption = None,
    source: Annotated[str, typer.Option(help="What kind of times.")] = "measured",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """What changed between two environments or commits; anchors (equal binaries) say what the machine did.

    Exit 1 if nothing was measured on both sides.
    """
    from perfdb.comparing import compare as compared
    from perfdb.comparing import stored_values

    show = printer(as_json, as_csv, COMPARED)
    sides = pairs(before), pairs(after)
    with opened(db) as database:
        require(database, op=op, shape=shape)
        known(database, op=op)
        frame = compared(database, *sides, op=op, shape=shape, source=source)
        show(frame)
        if frame.empty:
            fail(
                "\n".join(
                    ["nothing was measured on both sides under otherwise equal settings", *stored_values(database, sides)]
                )
            )
