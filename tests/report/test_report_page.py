"""tilescale report: one file that works offline, shown by a real browser where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import perfdb

pytest.importorskip("plotly", reason="plotly is not installed")

from tilescale.commands.report import report

START = datetime(2026, 1, 1, tzinfo=UTC)
SECTIONS = ("best", "history", "predicted", "space", "failures")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]


def fill(db: perfdb.Database) -> None:
    """Sixty nights of two shapes on two power caps, a step of 6 %, a space, failures, predictions."""
    chance = np.random.default_rng(1)
    topology = perfdb.TopologyKey("t", "4xH200-NVSwitch", "real", 4, "H200")
    base = perfdb.EnvironmentKey(gpu="H200", arch="sm_90a", power_cap_w=700, driver="580.65", gpu_count=4)
    works = [perfdb.WorkloadKey(f"w{n}", "ag_gemm", f"{4096 << n}x10240x8192", "bfloat16", 4) for n in range(2)]
    trials = []
    for night in range(60):
        session = db.start_session(seed=night)
        for number, work in enumerate(works):
            for cap in (700, 500):
                value = (800 << number) * (1 if cap == 700 else 1.2) * (1 + 0.004 * chance.standard_normal())
                value *= 1.06 if night >= 40 and number == 0 and cap == 700 else 1
                place = replace(base, power_cap_w=cap, driver="590.1" if night >= 40 else "580.65")
                key = perfdb.ScheduleKey(
                    "winner", "tma push fused d4", '{"transport":"tma","overlap":"fused","depth":4}'
                )
                when = START + timedelta(days=night)
                run = {"value_us": value, "session_id": session, "recorded_at": when}
                trials.append(perfdb.TrialRecord(work, topology, place, key, "measured", "ok", **run))
    last, later = db.start_session(), START + timedelta(days=59, hours=6)
    for at, transport in enumerate(("peer_copy", "copy_engine", "tma")):
        for depth in (1, 2, 4, 8):
            for overlap in ("none", "chunked", "fused"):
                for turn in range(4):
                    text = f'{{"transport":"{transport}","overlap":"{overlap}","depth":{depth},"n":{turn}}}'
                    key = perfdb.ScheduleKey(
                        f"{transport}{depth}{overlap}{turn}", f"{transport} {overlap} d{depth}", text
                    )
                    value = 900 + 90 * at - 15 * depth - 60 * (overlap == "fused") + 20 * chance.standard_normal()
                    run = {"value_us": value, "session_id": last, "recorded_at": later}
                    place = replace(base, driver="590.1")
                    trials.append(perfdb.TrialRecord(works[0], topology, place, key, "measured", "ok", **run))
                    db.record_prediction(
                        perfdb.PredictionRecord(works[0], topology, key, "analytic", 0.93 * value + turn)
                    )
    for status, count in (("timeout", 4), ("wrong_result", 2), ("compile_error", 9)):
        for turn in range(count):
            key = perfdb.ScheduleKey(f"{status}{turn}")
            message = "<script>alert('x')</script> rank 2 waited"
            trials.append(
                perfdb.TrialRecord(
                    works[0],
                    topology,
                    base,
                    key,
                    "measured",
                    status,
                    message=message,
                    session_id=last,
                    recorded_at=later,
                )
            )
    db.record_many(trials)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("report")
    with perfdb.open_database(folder / "perf.db") as db:
        fill(db)
    result = run("--db", str(folder / "perf.db"), "-o", str(folder / "report.html"))
    assert result.exit_code == 0, result.output
    return folder / "report.html"


def run(*arguments: str) -> object:
    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, list(arguments))


class References(HTMLParser):
    """Everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]


def test_one_file_holds_everything(made: Path) -> None:
    text = made.read_text(encoding="utf-8")
    references = References()
    references.feed(text)
    assert [found for found in references.found if not found.startswith(("#", "data:"))] == []
    for name in SECTIONS:
        assert f'id="{name}"' in text
        assert f'id="plot-{name}"' in text
    assert "regression" in text
    assert "driver 580.65 -&gt; 590.1" in text
    assert "<script>alert" not in text
    assert re.search(r"measured</td>", text)


def test_a_database_without_trials_gives_a_page_that_says_so(tmp_path: Path) -> None:
    perfdb.open_database(tmp_path / "empty.db").close()
    assert run("--db", str(tmp_path / "empty.db"), "-o", str(tmp_path / "r.html")).exit_code == 0
    text = (tmp_path / "r.html").read_text()
    for said in ("Nothing is stored", "No change was found", "No trial failed", "No prediction has been measured"):
        assert said in text


def test_a_missing_database_is_wrong_usage(tmp_path: Path) -> None:
    result = run("--db", str(tmp_path / "none.db"), "-o", str(tmp_path / "r.html"))
    assert result.exit_code == 2
    assert "none.db" in result.stderr
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--op", "ag_gem"), "no stored operation is ag_gem; nearest: ag_gemm"), (("--gpu", " "), "a GPU model has a name")],
)
def test_what_is_not_stored_makes_no_empty_page(made: Path, tmp_path: Path, arguments: tuple[str, str], said: str) -> None:
    result = run("--db", str(made.with_name("perf.db")), "-o", str(tmp_path / "r.html"), *arguments)
    assert result.exit_code != 0
    assert said in result.stderr
    assert not (tmp_path / "r.html").exists()


def browser() -> str:
    for name in BROWSERS:
        found = shutil.which(name)
        if found is not None:
            return found
    pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")


def chromium(tmp_path: Path, page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    # Offline: whatever name it looked up would not be found.
    offline = "--host-resolver-rules=MAP * ~NOTFOUND"
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [browser(), *FLAGS, offline, profile, "--virtual-time-budget=8000", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def test_a_browser_draws_every_plot_offline(made: Path, tmp_path: Path) -> None:
    done = chromium(tmp_path, made, "--dump-dom", "--enable-logging=stderr")
    # A drawn plot has the library's own layers; a failed one is an empty div.
    for name in SECTIONS:
        part = done.stdout.split(f'id="plot-{name}"', 1)[1].split("<section", 1)[0]
        assert "main-svg" in part, name
    assert "Uncaught" not in done.stderr


def test_a_screenshot_shows_something(made: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.png"
    chromium(tmp_path, made, f"--screenshot={target}", "--window-size=1240,4300")
    data = target.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 60_000
