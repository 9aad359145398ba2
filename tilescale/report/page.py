"""The page: sections of a sentence, a plot and a table, with the plotting library inside the file."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilescale.report import figures
from tilescale.report.data import Contents

if TYPE_CHECKING:
    import pandas as pd

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1180px; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
p.about { color: #555; margin: .2rem 0 .8rem; } nav a { margin-right: 1rem; }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #e3e3e3; text-align: left; white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } th { border-bottom: 2px solid #999; }
tr.regression td:first-child { color: #b30000; font-weight: 600; } tr.improvement td:first-child { color: #17701b; }
"""
MOST_ROWS = 60

BEST = ("op", "shape", "dtype", "world", "gpu", "power_cap_w", "source", "rank", "value_us", "schedule_label", "driver")
FINDINGS = [
    "kind",
    "state",
    "op",
    "shape",
    "gpu",
    "power_cap_w",
    "source",
    "change_percent",
    "before_us",
    "after_us",
    "happened_at",
    "runs",
    "covariates",
    "remark",
]
FAILURES = ("op", "source", "status", "count", "schedules", "message")


def page(contents: Contents) -> str:
    """The whole file. Every text from the database is escaped."""
    import plotly.io  # type: ignore[import-untyped, unused-ignore]
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped, unused-ignore]

    sections = _sections(contents)
    body = []
    for name, title, about, figure, table in sections:
        body.append(f'<section id="{name}"><h2>{html.escape(title)}</h2><p class="about">{html.escape(about)}</p>')
        if figure is not None:
            plot = plotly.io.to_html(figure, include_plotlyjs=False, full_html=False, div_id=f"plot-{name}")
            body.append(plot)
        body.append(f"{table}</section>")
    links = "".join(f'<a href="#{name}">{html.escape(title)}</a>' for name, title, *_ in sections)
    notes = "".join(f'<p class="about">{html.escape(note)}</p>' for note in contents.notes)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>tilescale report</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style><script>{get_plotlyjs()}</script></head><body>'
        f"<h1>tilescale report</h1><p class='about'>{html.escape(contents.where)}, {contents.made:%Y-%m-%d %H:%M} UTC</p>"
        f"<nav>{links}</nav>{notes}{''.join(body)}</body></html>"
    )


def _sections(contents: Contents) -> list[tuple[str, str, str, Any, str]]:
    series = contents.history.groupby(list(figures.SERIES)).ngroups if not contents.history.empty else 0
    shown = f"; the {figures.MOST} longest of {series} series are drawn" if series > figures.MOST else ""
    return [
        (
            "best",
            "Best by shape",
            (
                "The fastest schedules, ranked only among trials of one machine, power cap and source. Only the source "
                "'measured' was timed on the machine that it names."
            ),
            figures.best(contents.best),
            _table(contents.best, BEST),
        ),
        (
            "history",
            "History and change points",
            f"The fastest trial of each run{shown}. Triangles: changes that stand after false-discovery control.",
            figures.history(contents.history, contents.findings),
            _table(contents.findings, FINDINGS, "No change was found.", rank="kind"),
        ),
        (
            "predicted",
            "Measured against predicted",
            "Each prediction beside the trial of the same schedule.",
            figures.predicted(contents.predictions),
            "" if not contents.predictions.empty else "<p>No prediction has been measured.</p>",
        ),
        (
            "space",
            "The space",
            "Times of all schedules by transport and depth (chunks in flight), coloured by overlap.",
            figures.space(contents.space),
            "" if figures.space(contents.space) is not None else "<p>No schedule with these knobs is stored.</p>",
        ),
        (
            "failures",
            "Failures",
            "Trials that gave no time, by cause, each with its newest message.",
            figures.failures(contents.failures),
            _table(contents.failures, FAILURES, "No trial failed."),
        ),
    ]


def _table(frame: pd.DataFrame, columns: Sequence[str], empty: str = "Nothing is stored.", rank: str = "") -> str:
    if frame.empty:
        return f"<p>{html.escape(empty)}</p>"
    names = [name for name in columns if name in frame.columns]
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in names)
    rows = []
    for record in frame[names].head(MOST_ROWS).to_dict("records"):
        cells = "".join(_cell(record[name]) for name in names)
        mark = f' class="{html.escape(str(record[rank]))}"' if rank else ""
        rows.append(f"<tr{mark}>{cells}</tr>")
    more = f"<p>{len(frame) - MOST_ROWS} more rows in the database.</p>" if len(frame) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f'<td class="number">{"" if math.isnan(value) else f"{value:.2f}"}</td>'
    if isinstance(value, int):
        return f'<td class="number">{value}</td>'
    text = f"{value:%Y-%m-%d %H:%M}" if hasattr(value, "strftime") else str(value)
    return f"<td>{html.escape('' if text == '<NA>' else text[:160])}</td>"
