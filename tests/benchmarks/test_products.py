"""benchmarks/products.py: a table that is measured in several runs is one, and rows of older sources stay when asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilescale.errors import RunnerError
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

ROOT = Path(__file__).parents[2]
BEST = SimpleNamespace(digest="d", label="ours")


class Runner:
    """Ours takes 10 us, torch.mm 12; what was raced is in `raced`, and the one after `most` ends the run."""

    raced: list[tuple[int, ...]] = []
    most = 100

    def __init__(self, topology: Topology, bounds: object = None) -> None:
        pass

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def start(self) -> None:
        pass

    def prefetch(self, spec: Spec, schedules: Sequence[Any]) -> None:
        pass

    def race(self, spec: Spec, schedules: Sequence[Any], names: Sequence[str], rounds: int) -> list[Mapping[str, Any]]:
        if len(self.raced) == self.most:
            raise KeyboardInterrupt
        self.raced.append(tuple(spec.output.sizes))
        return [{"d": ((10.0,),), "compute_only": ((12.0,),)}] * rounds


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import products as script

    monkeypatch.setattr(script, "GpuRunner", Runner)
    monkeypatch.setattr(script, "ProcessPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(script, "promising", lambda spec: ())
    monkeypatch.setattr(script.ts, "tune", lambda spec, **options: SimpleNamespace(best=BEST))
    monkeypatch.setattr(script.ts.Topology, "detect", lambda: Topology.named("8xH200-NVSwitch"))
    monkeypatch.setattr(script, "layers", lambda: [script.Layer("up", 64, 32), script.Layer("down", 32, 64)])
    monkeypatch.setattr(script.common, "version", lambda: "now")
    monkeypatch.setattr(Runner, "raced", [])
    monkeypatch.setattr(Runner, "most", 100)
    return script


def run(products: Any, path: Path, *words: str) -> dict[str, Any]:
    given = products.arguments("", "gemm", 2, (16, 32)).parse_args(["-o", str(path), *words])
    products.measure(products.table("gemm", given), given)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_two_runs_make_one_table(products: Any, tmp_path: Path) -> None:
    first = run(products, tmp_path / "gemm.json", "-m", "16")
    assert [(row["layer"], row["m"], row["ratio"]) for row in first["rows"]] == [("up", 16, 1.2), ("down", 16, 1.2)]
    both = run(products, tmp_path / "gemm.json", "-m", "16", "32")
    assert Runner.raced == [(16, 64), (16, 32), (32, 64), (32, 32)]
    assert [(row["layer"], row["m"]) for row in both["rows"]] == [("up", 16), ("down", 16), ("up", 32), ("down", 32)]
    assert {row["sources"] for row in both["rows"]} == {both["version"]} == {"now"}
    assert (both["geomean_ratio"], both["min_ratio"]) == (1.2, 1.2)


def test_a_run_that_is_cut_keeps_what_it_had(products: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "most", 1)
    with pytest.raises(KeyboardInterrupt):
        run(products, tmp_path / "gemm.json", "-m", "16")
    assert [row["layer"] for row in json.loads((tmp_path / "gemm.json").read_text())["rows"]] == ["up"]


def test_no_row_is_begun_when_the_time_is_over(products: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = products.arguments("", "gemm", 2, (16, 32)).parse_args(["-o", str(tmp_path / "t.json"), "--seconds", "-1"])
    products.measure(products.table("gemm", given), given)
    assert "stopped after 0 of 4 rows" in capsys.readouterr().out
    assert Runner.raced == []


def test_rows_that_no_table_has_are_an_error(products: Any, tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match=r"a row is named.*--only sideways"):
        run(products, tmp_path / "gemm.json", "--only", "sideways")
    assert list(tmp_path.iterdir()) == []


def test_a_profile_without_the_profiler_is_a_line() -> None:
    command = [sys.executable, "benchmarks/gemm_profile.py"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ("error: a profile is made by Nsight Compute; got: no ncu on the PATH; "
                           "install it beside the CUDA toolkit\n")


def test_the_longest_launch_is_the_one_that_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gemm_profile

    head = '"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'
    check, product = "nvjet_check", "nvjet_product"
    rows = [("0", check, "Speed", "Duration", "ns", "36,832"), ("1", product, "Speed", "Duration", "ns", "203,100"),
            ("1", product, "Compute", "SM Busy", "%", "91.6"), ("2", check, "Speed", "Duration", "ns", "36,900")]
    lines = ["==PROF== connected", head, *(",".join(f'"{word}"' for word in row) for row in rows)]
    (tmp_path / "said").write_text("\n".join(lines) + "\n")
    (tmp_path / "ncu").write_text(f"#!/bin/sh\nwhile read -r line; do echo \"$line\"; done < {tmp_path / 'said'}\n")
    (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gemm_profile.profile("nvjet") == {
        "Speed": {"kernel": "nvjet_product", "Duration": "203,100 ns"},
        "Compute": {"kernel": "nvjet_product", "SM Busy": "91.6 %"}}
    (tmp_path / "said").write_text("==PROF== no kernels\n")
    with pytest.raises(SystemExit, match="ncu reported nothing: ==PROF== no kernels"):
        gemm_profile.profile("nvjet")


@pytest.mark.parametrize(("words", "sources"), [
    ((), {"now"}), (("--keep-older",), {"now", "before"}), (("--only", "up M=16"), {"now", "before"})])
def test_rows_of_older_sources_stay_when_asked(
    products: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sources: set[str]
) -> None:
    monkeypatch.setattr(products.common, "version", lambda: "before")
    run(products, tmp_path / "gemm.json", "-m", "16", "32")
    monkeypatch.setattr(products.common, "version", lambda: "now")
    found = run(products, tmp_path / "gemm.json", "-m", "16", *words)
    assert {row["sources"] for row in found["rows"]} == sources
    assert len(found["rows"]) == (4 if words else 2)


def test_shares_of_a_plain_read_are_made_up_for(products: Any, tmp_path: Path) -> None:
    import gemm_small_m

    path = tmp_path / "small.json"
    given = products.arguments("", "gemm_small_m", 2, (16,)).parse_args(["-o", str(path)])
    products.measure(products.table("gemm_small_m", given, gemm_small_m.summary), given)
    assert "geomean_of_read" not in json.loads(path.read_text())  # as of a run that was cut here
    asked: list[set[int]] = []

    def read(sizes: set[int]) -> dict[int, float]:
        asked.append(sizes)
        return dict.fromkeys(sizes, 9.0)

    for _ in range(2):  # the second has nothing to ask
        gemm_small_m.compare(products.table("gemm_small_m", given, gemm_small_m.summary), read)
    found = json.loads(path.read_text())
    assert asked == [{2 * 64 * 32}]
    assert (found["geomean_of_read"], found["min_of_read"]) == (0.9, 0.9)
    assert [row["read_us"] for row in found["rows"]] == [9.0, 9.0]
