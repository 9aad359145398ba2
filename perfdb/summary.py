"""A Markdown summary of findings, fit for a comment on a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

TITLES = {
    "regression": "Slower",
    "improvement": "Faster",
    "missing": "Fell silent",
}
MOST = 20


def markdown(frame: pd.DataFrame) -> str:
    """The findings of `perfdb.regressions`: one line of verdict, one table a kind, at most `MOST` rows each."""
    count = {kind: int((frame["kind"] == kind).sum()) for kind in TITLES}
    confirmed = int(((frame["kind"] == "regression") & (frame["state"] == "confirmed")).sum())
    watched = frame.attrs.get("series", 0)
    parts = [f"{count['regression']} slower ({confirmed} confirmed)", f"{count['improvement']} faster"]
    if count["missing"]:
        parts.append(f"{count['missing']} without runs")
    text = [f"### Performance: {', '.join(parts)} of {watched} series", ""]
    for kind, title in TITLES.items():
        rows = frame[frame["kind"] == kind].to_dict("records")
        if rows:
            text += _table(title, kind, rows)
    text += [f"_{note}_  " for note in frame.attrs.get("notes", ())]
    return "\n".join(text).rstrip() + "\n"


def _table(title: str, kind: str, rows: list[dict[str, Any]]) -> list[str]:
    if kind == "missing":
        head = ["| op | shape | GPU | last run | runs missing |", "|---|---|---|---|---:|"]
    else:
        head = [
            "| op | shape | GPU | change | from | to | since | runs | state | with it |",
            "|---|---|---|---:|---:|---:|---|---:|---|---|",
        ]
    lines = [f"**{title}**", "", *head, *(_line(kind, row) for row in rows[:MOST])]
    if len(rows) > MOST:
        lines.append(f"\n{len(rows) - MOST} more not shown.")
    return [*lines, ""]


def _line(kind: str, row: dict[str, Any]) -> str:
    place = f"{row['gpu']} {row['power_cap_w']} W"
    when = f"{row['happened_at']:%Y-%m-%d}"
    if kind == "missing":
        cells = [row["op"], row["shape"], place, when, row["missing_runs"]]
    else:
        cells = [
            row["op"],
            row["shape"],
            place,
            f"{row['change_percent']:+.1f} %",
            f"{row['before_us']:.2f} us",
            f"{row['after_us']:.2f} us",
            when,
            row["runs"],
            row["state"],
            "; ".join(text for text in (row["covariates"], row["remark"]) if text),
        ]
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
