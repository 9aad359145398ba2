"""perfdb.regressions: what changed, told apart from what did not, kept, confirmed, annotated, and summed up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import perfdb
from perfdb.cli import app
from perfdb.confirming import Request, confirm, confirmer
from perfdb.regressions import annotate, regressions, save
from perfdb.summary import markdown
from perfdb.watching import lines, watch

Make = Callable[..., perfdb.TrialRecord]
START = datetime(2026, 1, 1, tzinfo=UTC)
NIGHTS = 60
END = START + timedelta(days=NIGHTS)


def fill(db: perfdb.Database, make: Make, series: dict[str, Sequence[float]], **changes: object) -> None:
    """One session a night; a NaN is a night without a run."""
    sessions = [db.start_session(seed=night) for night in range(NIGHTS)]
    trials = []
    for shape, values in series.items():
        for night, value in enumerate(values):
            if not np.isnan(value):
                driver = "590.1" if night >= 45 else "580.65"
                when = START + timedelta(days=night, minutes=len(trials) % 50)
                given = {"shape": shape, "driver": driver, **changes}
                # A slower schedule of the same night is not the series.
                trials.append(make("slow", value * 1.5, session_id=sessions[night], recorded_at=when, **given))
                trials.append(make("fast", value, session_id=sessions[night], recorded_at=when, **given))
    db.record_many(trials)


def noisy(seed: int, step: float = 0.0, at: int = 45) -> np.ndarray:
    values = 100 * (1 + 0.004 * np.random.default_rng(seed).standard_normal(NIGHTS))
    values[at:] *= 1 + step
    return values


@pytest.fixture
def watched(db: perfdb.Database, make: Make) -> perfdb.Database:
    gaps = noisy(4)
    gaps[20:25] = np.nan
    silent = noisy(5)
    silent[50:] = np.nan
    series = {f"{n}x1": noisy(n) for n in range(10, 20)}
    fill(db, make, {"slower": noisy(1, 0.05), "faster": noisy(2, -0.04), "gaps": gaps, "silent": silent, **series})
    return db


def test_changes_are_found_and_nothing_else(watched: perfdb.Database) -> None:
    frame = regressions(watched, until=END)
    assert list(frame[["kind", "shape", "state"]].itertuples(index=False, name=None)) == [
        ("regression", "slower", "suspected"),
        ("improvement", "faster", "suspected"),
        ("missing", "silent", "suspected"),
    ]
    slower = frame.iloc[0]
    assert slower["change_percent"] == pytest.approx(5, abs=0.6)
    assert slower["happened_at"].date() == (START + timedelta(days=45)).date()
    assert slower["covariates"] == "driver 580.65 -> 590.1"
    assert slower["q_value"] < 0.001
    assert (slower["runs"], slower["detector"], frame.attrs["series"]) == (15, "quiet", 14)
    assert frame.iloc[2]["missing_runs"] == 10
    trial = perfdb.trials(watched).set_index("trial_id").loc[slower["trial_id"]]
    assert (trial["schedule"], trial["driver"]) == ("fast", "590.1")


def test_the_period_decides(watched: perfdb.Database) -> None:
    assert list(regressions(watched, until=END, days=10)["kind"]) == ["missing"]
    early = regressions(watched, until=START + timedelta(days=44))
    assert list(early["kind"]) == []
    with pytest.raises(perfdb.RecordError, match="begins before"):
        regressions(watched, since=END, until=START)
    with pytest.raises(perfdb.RecordError, match="detector is one of asv, conbench"):
        regressions(watched, until=END, detector="crystal")


def test_power_caps_are_watched_apart(db: perfdb.Database, make: Make) -> None:
    # Case D6: every other night at 500 W, 30 % slower, is two steady series and no step.
    fill(db, make, {"one": [v if n % 2 else np.nan for n, v in enumerate(noisy(1))]})
    fill(db, make, {"one": [np.nan if n % 2 else 1.3 * v for n, v in enumerate(noisy(2))]}, power_cap_w=500)
    assert regressions(db, until=END).empty
    assert {line.setting[1] for line in lines(db, START)} == {500, 700}
    assert "watched by itself" in regressions(db, until=END).attrs["notes"][0]


def test_one_schedule_can_be_followed(watched: perfdb.Database) -> None:
    frame = regressions(watched, until=END, policy="schedule:slow")
    assert list(frame["shape"][:2]) == ["slower", "faster"]
    assert frame["before_us"].iloc[0] == pytest.approx(150, rel=0.01)
    assert regressions(watched, until=END, policy="schedule:none").empty


def test_many_quiet_series_stay_quiet(db: perfdb.Database, make: Make) -> None:
    """False-discovery control: a p-value that one series would be told about is not enough among many."""
    fill(db, make, {f"{n}x1": noisy(100 + n) for n in range(30)})
    assert regressions(db, until=END).empty


def finding(db: perfdb.Database) -> object:
    return watch(db, since=END - timedelta(days=30), until=END).findings[0]


def measured(ratio: float, noise: float = 0.002) -> Callable[[Request], list[tuple[float, float]]]:
    def measure(request: Request) -> list[tuple[float, float]]:
        chance = np.random.default_rng(3)
        return [(1 + noise * a, ratio * (1 + noise * b)) for a, b in chance.standard_normal((request.rounds, 2))]

    return measure


@pytest.mark.parametrize(
    ("ratio", "noise", "state"),
    [(1.05, 0.002, "confirmed"), (1.0, 0.002, "dismissed"), (0.95, 0.002, "dismissed"), (1.01, 0.05, "dismissed")],
)
def test_a_confirmation_decides(watched: perfdb.Database, ratio: float, noise: float, state: str) -> None:
    judged = confirm(watched, finding(watched), measured(ratio, noise))
    assert judged.state == state
    assert "re-measured 20 times" in judged.remark
    save(watched, [judged], "quiet")
    save(watched, [judged], "quiet")
    assert len(watched.rows("SELECT id FROM change_point")) == 1
    frame = regressions(watched, until=END)
    assert (frame["state"].iloc[0], frame["series_id"].iloc[0]) == (state, 1)


def test_a_confirmer_sees_both_sides(watched: perfdb.Database) -> None:
    seen: list[Request] = []

    def measure(request: Request) -> list[tuple[float, float]]:
        seen.append(request)
        return [(1.0, 1.05)] * request.rounds

    confirm(watched, finding(watched), measure, rounds=7)
    (request,) = seen
    assert (request.rounds, request.before.schedule, request.after.schedule) == (7, "fast", "fast")
    assert request.before.environment != request.after.environment
    with pytest.raises(perfdb.RecordError, match="at least 5 pairs"):
        confirm(watched, finding(watched), lambda _: [(1.0, 0.0)] * 9)


def test_an_intended_change_counts_no_more(watched: perfdb.Database) -> None:
    save(watched, [finding(watched)], "quiet")  # type: ignore[list-item]
    day = START + timedelta(days=45)
    annotate(watched, "another night", series=1, starts_at=day + timedelta(days=5))
    assert regressions(watched, until=END)["state"].iloc[0] == "suspected"
    annotate(watched, "deterministic order", series=1, author="me", starts_at=day, ends_at=day + timedelta(days=1))
    frame = regressions(watched, until=END)
    assert list(frame["state"]) == ["intended", "suspected", "suspected"]
    assert frame["remark"].iloc[0] == "deterministic order (me)"
    with pytest.raises(perfdb.RecordError, match="about something"):
        annotate(watched, "why")
    with pytest.raises(perfdb.RecordError, match="refers to stored rows"):
        annotate(watched, "why", series=99)


def test_the_summary_is_markdown(watched: perfdb.Database) -> None:
    text = markdown(regressions(watched, until=END))
    first, *rest = text.splitlines()
    assert first == "### Performance: 1 slower (0 confirmed), 1 faster, 1 without runs of 14 series"
    (row,) = [line for line in rest if "| slower |" in line]
    assert row.startswith("| ag_gemm | slower | H200 700 W | +")
    assert row.count("|") == 11
    assert "driver 580.65 -> 590.1" in row
    assert markdown(regressions(watched, until=START + timedelta(days=30))).startswith("### Performance: 0 slower")


PLUGIN = """
def measure(request):
    return [(100.0, RATIO)] * request.rounds
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Install a package that offers a confirmer, as pip would."""

    def install(ratio: float) -> None:
        folder = tmp_path / f"site{ratio}"
        info = folder / "confirming_plugin-1.0.dist-info"
        info.mkdir(parents=True)
        name = f"plugin_{str(ratio).replace('.', '_')}"
        (folder / f"{name}.py").write_text(PLUGIN.replace("RATIO", str(ratio)))
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: confirming-plugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[perfdb.confirm]\nmachine = {name}:measure\n")
        monkeypatch.syspath_prepend(str(folder))

    return install


def run(*arguments: str) -> object:
    return CliRunner().invoke(app, list(arguments))


def asked(url: str) -> list[str]:
    return ["regressions", "--db", url, "--until", END.strftime("%Y-%m-%dT%H:%M:%S")]


def test_the_command_fails_on_a_confirmed_regression_alone(
    watched: perfdb.Database, url: str, plugin: Callable[[float], None], tmp_path: Path
) -> None:
    suspected = run(*asked(url), "--json")
    assert suspected.exit_code == 0
    assert [row["kind"] for row in json.loads(suspected.stdout)] == ["regression", "improvement", "missing"]
    assert run(*asked(url), "--fail-on", "suspected").exit_code == 1
    none = run(*asked(url), "--confirm", "--confirm-with", "machine")
    assert none.exit_code == 1
    assert "entry point group perfdb.confirm" in none.stderr
    plugin(105.0)
    assert confirmer("machine")(Request(None, None, 5)) == [(100.0, 105.0)] * 5  # type: ignore[arg-type]
    report = tmp_path / "summary.md"
    confirmed = run(*asked(url), "--confirm", "--confirm-with", "machine", "--markdown", str(report))
    assert confirmed.exit_code == 1
    assert "1 regressions confirmed" in confirmed.stderr
    assert "1 slower (1 confirmed)" in report.read_text()
    # The verdict is kept: the next call fails without measuring.
    assert run(*asked(url)).exit_code == 1
    assert "annotation 1" in run("annotate", "on purpose", "--db", url, "--series", "1").stdout
    assert run(*asked(url)).exit_code == 0


def test_a_confirmer_that_cannot_measure_is_named(watched: perfdb.Database) -> None:
    def broken(request: Request) -> list[tuple[float, float]]:
        raise OSError("no GPU is at hand")

    with pytest.raises(perfdb.DatabaseError, match="OSError: no GPU is at hand"):
        confirm(watched, finding(watched), broken)


def test_the_command_passes_a_dismissed_regression(
    watched: perfdb.Database, url: str, plugin: Callable[[float], None]
) -> None:
    plugin(100.0)
    dismissed = run(*asked(url), "--confirm", "--confirm-with", "machine", "--csv")
    assert dismissed.exit_code == 0
    assert "dismissed" in dismissed.stdout
