"""The plots, one function a section. Each gives None where there is nothing to plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go  # type: ignore[import-untyped, unused-ignore]

if TYPE_CHECKING:
    import pandas as pd

# More lines than this in one plot cannot be told apart; the longest are shown, and the page says so.
MOST = 24
LAYOUT: dict[str, Any] = {
    "template": "plotly_white",
    "margin": {"l": 70, "r": 20, "t": 30, "b": 60},
    "height": 460,
    "font": {"family": "system-ui, sans-serif", "size": 13},
    "legend": {"font": {"size": 11}},
}
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf")
SERIES = ("op", "shape", "dtype", "world", "topology_name", "gpu", "power_cap_w", "source")


def series_label(key: tuple[Any, ...]) -> str:
    """One line that tells a series from the others."""
    op, shape, dtype, world, _, gpu, cap, source = key
    power = f" {cap} W" if cap else ""
    return f"{op} {shape} {dtype} w{world}, {gpu}{power} ({source})"


def best(frame: pd.DataFrame) -> Any:
    """Bars: the fastest schedule of each shape and machine, coloured by source."""
    if frame.empty:
        return None
    first = frame[frame["rank"] == 1].sort_values("value_us").head(40)
    figure = go.Figure()
    for number, source in enumerate(sorted(first["source"].unique())):
        rows = first[first["source"] == source]
        figure.add_bar(
            y=[
                f"{r.op} {r.shape} w{r.world} {r.gpu}" + (f" {r.power_cap_w} W" if r.power_cap_w else "")
                for r in rows.itertuples()
            ],
            x=rows["value_us"],
            name=source,
            orientation="h",
            marker_color=COLOURS[number % len(COLOURS)],
            hovertext=rows["schedule_label"],
        )
    height = max(260, 26 * len(first) + 110)
    figure.update_layout(**{**LAYOUT, "height": height, "margin": {"l": 320, "r": 20, "t": 30, "b": 60}})
    figure.update_xaxes(title="time, us", rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    return figure


def history(frame: pd.DataFrame, findings: pd.DataFrame) -> Any:
    """Lines: the fastest of each run over time; triangles where a change was found."""
    if frame.empty:
        return None
    groups = sorted(frame.groupby(list(SERIES), sort=True), key=lambda pair: -len(pair[1]))[:MOST]
    figure = go.Figure()
    for number, (key, rows) in enumerate(groups):
        colour = COLOURS[number % len(COLOURS)]
        figure.add_scatter(
            x=rows["recorded_at"],
            y=rows["value_us"],
            name=series_label(key),
            mode="lines+markers",
            line={"color": colour, "width": 1.5},
            marker={"size": 5},
            hovertext=[f"driver {r.driver or '?'}, {r.schedule_label}" for r in rows.itertuples()],
        )
    for kind, symbol, colour in (("regression", "triangle-up", "#d62728"), ("improvement", "triangle-down", "#2ca02c")):
        rows = findings[findings["kind"] == kind]
        if not rows.empty:
            figure.add_scatter(
                x=rows["happened_at"],
                y=rows["after_us"],
                name=kind,
                mode="markers",
                marker={"symbol": symbol, "size": 14, "color": colour, "line": {"width": 1, "color": "black"}},
                hovertext=[
                    f"{r.change_percent:+.1f} % {r.op} {r.shape}: {r.state} {r.covariates}" for r in rows.itertuples()
                ],
            )
    figure.update_layout(**{**LAYOUT, "legend": {"orientation": "h", "y": -0.2, "font": {"size": 11}}, "height": 560})
    figure.update_yaxes(title="time, us (logarithmic)", type="log")
    return figure


def predicted(frame: pd.DataFrame) -> Any:
    """Points: measured against predicted, on logarithmic axes with the line of equality."""
    if frame.empty:
        return None
    figure = go.Figure()
    low = float(frame[["predicted_us", "measured_us"]].min().min())
    high = float(frame[["predicted_us", "measured_us"]].max().max())
    figure.add_scatter(x=[low, high], y=[low, high], mode="lines", name="equal", line={"color": "#999", "dash": "dash"})
    for number, (key, rows) in enumerate(frame.groupby(["model", "source"], sort=True)):
        error = 100 * rows["error"].abs().median()
        figure.add_scattergl(
            x=rows["predicted_us"],
            y=rows["measured_us"],
            mode="markers",
            name=f"{key[0]} against {key[1]}: median error {error:.1f} %",
            marker={"size": 5, "opacity": 0.6, "color": COLOURS[number % len(COLOURS)]},
            hovertext=[f"{r.op} {r.shape} {r.schedule_label}" for r in rows.itertuples()],
        )
    figure.update_layout(**LAYOUT)
    figure.update_xaxes(title="predicted, us", type="log")
    figure.update_yaxes(title="measured, us", type="log")
    return figure


def space(frame: pd.DataFrame) -> Any:
    """Times of all schedules of a workload by transport, overlap (colour) and depth; a menu picks the workload."""
    needed = ("knob.transport", "knob.overlap", "knob.depth")
    if frame.empty or any(name not in frame.columns for name in needed):
        return None
    good = frame[(frame["status"] == "ok") & frame["knob.transport"].notna()]
    if good.empty:
        return None
    groups = sorted(good.groupby(["op", "shape", "world", "gpu", "source"], sort=True), key=lambda pair: -len(pair[1]))
    figure, owners, labels = go.Figure(), [], []
    overlaps = sorted(good["knob.overlap"].dropna().unique())
    for at, (key, rows) in enumerate(groups[:MOST]):
        op, shape, world, gpu, source = key
        labels.append(f"{op} {shape} w{world} {gpu} ({source})")
        for number, overlap in enumerate(overlaps):
            part = rows[rows["knob.overlap"] == overlap].sort_values(["knob.transport", "knob.depth"])
            if part.empty:
                continue
            figure.add_box(
                x=[list(part["knob.transport"]), [f"depth {int(depth)}" for depth in part["knob.depth"]]],
                y=part["value_us"],
                name=f"overlap {overlap}",
                marker_color=COLOURS[number % len(COLOURS)],
                boxpoints="outliers",
                visible=at == 0,
            )
            owners.append(at)
    buttons = [
        {"label": label, "method": "update", "args": [{"visible": [owner == at for owner in owners]}]}
        for at, label in enumerate(labels)
    ]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.16, "yanchor": "top"}
    figure.update_layout(
        **{**LAYOUT, "margin": {"l": 70, "r": 20, "t": 80, "b": 60}}, boxmode="group", updatemenus=[menu]
    )
    figure.update_yaxes(title="time, us (logarithmic)", type="log")
    return figure


def failures(frame: pd.DataFrame) -> Any:
    """Bars: failed trials by cause, coloured by operation and source."""
    if frame.empty:
        return None
    figure = go.Figure()
    for number, (key, rows) in enumerate(frame.groupby(["op", "source"], sort=True)):
        figure.add_bar(
            x=rows["status"],
            y=rows["count"],
            name=f"{key[0]} ({key[1]})",
            marker_color=COLOURS[number % len(COLOURS)],
            hovertext=[str(message)[:200] for message in rows["message"]],
        )
    figure.update_layout(**LAYOUT, barmode="stack")
    figure.update_yaxes(title="trials")
    return figure
