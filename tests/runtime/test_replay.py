"""tilescale.runtime.replay: recorded spaces and the runner that answers from them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from process_support import by_chunk, make_schedules
from support import ag_gemm

from tilescale import canon
from tilescale.errors import RunnerError
from tilescale.runtime import replay
from tilescale.runtime.fake import FakeRunner
from tilescale.runtime.measure import SOURCES, Measurement
from tilescale.runtime.replay import RECORDABLE, RecordedSpace, ReplayRunner, find_recorded
from tilescale.runtime.runner import Runner
from tilescale.schedules.schedule import Schedule

SPEC = ag_gemm()


def make_space(source: str = "predicted", count: int = 5) -> RecordedSpace:
    schedules = make_schedules(count)
    faults = {schedules[1].digest: "wrong_result"}
    with FakeRunner(by_chunk, noise=0.1, faults=faults, processes=False) as runner:
        return RecordedSpace.of(SPEC, source, runner.measure(SPEC, schedules))


def edit(path: Path, change: Callable[[dict[str, Any], list[Any]], None]) -> None:
    """Change the header and rows of a file, keeping its count and digest right."""
    header, *rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    change(header, rows)
    body = "".join(json.dumps(row) + "\n" for row in rows).encode()
    header.update(rows=len(rows), digest=canon.digest_bytes(body))
    path.write_bytes(gzip.compress(json.dumps(header).encode() + b"\n" + body))


def test_a_space_survives_its_file(tmp_path: Path) -> None:
    space = make_space()
    path = space.save(tmp_path)
    assert path.name == f"ag_gemm-{SPEC.digest}-predicted.jsonl.gz"
    assert RecordedSpace.load(path) == space
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert space.rows[1].status == "wrong_result"
    assert "wrong_result" in space.rows[1].message
    assert space.best is not None
    assert space.best.value_us == min(row.value_us for row in space.rows if row.ok)


def test_equal_spaces_give_equal_files(tmp_path: Path) -> None:
    space = make_space()
    first = space.save(tmp_path / "a").read_bytes()
    assert RecordedSpace.load(space.save(tmp_path / "b")).save(tmp_path / "c").read_bytes() == first


def test_replays_every_row_and_nothing_else() -> None:
    space = make_space("measured_scale_model")
    runner = ReplayRunner(space)
    assert isinstance(runner, Runner)
    asked = [Schedule(chunk_rows=1), *reversed([row.schedule for row in space.rows])]
    unknown, *found = runner.measure(SPEC, asked)
    assert unknown.status == "illegal"
    assert "not in the recorded space of 5 schedules" in unknown.message
    assert found == [replace(row, source="replayed") for row in reversed(space.rows)]
    assert runner.measured == 6
    runner.close()
    with pytest.raises(RunnerError, match="closed"):
        runner.measure(SPEC, asked)


@pytest.mark.parametrize("source", RECORDABLE)
def test_times_of_a_model_are_not_called_replayed(source: str) -> None:
    runner = ReplayRunner(make_space(source))
    assert runner.source == ("predicted" if source == "predicted" else "replayed")
    assert {m.source for m in runner.measure(SPEC, make_schedules(7))} == {runner.source}


def test_another_spec_is_refused() -> None:
    with pytest.raises(RunnerError, match="its own spec"):
        ReplayRunner(make_space()).measure(ag_gemm(ranks=2), make_schedules(1))


@pytest.mark.parametrize("source", sorted(set(SOURCES) - set(RECORDABLE)))
def test_a_replay_cannot_be_recorded(source: str) -> None:
    with pytest.raises(RunnerError, match="comes from one of"):
        RecordedSpace.of(SPEC, source, ())


def test_one_row_a_schedule() -> None:
    row = Measurement(Schedule(), "ok", "measured", ((1.0,),))
    with pytest.raises(RunnerError, match="one row a schedule"):
        RecordedSpace.of(SPEC, "measured", [row, row])


def test_finds_measured_before_predicted_and_the_users_own_first(tmp_path: Path) -> None:
    mine, shipped = tmp_path / "mine", tmp_path / "shipped"
    assert find_recorded(SPEC, [mine, shipped]) is None
    for folder, source, count in ((shipped, "predicted", 3), (mine, "predicted", 4), (shipped, "measured", 5)):
        make_space(source, count).save(folder)
        found = find_recorded(SPEC, [mine, shipped])
        assert found is not None
        assert (found.source, len(found.rows)) == (source, count)
    assert find_recorded(ag_gemm(ranks=2), [mine, shipped]) is None


def test_looks_into_the_users_folder_and_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(replay, "SHIPPED", tmp_path / "shipped")
    assert find_recorded(SPEC) is None
    make_space(count=2).save(tmp_path / "shipped")
    make_space(count=3).save(replay.user_folder())
    found = find_recorded(SPEC)
    assert found is not None
    assert len(found.rows) == 3


def test_every_shipped_space_loads_and_is_found_by_its_name() -> None:
    for path in sorted(replay.SHIPPED.glob("*.gz")):
        space = RecordedSpace.load(path)
        assert space.file_name == path.name
        assert space.best is not None


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    path = make_space(count=40).save(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(RunnerError) as error:
        RecordedSpace.load(path)
    assert str(path) in error.value.rule
    assert "record the space again" in error.value.remedy


def test_rows_that_are_missing_or_altered_are_noticed(tmp_path: Path) -> None:
    path = make_space().save(tmp_path)
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    altered = [*lines[:-1], lines[-1].replace(b'"ok"', b'"ko"')]
    assert altered != lines
    for wrong in (lines[:-1], [*lines, lines[-1]], altered):
        path.write_bytes(gzip.compress(b"".join(wrong)))
        with pytest.raises(RunnerError, match="is whole: its header says 5 rows"):
            RecordedSpace.load(path)


def drop_spec(header: dict[str, Any], rows: list[Any]) -> None:
    del header["spec"]


def new_format(header: dict[str, Any], rows: list[Any]) -> None:
    header["format"] = 99


def unknown_knob(header: dict[str, Any], rows: list[Any]) -> None:
    header["knobs"][0] = "colour"


def wrong_status(header: dict[str, Any], rows: list[Any]) -> None:
    rows[0][1] = "splendid"


def short_row(header: dict[str, Any], rows: list[Any]) -> None:
    del rows[0][0][0]


def other_digest(header: dict[str, Any], rows: list[Any]) -> None:
    header["spec_digest"] = "0" * 16


def wrong_dtype(header: dict[str, Any], rows: list[Any]) -> None:
    header["spec"]["inputs"][0]["dtype"] = "bfloat17"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (drop_spec, "missing spec"),
        (new_format, "99"),
        (unknown_knob, "colour"),
        (wrong_status, "splendid"),
        (short_row, "zip"),
        (other_digest, "0000000000000000"),
        (wrong_dtype, "bfloat17"),
    ],
)
def test_a_wrong_file_names_itself_the_value_and_the_remedy(
    tmp_path: Path, change: Callable[[dict[str, Any], list[Any]], None], says: str
) -> None:
    path = make_space().save(tmp_path)
    edit(path, change)
    with pytest.raises(RunnerError) as error:
        RecordedSpace.load(path)
    assert str(path) in error.value.rule
    assert says in str(error.value)
    assert error.value.remedy


def test_no_file_and_no_gzip(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="no such file"):
        RecordedSpace.load(tmp_path / "none.jsonl.gz")
    (tmp_path / "text.jsonl.gz").write_text("hello")
    with pytest.raises(RunnerError, match="is a recorded space"):
        RecordedSpace.load(tmp_path / "text.jsonl.gz")


def test_a_file_from_before_a_knob_existed_has_its_neutral_value(tmp_path: Path) -> None:
    space = make_space()
    path = space.save(tmp_path)

    def older(header: dict[str, Any], rows: list[Any]) -> None:
        where = header["knobs"].index("raster_group")
        for row in (header["knobs"], *(row[0] for row in rows)):
            del row[where]

    edit(path, older)
    assert RecordedSpace.load(path).rows == space.rows
