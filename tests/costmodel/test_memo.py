"""tilescale.costmodel.memo: predictions kept on disk equal those made anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support import ag_gemm

from tilescale.costmodel import memo
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec

SPEC = ag_gemm((512, 512, 256), ranks=2)
SCHEDULES = Space(SPEC).schedules[: memo.LEAST]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    memo.forget()
    yield tmp_path
    memo.forget()


def files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_the_next_process_predicts_nothing_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = [memo.prior(SPEC, schedule) for schedule in SCHEDULES]
    memo.save(SPEC)
    memo.forget()  # as a new process would find it
    monkeypatch.setattr(memo, "predict", lambda *arguments: pytest.fail("predicted again"))
    assert [memo.prior(SPEC, schedule) for schedule in SCHEDULES] == first
    assert len(files(cache)) == 1


def test_few_predictions_make_no_file(cache: Path) -> None:
    memo.prior(SPEC, SCHEDULES[0])
    memo.save(SPEC)
    assert files(cache) == []


def test_another_machine_or_model_is_not_answered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [memo.prior(SPEC, schedule) for schedule in SCHEDULES]
    memo.save(SPEC)
    topology = SPEC.topology
    faster = replace(SPEC, topology=replace(topology, gpu=replace(topology.gpu, hbm_gbps=topology.gpu.hbm_gbps * 2)))
    asked: list[Spec] = []
    real = memo.predict
    monkeypatch.setattr(memo, "predict", lambda spec, schedule: asked.append(spec) or real(spec, schedule))
    memo.prior(faster, SCHEDULES[0])
    assert asked == [faster]
    memo.forget()
    monkeypatch.setattr(memo, "source_digest", lambda: "changed")
    assert memo.prior(SPEC, SCHEDULES[0]) == before[0]
    assert asked == [faster, SPEC]


def test_a_damaged_file_counts_as_absent(cache: Path) -> None:
    before = [memo.prior(SPEC, schedule) for schedule in SCHEDULES]
    memo.save(SPEC)
    (path,) = files(cache)
    for text in ("{", "[1]", '{"a": 3}', ""):
        path.write_text(text)
        memo.forget()
        assert memo.prior(SPEC, SCHEDULES[0]) == before[0]


def test_a_cache_that_cannot_be_written_is_done_without(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    for schedule in SCHEDULES:
        memo.prior(SPEC, schedule)
    memo.save(SPEC)
    assert files(cache) == [cache / "file"]
